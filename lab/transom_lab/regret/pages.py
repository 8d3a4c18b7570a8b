"""A trace as pages: which request reads which, who passed it last, and what each way to begin would need.

Time is cut into three slots for each request: before it begins, when its row is fullest, and as it ends. What
a request finds was kept since the last request that passed the same page. That one leaves all its full pages,
which it has to its end, and those window pages that it computed itself or that were kept before.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transom.errors import ConfigError
from transom.kv.layout import CacheLayout
from transom.kv.page_rules import RangePages
from transom_lab.regret.replay import CHUNK, Access

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SLOTS = 3
BEFORE, FULLEST, END = range(SLOTS)


@dataclass(frozen=True, slots=True)
class Kind:
    """What pages cost: `full` bytes in all components that keep everything, and in each that slides."""

    full: int
    sliding: tuple[tuple[RangePages, int], ...]
    page_size: int
    rules: tuple[RangePages, ...]
    layers: tuple[int, ...]

    def held(self, start: int, end: int) -> int:
        """Bytes of a row that computes `end` tokens, having computed `start`."""
        pages = -(-end // self.page_size)
        return pages * self.full + sum((pages - rule.keep(start)) * size for rule, size in self.sliding)


def kind_of(layout: CacheLayout) -> Kind:
    """Raises ConfigError for components kept as snapshots, and where nothing is kept from the root on."""
    rules = tuple(rule for rule in layout.rules() if isinstance(rule, RangePages))
    if len(rules) < len(layout.components):
        raise ConfigError("regret is not known for components kept as snapshots")
    if not any(rule.keeps_all for rule in rules):
        raise ConfigError("regret is not known without a component that keeps everything")
    sized = list(zip(rules, layout.page_bytes, strict=True))
    full = sum(size for rule, size in sized if rule.keeps_all)
    sliding = tuple((rule, size) for rule, size in sized if not rule.keeps_all)
    return Kind(full, sliding, layout.page_size, rules, layout.layers)


@dataclass(frozen=True, slots=True)
class Path:
    """One request. `pages` are its whole pages by id, the same where all tokens so far are.

    last   by page: the last request that passed it before, -1 for none; never grows along the path
    shared by number of pages: tokens that the next page of the path has in common with another there was
    """

    pages: Ints
    last: Ints
    shared: Ints
    prompt: int
    length: int

    @property
    def known(self) -> int:
        """Pages that somebody passed before."""
        return int(np.count_nonzero(self.last >= 0))


class Forest:
    """Owns the ids of all pages seen. Mutable: it grows with every request that is added."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._ids: dict[tuple[int, bytes], int] = {}
        self._last: list[int] = []
        self._alike: dict[tuple[int, int], list[NDArray[np.int32]]] = {}
        """Pages after a page that begin with the same token."""

    def __len__(self) -> int:
        return len(self._ids)

    def find(self, above: int, key: bytes) -> Ints:
        """Ids of the pages of `key` after page `above`, -1 for the root. All have been seen."""
        size = self._page_size * 4
        found = np.empty(len(key) // size, dtype=np.int64)
        for place in range(len(found)):
            above = found[place] = self._ids[(int(above), key[place * size : (place + 1) * size])]
        return found

    def add(self, number: int, access: Access) -> Path:
        size, tokens = self._page_size, access.tokens
        above, pages, last, shared = -1, [], [], []
        for start in range(0, len(tokens) - size + 1, size):
            part = tokens[start : start + size]
            shared.append(self._shared(above, tokens[start : min(start + size, access.prompt)], part))
            above = self._page(above, part)
            pages.append(above)
            last.append(self._last[above])
            self._last[above] = number
        rest = tokens[len(pages) * size : access.prompt]
        shared.append(self._shared(above, rest, rest) if len(rest) else 0)
        columns = [np.array(column, dtype=np.int64) for column in (pages, last, shared)]
        return Path(columns[0], columns[1], columns[2], access.prompt, len(tokens))

    def _page(self, above: int, part: NDArray[np.int32]) -> int:
        key = (above, part.tobytes())
        if key not in self._ids:
            self._ids[key] = len(self._last)
            self._last.append(-1)
            self._alike.setdefault((above, int(part[0])), []).append(part)
        return self._ids[key]

    def _shared(self, above: int, tail: NDArray[np.int32], own: NDArray[np.int32]) -> int:
        """Most tokens that `tail` has in common with a page that is not `own`."""
        most = 0
        for other in self._alike.get((above, int(own[0])), ()):
            if not np.array_equal(own, other):
                same = other[: len(tail)] == tail
                most = max(most, int(len(same) if same.all() else same.argmin()))
        return most


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages that requests may find, numbered through, each request's side by side.

    request by page: who may find it; begins: by request, its first page, and at the end how many there are
    prior   the same page, as the request that passed it last may have found it; -1: that one was the first
    next    the same page, as the next request to pass it may find it; -1: there is none
    parts   whether there is a request that does to the page before on its path what it does not to this one:
            pass, or keep it to its end
    since   first slot in which it must be kept: of full pages, then of each component that slides
    until   the slot after the last
    careful `since` for those who plan: what has slid by a prompt's last chunk counts beside its row already
    """

    request: Ints
    begins: Ints
    prior: Ints
    next: Ints
    parts: Bools
    since: tuple[Ints, ...]
    until: Ints
    careful: tuple[Ints, ...]

    def __len__(self) -> int:
        return len(self.request)


def pages_of(kind: Kind, paths: Sequence[Path]) -> Pages:
    known = np.array([path.known for path in paths], dtype=np.int64)
    ids = np.concatenate([path.pages[: path.known] for path in paths])
    last = np.concatenate([path.last[: path.known] for path in paths])
    place = np.concatenate([np.arange(count) for count in known])
    request = np.repeat(np.arange(len(paths)), known)
    prior, following = np.full(len(ids), -1), np.full(len(ids), -1)
    seen: dict[int, int] = {}
    for index, page in enumerate(ids.tolist()):
        before = seen.get(page, -1)
        prior[index] = before
        if before >= 0:
            following[before] = index
        seen[page] = index
    after = SLOTS * (last + 1)
    since, careful = [after], [after]
    for rule, _ in kind.sliding:
        slid = np.array([rule.keep(path.length) for path in paths])[last]
        chunk = np.array([rule.keep(max(0, path.prompt - CHUNK)) for path in paths])[last]
        since.append(np.where(place < slid, after - SLOTS + END, after))
        careful.append(np.where(place < chunk, after - SLOTS + FULLEST, since[-1]))
    begins = np.concatenate([[0], np.cumsum(known)])
    parts = _parts(kind, paths)[ids]
    until = SLOTS * request + FULLEST
    return Pages(request, begins, prior, following, parts, tuple(since), until, tuple(careful))


def _parts(kind: Kind, paths: Sequence[Path]) -> Bools:
    """By id. Along a path ever fewer requests pass: where they are not fewer, they are the same."""
    passed = np.bincount(np.concatenate([path.pages for path in paths]))
    parts = np.zeros(len(passed), dtype=bool)
    for path in paths:
        parts[path.pages[np.flatnonzero(np.diff(passed[path.pages], prepend=-1))]] = True
        kept = [rule.keep(path.length) for rule, _ in kind.sliding]
        parts[path.pages[[place for place in kept if place < len(path.pages)]]] = True
    return parts
