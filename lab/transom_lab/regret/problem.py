"""A trace as an optimization problem: where each request starts, and which pages are kept in between.

The words of this package:

path    the whole pages of one request's tokens, from the root. Two requests share a page if all tokens up to
        the end of the page are equal, as in the radix tree.
reuse   a request together with a page of its path that an earlier request computed or found too. The page is
        a hit if the cache kept it since the most recent of these. Memory is decided per reuse.
option  one position at which a request can start: cold, at a hit on its path, or at a repair.
slot    a moment at which memory is checked. Each request has three: before it starts, when its own pages take
        the most memory, and when it ends.

A reuse takes memory from the end of the previous request on the same page to the start of its own request.
The previous request leaves all its full pages behind, because it holds them to its end. It leaves a window
page only if it computed the page itself or if the page had been kept for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from transom.errors import ConfigError
from transom.kv.layout import CacheLayout
from transom.kv.match import repair_start
from transom.kv.page_rules import PageRule, first_needed
from transom_lab.regret.replay import CHUNK, ReplayRequest, span_end

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SLOTS = 3
BEFORE, FULLEST, END = range(SLOTS)
"""Slots of one request; slot `SLOTS * request + END` is when `request` ends."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Options, reuses and memory costs of a trace."""

    costs: "PageCosts"
    paths: "tuple[Path, ...]"
    reuses: "Reuses"
    options: "StartOptions"
    trie: "PageTrie"

    @property
    def slots(self) -> int:
        # One more than the requests have, because a reuse may have to be kept "from the slot after the last".
        return SLOTS * len(self.paths) + 1


def problem_of(layout: CacheLayout, requests: Sequence[ReplayRequest]) -> Problem:
    """Raises ConfigError for a layout whose regret cannot be computed."""
    costs = page_costs(layout)
    trie = PageTrie(costs.page_size)
    paths = tuple(trie.add(number, request) for number, request in enumerate(requests))
    reuses = reuses_of(costs, paths)
    return Problem(costs, paths, reuses, start_options(costs, paths, reuses), trie)


def covered(count: int, start: Ints, end: Ints) -> Bools:
    """Which of `count` positions lie in at least one of the ranges [start[i], end[i])."""
    change = np.bincount(start, minlength=count + 1) - np.bincount(end, minlength=count + 1)
    inside: Bools = np.cumsum(change)[:-1] > 0
    return inside


def memory_by_slot(
    kept: Sequence[Ints | Bools], sizes: Sequence[float], since: Sequence[Ints], until: Ints, slots: int
) -> Floats:
    """Memory of kept pages, by slot. By component: how many pages are `kept`, and from which slot on."""
    change = np.zeros(slots + 1)
    for count, size, start in zip(kept, sizes, since, strict=True):
        weights = count * size
        change += np.bincount(start, weights, slots + 1) - np.bincount(until, weights, slots + 1)
    memory: Floats = np.cumsum(change)[:-1]
    return memory


# ---------------------------------------------------------------- memory costs


