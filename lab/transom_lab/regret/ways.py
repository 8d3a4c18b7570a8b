"""All ways in which all requests of a trace could begin, in one table."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from transom.kv.match import repair_start
from transom_lab.regret.pages import Bools, Floats, Ints, Kind, Pages, Path
from transom_lab.regret.replay import next_stop


@dataclass(frozen=True, slots=True)
class Ways:
    """By way; each request's lie side by side, the first being to find nothing.

    gain     tokens found
    full     reads full pages from its request's first up to here (by number in `Pages`)
    window   by component that slides: reads pages from here up to `full`
    wary     the same for who does not count on what it shares with another page than its own
    computed computes windows from here on
    fullest  most bytes of its own row
    """

    request: Ints
    gain: Ints
    full: Ints
    computed: Ints
    fullest: Ints
    window: Ints
    wary: Ints

    def of(self, which: Ints | Bools) -> "Ways":
        return Ways(*[getattr(self, field.name)[which] for field in fields(self)])

    def best(self, worth: Ints | Floats) -> Ints:
        """By request, the first of its ways that has the most of `worth`."""
        begins = np.flatnonzero(np.diff(self.request, prepend=-1))
        most = np.maximum.reduceat(worth, begins)
        ways = np.flatnonzero(worth == most[self.request])
        _, first = np.unique(self.request[ways], return_index=True)
        chosen: Ints = ways[first]
        return chosen

    def turning(self, edges: Ints) -> "Ways":
        """Without those that, between `edges`, gain and cost as much more than the way before as the way
        after gains and costs beyond them: one of the two is as good.
        """
        is_edge = np.zeros(int(edges[-1]) + 1, dtype=bool)
        is_edge[edges] = True
        steps = np.stack([self.gain, self.full, self.computed, self.fullest, *self.window.T])
        even = (np.diff(steps, n=2, prepend=-1, append=-1) == 0).all(axis=0)
        turns = is_edge[self.full] | is_edge[self.computed] | is_edge[self.window].any(axis=1)
        return self.of(turns | ~even)


def ways_of(kind: Kind, paths: Sequence[Path], pages: Pages) -> Ways:
    rows: list[tuple[int, ...]] = []
    most = max(path.known for path in paths) + 1 if kind.layers and kind.sliding else 0
    repairs = [repair_start(kind.rules, kind.layers, count * kind.page_size) for count in range(most)]
    for number, path in enumerate(paths):
        offset, size = int(pages.begins[number]), kind.page_size
        fullest = _Fullest(kind, path)
        for count in range(path.known + 1):
            end = min(count * size + int(path.shared[count]), path.prompt - 1)
            whole = min(count * size, path.prompt - 1)
            first = [offset + min(count, g.needed(at)) for at in (end, whole) for g, _ in kind.sliding]
            computed = offset + min(path.known, end // size)
            rows.append((number, end, offset + count, computed, fullest.after(end), *first))
        for count, start in enumerate(repairs[: path.known + 1]):
            until = count * size
            if start > 0 and until < path.prompt:
                exact = offset + min(rule.keep(until) for rule, _ in kind.sliding)
                none = [offset + count] * 2 * len(kind.sliding)
                rows.append((number, start, offset + count, exact, fullest.after_repair(start), *none))
    table = np.array(rows, dtype=np.int64)
    request, gain, full, computed, fullest = table[:, :5].T
    window, wary = np.hsplit(table[:, 5:], 2)
    return Ways(request, gain, full, computed, fullest, window, wary)


class _Fullest:
    """The most bytes of a request's own row, by where it begins. Mutable: what was asked is remembered."""

    def __init__(self, kind: Kind, path: Path) -> None:
        self._kind, self._path = kind, path
        self._known: dict[int, int] = {path.length: 0}

    def after(self, start: int) -> int:
        spans = []
        while start not in self._known:
            spans.append((start, self._stop(start)))
            start = spans[-1][1]
        for begin, end in reversed(spans):
            self._known[begin] = max(self._kind.held(begin, end), self._known[end])
        return self._known[spans[0][0] if spans else start]

    def after_repair(self, start: int) -> int:
        """Its first span finds no window."""
        end, size = self._stop(start), self._kind.page_size
        pages = -(-end // size)
        windows = sum((pages - start // size) * cost for _, cost in self._kind.sliding)
        return max(pages * self._kind.full + windows, self.after(end))

    def _stop(self, start: int) -> int:
        return next_stop(start, self._path.prompt, self._path.length, self._kind.page_size)
