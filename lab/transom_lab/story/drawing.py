"""Draws the real cache as strips of cells. It only reads."""

from collections.abc import Iterator, Sequence
from operator import attrgetter

import numpy as np

from transom.kv.cache import Holding
from transom.kv.check import inside
from transom.kv.node import Node
from transom.kv.pool import FREE as UNOWNED
from transom_lab.story.scene import BLANK, FREE, HOLE, NOT_YET, Cell, Look, Strip, one_cell
from transom_lab.story.stage import FULL, PAGE, Stage, label

_AGE = attrgetter("number")
"""Numbers are given in order of creation, in a cache that has evicted no node before."""

Readers = dict[int, list[str]]
"""For each page: the letters of the requests that have it in their row."""


def pool(stage: Stage, component: int) -> Strip:
    """Every page of a pool. Capital letters mark pages of the tree, small letters private pages."""
    pages = inside(stage.cache).pools[component]
    owners = pages.owners()
    named, readers = _labels(stage, component), _readers(stage, component)
    cells = []
    for page in range(1, pages.capacity + 1):
        if owners[page] == UNOWNED:
            cells.append(FREE)
        elif pages.is_of_tree(page):
            cells.append(one_cell(readers.get(page, []), named[page]))
        else:
            cells.append(Cell(Look[readers[page][0]], named[page].lower()))
    return Strip(pages.name, tuple(cells))


def row(stage: Stage, letter: str) -> Strip:
    """A request's full pages in order, and placeholders for the part of its prompt that is not computed."""
    holding = stage.holding(letter)
    prompt, known = len(stage.requests[letter].prompt), stage.known(letter)
    if holding is None:
        pending = () if letter in stage.ended else (NOT_YET,) * -(-prompt // PAGE)
        return Strip(letter, pending, "answered" if letter in stage.ended else "waits")
    there = max(holding.computed, holding.full_until)
    pages = inside(stage.cache).tables[FULL].read(holding.row, 0, -(-there // PAGE)).tolist()
    readers = _readers(stage, FULL)
    cells = [_read(stage, letter, page, label(known[i * PAGE]), readers) for i, page in enumerate(pages)]
    missing = -(-prompt // PAGE) - len(cells)
    note = (
        f"{holding.computed} tokens"
        if holding.computed >= prompt
        else f"{holding.computed} of {prompt} tokens"
    )
    return Strip(letter, (*cells, *(NOT_YET,) * missing), note)


def _read(stage: Stage, letter: str, page: int, name: str, readers: Readers) -> Cell:
    if inside(stage.cache).pools[FULL].is_of_tree(page):
        return one_cell(readers[page], name)
    return Cell(Look[letter], name.lower())


def tree(stage: Stage, letters: str) -> tuple[Strip, ...]:
    """The cached branches of the texts that `letters` name, one line each, with their holes."""
    lines: list[list[Cell]] = []
    for root in inside(stage.cache).tree.roots.values():
        for node in sorted(root.children, key=_AGE):
            if _name(node, 0)[0] in letters:
                lines += _branches(stage, node)
    names = ["tree", *[""] * len(lines)]
    return tuple(Strip(name, tuple(line)) for name, line in zip(names, lines or [[]], strict=False))


def _branches(stage: Stage, node: Node) -> list[list[Cell]]:
    readers = _readers(stage, FULL)
    own = []
    for index, (page, window) in enumerate(zip(*node.pages, strict=True)):
        cell = one_cell(readers.get(int(page), []), _name(node, index))
        own.append(cell if window else HOLE)
    return joined(own, [_branches(stage, child) for child in sorted(node.children, key=_AGE)])


def joined(own: Sequence[Cell], below: Sequence[Sequence[Sequence[Cell]]]) -> list[list[Cell]]:
    """The lines of a node: its first child continues its line, and further children get lines below."""
    if not below:
        return [list(own)]
    lines = []
    for number, block in enumerate(below):
        is_first, is_last = number == 0, number == len(below) - 1
        join = "──" if len(below) == 1 else "┬─" if is_first else "└─" if is_last else "├─"
        for place, line in enumerate(block):
            before = own if is_first and place == 0 else [BLANK] * len(own)
            link = join if place == 0 else "  " if is_last else "│ "
            lines.append([*before, Cell(Look.FAINT, link), *line])
    return lines


def _name(node: Node, index: int) -> str:
    tokens = np.frombuffer(node.key, dtype=np.int32)
    return label(int(tokens[index * PAGE]))


def _labels(stage: Stage, component: int) -> dict[int, str]:
    """The label of every page that has an owner."""
    found = dict(_in_tree(stage, component))
    for letter, holding in _running(stage):
        known = stage.known(letter)
        whole = stage.cache.rules[component].covered(holding)
        for entry, page in enumerate(
            inside(stage.cache).tables[component].read(holding.row, 0, whole).tolist()
        ):
            if page:
                found[page] = label(known[min(entry * PAGE, len(known) - 1)])
    return found


def _in_tree(stage: Stage, component: int) -> Iterator[tuple[int, str]]:
    ahead: list[Node] = list(inside(stage.cache).tree.roots.values())
    while ahead:
        node = ahead.pop()
        ahead += node.children
        for index, page in enumerate(node.pages[component].tolist()):
            if page:
                yield page, _name(node, index)


def _readers(stage: Stage, component: int) -> Readers:
    found: Readers = {}
    for letter, holding in _running(stage):
        for page in stage.cache.page_tables[component][holding.row].tolist():
            if page:
                found.setdefault(page, []).append(letter)
    return found


def _running(stage: Stage) -> list[tuple[str, Holding]]:
    pairs = ((letter, stage.holding(letter)) for letter in stage.requests)
    return [(letter, holding) for letter, holding in pairs if holding is not None]
