"""Shrinks a script that breaks to a small part that still does.

Delta debugging, after Zeller and Hildebrandt (2002).
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from transom_lab.fuzz.campaign import Broken, replay
from transom_lab.fuzz.operations import Operation

REPLAYS_MAX = 3_000

T = TypeVar("T")


def shrink(broken: Broken) -> Broken:
    """Leaves out runs of operations, longest first, as long as the rest still breaks."""
    setting = broken.script[0]
    found = [broken]

    def breaking(operations: Sequence[Operation]) -> int | None:
        again = replay(setting, list(operations))
        if again is None:
            return None
        found.append(again)
        return len(again.script[1])

    smallest_part(broken.script[1], breaking)
    return found[-1]


def smallest_part(whole: Sequence[T], breaking: Callable[[Sequence[T]], int | None]) -> list[T]:
    """A part of `whole`, in its order, that breaks and has no item to spare.

    `breaking` returns the number of items after which the given part broke, if it did. The search ends early
    after `REPLAYS_MAX` calls.
    """
    smallest = list(whole)[: breaking(whole)]
    size = max(1, len(smallest) // 2)
    replays = 0
    while replays < REPLAYS_MAX:
        start, shorter = 0, False
        while start < len(smallest) and replays < REPLAYS_MAX:
            left = smallest[:start] + smallest[start + size :]
            end = breaking(left)
            replays += 1
            if end is None:
                start += size
            else:
                smallest, shorter = left[:end], True
        if size == 1 and not shorter:
            break
        # Repeat single items until all are needed: leaving one out may make another superfluous.
        size = size if shorter and size == 1 else max(1, size // 2)
    return smallest
