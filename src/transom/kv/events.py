"""Cache events: one append-only stream of pages stored and removed, bounded in memory.

`explain` reads it. It is also meant for a cache-aware router in front of several servers, which can follow
the stream to know the contents of each of them; no endpoint serves it yet.

Recording is part of every publication and eviction, so it must be cheap: a record keeps the keys of the path,
which are shared and never change, and digests are computed when the stream is read. Prefixes that no request
can hit (of an earlier epoch, or private to one request) are not recorded.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from hashlib import blake2b, sha512
from itertools import takewhile
from typing import NamedTuple

from transom.kv.holding import Namespace
from transom.kv.journal import Journal
from transom.kv.node import TOKEN_BYTES, Above, joined
from transom.values import RequestId

RECORDS_KEPT = 4096
"""Records, each a run of pages. A reader that falls further behind learns how many events it missed."""

DIGEST_BYTES = 16


class EventKind(StrEnum):
    STORED = "stored"
    REMOVED = "removed"
    CLEARED = "cleared"
    """A flush: no page of an earlier event is resident any more, in any component."""


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """One page: positions [start, end) of `component`, in a prefix of `end` tokens with this `digest`.

    A snapshot counts as the page that ends where its state was taken.
    """

    sequence: int
    component: str
    digest: bytes
    start: int
    end: int
    kind: EventKind


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events from the requested number on.

    missed events that were requested and are no longer kept
    next   the number to request next time
    """

    events: tuple[CacheEvent, ...]
    missed: int
    next: int


Stretch = tuple[int, Namespace, Above, bytes, Sequence[int]]
"""Component, namespace, above, key, pages: the fields of a Record."""


class Record(NamedTuple):
    """Pages of one node, with consecutive event numbers from `sequence` on.

    above, key tokens before the node, and its own
    pages      page indices from the root
    request    for a removal: the request that needed the pages, if one did
    """

    sequence: int
    kind: EventKind
    component: int
    namespace: Namespace | None
    above: Above
    key: bytes
    pages: Sequence[int]
    step: int
    request: RequestId | None

    @property
    def end(self) -> int:
        """The event number after the record's last. A flush is one event without pages."""
        return self.sequence + (len(self.pages) or 1)

    def prefix(self) -> bytes:
        return joined(self.above, self.key)


_record = partial(tuple.__new__, Record)
"""A record from its fields, in half the time: every publication and eviction makes some."""


def prefix_digest(salt: str, prefix: bytes) -> bytes:
    """The digest of a prefix: int32 little-endian tokens, keyed by the tenant's salt."""
    return _digest_of(salt, prefix).digest()


def _digest_of(salt: str, tokens: bytes) -> blake2b:
    """A digest that can be continued with the tokens that follow."""
    # A key of blake2b has at most 64 bytes. Cut there, long salts with one beginning would collide.
    return blake2b(tokens, digest_size=DIGEST_BYTES, key=sha512(salt.encode()).digest())


