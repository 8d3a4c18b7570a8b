"""The hit rule: the longest prefix, in tokens, at which every component has what it needs. Pure."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from transom.kv.components import Grid, first_needed
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


def best_hit(tree: PrefixTree, grids: tuple[Grid, ...], namespace: Namespace, key: bytes) -> Hit:
    """The longest hit for all of `key`, which may end within a page."""
    path = tree.walk(namespace, key)
    rule = _Rule(path, grids)
    shared = path.pages * grids[0].page_size
    tail = key[path.pages * tree.page_bytes : (path.pages + 1) * tree.page_bytes]
    for node, index, tokens in candidates(path, tail):
        if rule.fallback(shared + tokens) is not None:
            break  # a shorter part of this page needs at least the same whole pages
        if rule.reads(node, index, shared + tokens):
            return Hit(path, shared + tokens, (node, index))
    end = shared
    while (lower := rule.fallback(end)) is not None:
        assert 0 <= lower < end, (lower, end)
        end = lower
    return Hit(path, end, path.at(end // grids[0].page_size) if end % grids[0].page_size else None)


def candidates(path: Path, tail: bytes) -> Iterator[tuple[Node, int, int]]:
    """Pages that begin like `tail`, right after the path: node, index, tokens shared; most shared first."""
    if not tail:
        return
    end, within = path.end, path.within
    if within < end.size:
        page_bytes = len(end.key) // end.size
        shared = shared_tokens(end.key[within * page_bytes : (within + 1) * page_bytes], tail)
        if shared:
            yield end, within, shared
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

    __slots__ = ("_pages", "_sparse")

    def __init__(self, path: Path, grids: tuple[Grid, ...]) -> None:
        self._pages = path.pages
        self._sparse = [(c, grid, path.residency(c)) for c, grid in enumerate(grids) if not grid.rooted]

    def fallback(self, end: int) -> int | None:
        """None if the path's whole pages allow a hit at `end`, else a lower end below which to look on.

        A hole that `end` needs is needed by every end between the hole and it, `needed` being monotone.
        """
        for _, grid, resident in self._sparse:
            hole = resident.rfind(0, grid.needed(end), grid.ceil(end))
            if hole >= 0:
                return max(hole * grid.page_size, first_needed(grid.component, end))
        return None

    def reads(self, node: Node, index: int, end: int) -> bool:
        """Whether the page after the path, as `node` has it, allows a hit at `end` within it."""
        return all(
            node.resident[component][index] or grid.needed(end) > self._pages
            for component, grid, _ in self._sparse
        )


def pages_read(hit: Hit, component: int, grid: Grid) -> Pages:
    """Entries a row takes over, [keep(start), whole pages of start). Holes only before what `start` needs."""
    return hit.path.read(component, grid.keep(hit.start), grid.floor(hit.start))