@dataclass(frozen=True, slots=True)
class PageCosts:
    """Bytes per page.

    full    of all components together that keep everything: such pages are always kept and evicted together
            here
    sliding of each other component, with its page rule
    """

    full: int
    sliding: tuple[tuple[PageRule, int], ...]
    page_size: int
    rules: tuple[PageRule, ...]
    layers: tuple[int, ...]

    def row_bytes(self, start: int, end: int) -> int:
        """Bytes that a request's row holds while it computes the span [start, end)."""
        pages = -(-end // self.page_size)
        return pages * self.full + sum((pages - rule.keep(start)) * size for rule, size in self.sliding)


def page_costs(layout: CacheLayout) -> PageCosts:
    """Raises ConfigError for components kept as snapshots, and if no component keeps everything."""
    rules = layout.rules()
    for component in layout.components:
        first_needed(component, 0)
    if not any(rule.whole(1) for rule in rules):
        raise ConfigError("regret cannot be computed without a component that keeps everything")
    sized = list(zip(rules, layout.page_bytes, strict=True))
    full = sum(size for rule, size in sized if rule.whole(1))
    sliding = tuple((rule, size) for rule, size in sized if not rule.whole(1))
    return PageCosts(full, sliding, layout.page_size, rules, layout.layers)


# ---------------------------------------------------------------- paths


@dataclass(frozen=True, slots=True)
class Path:
    """One request.

    pages   ids of its whole pages
    last    by page: the most recent earlier request with the same page, or -1. Never increases along the
            path, because every request that has a page has all pages before it.
    shared  by number of whole pages found: how many tokens the prompt's next page has in common with a
            different known page at the same place. A hit may end within that page.
    """

    pages: Ints
    last: Ints
    shared: Ints
    prompt: int
    length: int

    @property
    def known(self) -> int:
        """How many pages, from the root on, an earlier request has on its path too."""
        return int(np.count_nonzero(self.last >= 0))


class PageTrie:
    """Owns the ids of all pages of the trace. Mutable: it grows with every request that is added."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._ids: dict[tuple[int, bytes], int] = {}
        """Id of a page, by the id of its parent (-1 at the root) and its tokens."""
        self._last: list[int] = []
        self._candidates: dict[tuple[int, int], list[NDArray[np.int32]]] = {}
        """Tokens of pages by parent and first token: only these can share a beginning with another page."""

    def __len__(self) -> int:
        return len(self._ids)

    def find(self, parent: int, key: bytes) -> Ints:
        """Ids of the pages with the tokens `key` below page `parent`. All of them must have been added."""
        size = self._page_size * 4  # tokens are int32
        found = np.empty(len(key) // size, dtype=np.int64)
        for place in range(len(found)):
            parent = found[place] = self._ids[(int(parent), key[place * size : (place + 1) * size])]
        return found

    def add(self, number: int, request: ReplayRequest) -> Path:
        size, tokens = self._page_size, request.tokens
        parent, pages, last, shared = -1, [], [], []
        # Only whole pages have ids, because the cache publishes only whole pages.
        for start in range(0, len(tokens) - size + 1, size):
            page = tokens[start : start + size]
            shared.append(self._shared(parent, tokens[start : min(start + size, request.prompt)], page))
            parent = self._page(parent, page)
            pages.append(parent)
            last.append(self._last[parent])
            self._last[parent] = number
        rest = tokens[len(pages) * size : request.prompt]
        shared.append(self._shared(parent, rest, rest) if len(rest) else 0)
        columns = [np.array(column, dtype=np.int64) for column in (pages, last, shared)]
        return Path(columns[0], columns[1], columns[2], request.prompt, len(tokens))

    def _page(self, parent: int, page: NDArray[np.int32]) -> int:
        key = (parent, page.tobytes())
        if key not in self._ids:
            self._ids[key] = len(self._last)
            self._last.append(-1)
            # Indexed by the first token as well: without that, a root with many children is searched in full.
            self._candidates.setdefault((parent, int(page[0])), []).append(page)
        return self._ids[key]

    def _shared(self, parent: int, prompt: NDArray[np.int32], page: NDArray[np.int32]) -> int:
        """The most tokens that `prompt` has in common with a known page below `parent` other than `page`."""
        most = 0
        for other in self._candidates.get((parent, int(page[0])), ()):
            if not np.array_equal(page, other):
                equal = other[: len(prompt)] == prompt
                most = max(most, int(len(equal) if equal.all() else equal.argmin()))
        return most


# ---------------------------------------------------------------- reuses


@dataclass(frozen=True, slots=True)
class Reuses:
    """All reuses of a trace. They are numbered by request, and within a request along its path.

    request by reuse: the request that would find the page
    begins  by request: its first reuse; one more entry at the end holds how many reuses there are
    prior   the previous reuse of the same page, or -1 if the page was first computed by the previous request
    next    the next reuse of the same page, or -1
    splits  whether some request treats this page and the page before it on the path differently: has only one
            of them, or holds only one of them to its end. Reuses between two splits are alike (see
            `bound.Runs`).
    since   by memory class (full pages, then each sliding component): the first slot in which a kept page
            counts
    until   the slot after the last in which it counts; from then on it belongs to the row of its request
    since_planned
            as `since`, for a feasible plan: a window page that slides out of the previous request's row
            during its last prompt chunk counts beside the row at once. The bound counts it from the request's
            end only.
    """

    request: Ints
    begins: Ints
    prior: Ints
    next: Ints
    splits: Bools
    since: tuple[Ints, ...]
    until: Ints
    since_planned: tuple[Ints, ...]

    def __len__(self) -> int:
        return len(self.request)


def reuses_of(costs: PageCosts, paths: Sequence[Path]) -> Reuses:
    known = np.array([path.known for path in paths], dtype=np.int64)
    ids = np.concatenate([path.pages[: path.known] for path in paths])
    last = np.concatenate([path.last[: path.known] for path in paths])
    place = np.concatenate([np.arange(count) for count in known])
    request = np.repeat(np.arange(len(paths)), known)
    prior, following = np.full(len(ids), -1), np.full(len(ids), -1)
    latest: dict[int, int] = {}  # by page id
    for reuse, page in enumerate(ids.tolist()):
        before = latest.get(page, -1)
        prior[reuse] = before
        if before >= 0:
            following[before] = reuse
        latest[page] = reuse
    after = SLOTS * (last + 1)  # the slot in which the next request has not started yet
    since, since_planned = [after], [after]
    for rule, _ in costs.sliding:
        # A window page that the previous request no longer holds at its end counts as kept from then on.
        kept_at_end = np.array([rule.keep(path.length) for path in paths])[last]
        since.append(np.where(place < kept_at_end, after - SLOTS + END, after))
        kept_in_chunk = np.array([rule.keep(max(0, path.prompt - CHUNK)) for path in paths])[last]
        since_planned.append(np.where(place < kept_in_chunk, after - SLOTS + FULLEST, since[-1]))
    begins = np.concatenate([[0], np.cumsum(known)])
    splits = _splits(costs, paths)[ids]
    until = SLOTS * request + FULLEST
    return Reuses(request, begins, prior, following, splits, tuple(since), until, tuple(since_planned))


def _splits(costs: PageCosts, paths: Sequence[Path]) -> Bools:
    """By page id. Requests only become fewer along a path, so an equal count means that they are the same."""
    requests = np.bincount(np.concatenate([path.pages for path in paths]))
    splits = np.zeros(len(requests), dtype=bool)
    for path in paths:
        splits[path.pages[np.flatnonzero(np.diff(requests[path.pages], prepend=-1))]] = True
        kept = [rule.keep(path.length) for rule, _ in costs.sliding]
        splits[path.pages[[place for place in kept if place < len(path.pages)]]] = True
    return splits


# ---------------------------------------------------------------- options


@dataclass(frozen=True, slots=True)
class StartOptions:
    """All options, one per entry. The options of a request are adjacent, and its cold start comes first.

    Positions on a path are reuse numbers. An option of a request whose first reuse is `first`

    gain     finds this many prompt tokens
    full     reads full pages [first, full)
    window   reads window pages [window, full), by sliding component
    window_planned
             the same if the plan does not count on tokens shared with a different page (`Path.shared`)
    computed computes window pages from here to the end of the path
    fullest  holds at most this many bytes in its row
    """

    request: Ints
    gain: Ints
    full: Ints
    computed: Ints
    fullest: Ints
    window: Ints
    window_planned: Ints

    def subset(self, which: Ints | Bools) -> "StartOptions":
        return StartOptions(*[getattr(self, field.name)[which] for field in fields(self)])

    def best(self, value: Ints | Floats) -> Ints:
        """By request: the first of its options with the highest `value`."""
        begins = np.flatnonzero(np.diff(self.request, prepend=-1))
        highest = np.maximum.reduceat(value, begins)
        options = np.flatnonzero(value == highest[self.request])
        _, first = np.unique(self.request[options], return_index=True)
        chosen: Ints = options[first]
        return chosen

    def corners(self, edges: Ints) -> "StartOptions":
        """Without options that can never be the only best one, if all reuses between two `edges` are alike.

        Between two edges the value of an option is linear in its position, so a maximum lies at an edge or
        where the steps of gain, pages or bytes change.
        """
        is_edge = np.zeros(int(edges[-1]) + 1, dtype=bool)
        is_edge[edges] = True
        columns = np.stack([self.gain, self.full, self.computed, self.fullest, *self.window.T])
        is_linear = (np.diff(columns, n=2, prepend=-1, append=-1) == 0).all(axis=0)
        at_edge = is_edge[self.full] | is_edge[self.computed] | is_edge[self.window].any(axis=1)
        return self.subset(at_edge | ~is_linear)


def start_options(costs: PageCosts, paths: Sequence[Path], reuses: Reuses) -> StartOptions:
    rows: list[tuple[int, ...]] = []
    counts = max(path.known for path in paths) + 1 if costs.layers and costs.sliding else 0
    repairs = [repair_start(costs.rules, costs.layers, count * costs.page_size) for count in range(counts)]
    for number, path in enumerate(paths):
        first, size = int(reuses.begins[number]), costs.page_size
        fullest = _FullestRow(costs, path)
        for count in range(path.known + 1):
            # At least one prompt token is always computed, to have logits to sample from.
            end = min(count * size + int(path.shared[count]), path.prompt - 1)
            end_planned = min(count * size, path.prompt - 1)
            windows = [
                first + min(count, rule.needed(at)) for at in (end, end_planned) for rule, _ in costs.sliding
            ]
            computed = first + min(path.known, end // size)
            rows.append((number, end, first + count, computed, fullest.after(end), *windows))
        # A repair reads full pages only, and recomputes the windows from `start` on. Window pages before the
        # window of `until` are computed with inexact values and never published.
        for count, start in enumerate(repairs[: path.known + 1]):
            until = count * size
            if start > 0 and until < path.prompt:
                exact = first + min(rule.keep(until) for rule, _ in costs.sliding)
                no_windows = [first + count] * 2 * len(costs.sliding)
                rows.append((number, start, first + count, exact, fullest.after_repair(start), *no_windows))
    table = np.array(rows, dtype=np.int64)
    request, gain, full, computed, most = table[:, :5].T
    window, window_planned = np.hsplit(table[:, 5:], 2)
    return StartOptions(request, gain, full, computed, most, window, window_planned)


class _FullestRow:
    """The most bytes that a request's own row holds, by where it starts. Mutable: results are cached."""

    def __init__(self, costs: PageCosts, path: Path) -> None:
        self._costs, self._path = costs, path
        self._cached: dict[int, int] = {path.length: 0}

    def after(self, start: int) -> int:
        spans = []
        while start not in self._cached:
            spans.append((start, self._span_end(start)))
            start = spans[-1][1]
        # Options start at many positions but soon share span ends, so most maxima are cached already.
        for begin, end in reversed(spans):
            self._cached[begin] = max(self._costs.row_bytes(begin, end), self._cached[end])
        return self._cached[spans[0][0] if spans else start]

    def after_repair(self, start: int) -> int:
        """As `after`, but the first span finds no window pages and holds only its own, from `start` on."""
        end, size = self._span_end(start), self._costs.page_size
        pages = -(-end // size)
        windows = sum((pages - start // size) * cost for _, cost in self._costs.sliding)
        return max(pages * self._costs.full + windows, self.after(end))

    def _span_end(self, start: int) -> int:
        return span_end(start, self._path.prompt, self._path.length, self._costs.page_size)