class _Digests:
    """Owns the digests of the tokens above nodes, with their length in bytes, while events are read.

    One digest serves all records of a node, those of its siblings, and continues with those of its children.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[blake2b, int]] = {}
        """By salt and `id` of the link; the records keep the links."""

    def of(self, salt: str, above: Above) -> tuple[blake2b, int]:
        ahead: list[tuple[int, bytes]] = []
        while above and (salt, id(above)) not in self._known:
            ahead.append((id(above), above[1]))
            above = above[0]
        found = self._known[salt, id(above)] if above else (_digest_of(salt, b""), 0)
        for link, key in reversed(ahead):
            digest = found[0].copy()
            digest.update(key)
            found = self._known[salt, link] = digest, found[1] + len(key)
        return found


class EventLog:
    """Owns the records. Mutable; a rollback takes its records back."""

    __slots__ = ("_journal", "_names", "_page_bytes", "_records", "epoch", "next", "request", "step")

    def __init__(self, names: tuple[str, ...], page_bytes: int, journal: Journal) -> None:
        self.next = 0
        self.epoch = 0
        self.step = 0
        """Steps computed so far."""
        self.request: RequestId | None = None
        """The request that pages are being allocated for."""
        self._names = names
        self._page_bytes = page_bytes
        self._records: deque[Record] = deque(maxlen=RECORDS_KEPT)
        self._journal = journal

    # ---------------------------------------------------------------- queries

    def since(self, sequence: int) -> EventBatch:
        """Events from `sequence` on, as far as they are kept."""
        assert 0 <= sequence <= self.next, (sequence, self.next)
        oldest = self._records[0].sequence if self._records else self.next
        # From the newest record back, so that the cost depends on what is new and not on what is kept.
        new = list(takewhile(lambda record: record.end > sequence, reversed(self._records)))
        digests = _Digests()
        events = [event for record in reversed(new) for event in self._events_of(record, sequence, digests)]
        return EventBatch(tuple(events), max(0, oldest - sequence), self.next)

    def last_removal(self, component: int, namespace: Namespace, prefix: bytes) -> Record | None:
        """The latest kept removal of the page that `prefix` ends with, if one is kept."""
        assert prefix and len(prefix) % self._page_bytes == 0, len(prefix)
        page = len(prefix) // self._page_bytes - 1
        for record in reversed(self._records):
            if record.kind is EventKind.CLEARED:
                return None
            removed = (record.kind, record.component, record.namespace) == (
                EventKind.REMOVED,
                component,
                namespace,
            )
            if removed and page in record.pages and record.prefix().startswith(prefix):
                return record
        return None

    def _events_of(self, record: Record, sequence: int, digests: "_Digests") -> Iterator[CacheEvent]:
        """The record's events from number `sequence` on."""
        if record.namespace is None:
            yield CacheEvent(record.sequence, "", b"", 0, 0, record.kind)
            return
        name, size, salt = self._names[record.component], self._page_bytes, record.namespace.salt
        # One digest runs along the key and is read at the end of each page, so each token is hashed once.
        above, start = digests.of(salt, record.above)
        digest, at = above.copy(), start
        first = max(0, sequence - record.sequence)
        for number, page in enumerate(record.pages[first:], record.sequence + first):
            end = (page + 1) * size
            digest.update(record.key[at - start : end - start])
            at = end
            yield CacheEvent(
                number, name, digest.digest(), page * size // TOKEN_BYTES, end // TOKEN_BYTES, record.kind
            )

    # ---------------------------------------------------------------- transitions

    def record(self, kind: EventKind, stretches: Sequence[Stretch]) -> None:
        """Appends that pages were stored or removed. The stretches are kept: never change them afterwards."""
        assert kind is not EventKind.CLEARED, stretches
        request, sequence, step = self.request if kind is EventKind.REMOVED else None, self.next, self.step
        # Rollback drops records by number. What the bounded deque has lost meanwhile is not restored: readers
        # learn that they missed events, as they do when they fall behind.
        self._journal.log(self._forget, sequence)
        for component, namespace, above, key, pages in stretches:
            if namespace.epoch != self.epoch or namespace.private is not None:
                continue
            assert pages, (kind, namespace, key)
            self._records.append(
                _record((sequence, kind, component, namespace, above, key, pages, step, request))
            )
            sequence += len(pages)
        self.next = sequence

    def clear(self, epoch: int) -> None:
        """A new epoch: all pages recorded before are gone."""
        assert epoch > self.epoch, (epoch, self.epoch)
        self._journal.log(self._forget, self.next)
        self._records.append(Record(self.next, EventKind.CLEARED, 0, None, (), b"", (), self.step, None))
        self.next += 1
        self._journal.assign(self, "epoch", epoch)

    def _forget(self, sequence: int) -> None:
        assert sequence <= self.next, (sequence, self.next)
        while self._records and self._records[-1].sequence >= sequence:
            self._records.pop()
        self.next = sequence
