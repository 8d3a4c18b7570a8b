"""What became resident and what ceased to be: one append-only stream, bounded in memory.

Recording keeps the keys of the path, which are shared and never change; digests are made when somebody reads.
Prefixes that nobody can hit, of an earlier epoch or of one request alone, are not told.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

from transom.kv.holding import Namespace
from transom.kv.journal import Journal
from transom.values import RequestId

RECORDS_KEPT = 4096
"""Runs of pages. A reader that falls behind further learns that it missed some."""

DIGEST_BYTES = 16


class What(StrEnum):
    STORED = "stored"
    REMOVED = "removed"
    CLEARED = "cleared"
    """All components, all prefixes: nothing told before is resident any more."""


@dataclass(frozen=True, slots=True)
class CacheEvent:
    """One page: positions [start, end) of `component`, after exactly the tokens that `digest` stands for.

    A snapshot is told as the page it is the state after.
    """

    sequence: int
    component: str
    digest: bytes
    start: int
    end: int
    what: What


@dataclass(frozen=True, slots=True)
class EventBatch:
    """`missed` events before these are gone. Ask for `next` next time."""

    events: tuple[CacheEvent, ...]
    missed: int
    next: int


Stretch = tuple[int, Namespace, tuple[bytes, ...], bytes, Sequence[int]]
"""Component, namespace, above, key, pages, as in Record."""


class Record(NamedTuple):
    """Pages of one run that ends with `key`; `above` are the keys before, `pages` by index from the root."""

    sequence: int
    what: What
    component: int
    namespace: Namespace | None
    above: tuple[bytes, ...]
    key: bytes
    pages: Sequence[int]
    step: int
    request: RequestId | None
    """For whom it was removed, if for anybody."""

    def prefix(self) -> bytes:
        return b"".join((*self.above, self.key))


def prefix_digest(salt: str, prefix: bytes) -> bytes:
    """Of all tokens of a prefix, int32 little-endian, in the tenant's own space."""
    return blake2b(prefix, digest_size=DIGEST_BYTES, key=salt.encode()[:64]).digest()


class EventLog:
    """Owns the records. Mutable; what is undone is not told."""

    __slots__ = ("_journal", "_names", "_page_bytes", "_records", "epoch", "next", "request", "step")

    def __init__(self, names: tuple[str, ...], page_bytes: int, journal: Journal) -> None:
        self.next = 0
        self.epoch = 0
        self.step = 0
        """Steps computed so far."""
        self.request: RequestId | None = None
        """Whom pages are taken for just now."""
        self._names = names
        self._page_bytes = page_bytes
        self._records: deque[Record] = deque(maxlen=RECORDS_KEPT)
        self._journal = journal

    # ---------------------------------------------------------------- queries

    def since(self, sequence: int) -> EventBatch:
        """Events from `sequence` on, as far as they are kept."""
        assert 0 <= sequence <= self.next, (sequence, self.next)
        oldest = self._records[0].sequence if self._records else self.next
        events = [
            event for record in self._records for event in self._told(record) if event.sequence >= sequence
        ]
        return EventBatch(tuple(events), max(0, oldest - sequence), self.next)

    def last_removal(self, component: int, namespace: Namespace, prefix: bytes) -> Record | None:
        """The latest removal of the page that `prefix` ends with, if it is remembered."""
        assert prefix and len(prefix) % self._page_bytes == 0, len(prefix)
        page = len(prefix) // self._page_bytes - 1
        for record in reversed(self._records):
            if record.what is What.CLEARED:
                return None
            told = (record.what, record.component, record.namespace) == (What.REMOVED, component, namespace)
            if told and page in record.pages and record.prefix().startswith(prefix):
                return record
        return None

    def _told(self, record: Record) -> Iterator[CacheEvent]:
        if record.namespace is None:
            yield CacheEvent(record.sequence, "", b"", 0, 0, record.what)
            return
        prefix, size = record.prefix(), self._page_bytes
        for number, page in enumerate(record.pages):
            end = (page + 1) * size
            digest = prefix_digest(record.namespace.salt, prefix[:end])
            name = self._names[record.component]
            yield CacheEvent(record.sequence + number, name, digest, page * size // 4, end // 4, record.what)

    # ---------------------------------------------------------------- transitions

    def record(self, what: What, stretches: Sequence[Stretch]) -> None:
        """Pages of these were stored or removed, in turn. Kept: never to be written to."""
        assert what is not What.CLEARED, stretches
        request, sequence, step = self.request if what is What.REMOVED else None, self.next, self.step
        self._journal.log(self._forget, sequence)
        for component, namespace, above, key, pages in stretches:
            if namespace.epoch != self.epoch or namespace.private is not None:
                continue
            assert pages, (what, namespace, key)
            self._records.append(
                Record(sequence, what, component, namespace, above, key, pages, step, request)
            )
            sequence += len(pages)
        self.next = sequence

    def clear(self, epoch: int) -> None:
        """A new epoch: what was told before is gone."""
        assert epoch > self.epoch, (epoch, self.epoch)
        self._journal.log(self._forget, self.next)
        self._records.append(Record(self.next, What.CLEARED, 0, None, (), b"", (), self.step, None))
        self.next += 1
        self._journal.assign(self, "epoch", epoch)

    def _forget(self, sequence: int) -> None:
        assert sequence <= self.next, (sequence, self.next)
        while self._records and self._records[-1].sequence >= sequence:
            self._records.pop()
        self.next = sequence
