"""Children of a tree node: the same answers as a dict and a sorted list, for few and for many."""

import random
from dataclasses import dataclass

import pytest

from transom.kv.children import (
    NO_CHILDREN,
    Children,
    around,
    child_of,
    refresh,
    with_child,
    without_child,
)

PAGE = 3


@dataclass(eq=False)
class Child:
    key: bytes


@pytest.mark.parametrize("letters", [2, 12], ids=["few", "many"])
def test_children_are_found_by_their_first_page_while_they_come_change_and_go(letters: int) -> None:
    draw = random.Random(letters)
    children: Children[Child] = NO_CHILDREN
    known: dict[bytes, Child] = {}

    def page() -> bytes:
        return bytes(draw.randrange(letters) for _ in range(PAGE))

    for _ in range(6000):
        first = page()
        match draw.choice("aaarrc"):
            case "a":
                known[first] = Child(first + bytes(draw.randrange(letters) for _ in range(draw.randrange(4))))
                children = with_child(children, known[first], first)
            case "r" if first in known:
                children = without_child(children, known.pop(first), first)
            case "c" if first in known:  # a leaf grows, or loses its tail
                known[first].key = first + bytes(draw.randrange(letters) for _ in range(draw.randrange(4)))
                refresh(children, known[first], first)
        probe = page()
        assert child_of(children, probe) is known.get(probe)
        assert len(children) == len(known)
    ordered = [known[first] for first in sorted(known)]
    assert list(children) == ordered
    for probe in [page() for _ in range(50)]:
        above, below = around(children, probe)
        assert list(above) == [known[first] for first in sorted(known) if first >= probe]
        assert list(below) == [known[first] for first in sorted(known, reverse=True) if first < probe]
    for first in sorted(known, key=lambda _: draw.random()):
        children = without_child(children, known[first], first)
    assert children == NO_CHILDREN
