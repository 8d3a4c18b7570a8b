"""The hit rule: the longest prefix, in tokens, at which every component has what it needs. Pure."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from transom.kv.components import PageRule
from transom.kv.holding import Namespace
from transom.kv.pool import Pages
from transom.kv.tree import Node, Path, PrefixTree, shared_tokens


@dataclass(frozen=True, slots=True)
class Hit:
    """Begin at `start`. Valid until the tree changes; never kept.

    path    covers the whole pages before `start`, and may reach further
    partial the node and page index that hold the page `start` lies in, None where `start` is a page boundary
    """

    path: Path
    start: int
    partial: tuple[Node, int] | None

    def partial_page(self, component: int) -> int:
        """The page to copy from, 0 if there is none."""
        return int(self.partial[0].pages[component][self.partial[1]]) if self.partial else 0


def best_hit(tree: PrefixTree, grids: tuple[PageRule, ...], namespace: Namespace, key: bytes) -> Hit:
    """The longest hit for all of `key`, which may end within a page."""
    path = tree.walk(namespace, key)
    rule = _Rule(path, grids)
    page_size, page_bytes = grids[0].page_size, tree.page_bytes
    page = path.pages
    hit = rule.within(page, key[page * page_bytes : (page + 1) * page_bytes])
    while hit is None and (hole := rule.hole(page * page_size, page)) is not None:
        # Every end between the hole and here needs it; but another page may begin as the hole's does.
        page = hole
        hit = rule.within(page, key[page * page_bytes : (page + 1) * page_bytes])
    return hit or Hit(path, page * page_size, None)


def candidates(path: Path, page: int, tail: bytes) -> Iterator[tuple[Node, int, int]]:
    """Pages that begin like `tail` after `page` pages of the path: node, index, tokens; most shared first."""
    end, index = path.after(page)
    if index < end.size:
        page_bytes = len(end.key) // end.size
        shared = shared_tokens(end.key[index * page_bytes : (index + 1) * page_bytes], tail)
        if shared:
            yield end, index, shared
        return
    for first, shared in nearest(end.order, tail):
        yield end.children[first], 0, shared


def nearest(order: list[bytes], tail: bytes) -> Iterator[tuple[bytes, int]]:
    """Of sorted pages, those sharing a beginning with `tail`, most first: outward from its place."""
    above = bisect_left(order, tail)
    below = above - 1
    while True:
        up = shared_tokens(order[above], tail) if above < len(order) else 0
        down = shared_tokens(order[below], tail) if below >= 0 else 0
        if not up and not down:
            return
        if up >= down:
            yield order[above], up
            above += 1
        else:
            yield order[below], down
            below -= 1


class _Rule:
    """`needed` of every component against what the path has. Rooted components have the whole path."""

    __slots__ = ("_page_size", "_path", "_sparse")

    def __init__(self, path: Path, grids: tuple[PageRule, ...]) -> None:
        self._path = path
        self._page_size = grids[0].page_size
        self._sparse = [(c, grid, path.residency(c)) for c, grid in enumerate(grids) if not grid.rooted]

    def hole(self, end: int, pages: int) -> int | None:
        """A hole among the first `pages` of the path that a hit at `end` reads; no hit lies between.

        Of a run of holes in one node the first is as good as the last: nothing ends or branches off within.
        """
        for _, grid, resident in self._sparse:
            hole = resident.rfind(0, grid.needed(end), pages)
            if hole >= 0:
                run = resident.rfind(1, 0, hole) + 1 if grid.reads_before else hole
                return max(run, self._path.start_of(hole))
        return None

    def within(self, page: int, tail: bytes) -> Hit | None:
        """The longest hit inside the page after `page` pages of the path, whose tokens go on with `tail`."""
        assert page <= self._path.pages, (page, self._path.pages)
        found, start = None, page * self._page_size
        for node, index, tokens in candidates(self._path, page, tail):
            if found is not None and found.start >= start + tokens:
                break
            if self.hole(start + tokens, page) is not None:
                break  # a shorter part of the page needs at least the same whole pages
            end = self._longest_end(node, index, start, tokens)
            if end > max(start, found.start if found else 0):
                found = Hit(self._path, end, (node, index))
        return found

    def _longest_end(self, node: Node, index: int, start: int, tokens: int) -> int:
        """The last end in (start, start + tokens] that the page `index` allows; `start` if there is none."""
        end = start + tokens
        if self._reads(node, index, end):
            return end
        if all(grid.reads_before for _, grid, _ in self._sparse):
            return start  # each end reads what comes before it in the page
        ends = range(end - 1, start, -1)
        return next(
            (
                e
                for e in ends
                if self.hole(e, start // self._page_size) is None and self._reads(node, index, e)
            ),
            start,
        )

    def _reads(self, node: Node, index: int, end: int) -> bool:
        """Whether page `index` of `node` allows a hit at `end` within it."""
        return all(
            grid.ends_within(end, bool(node.resident[component][index]))
            for component, grid, _ in self._sparse
        )


def pages_read(hit: Hit, component: int, grid: PageRule) -> Pages:
    """Entries a row takes over, [keep(start), whole pages of start). Holes only before what `start` needs."""
    whole = grid.shared(grid.floor(hit.start))
    return hit.path.read(component, min(grid.keep(hit.start), whole), whole)


def page_copied(hit: Hit, component: int, grid: PageRule) -> int:
    """The page of the tree that the row gets a copy of, 0 if none: the partial one, or a snapshot."""
    place = grid.snapshot_page(hit.start)
    return (
        hit.partial_page(component) if place is None else int(hit.path.read(component, place, place + 1)[0])
    )
