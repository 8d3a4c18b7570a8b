"""Of a script that breaks, a small part that still does: delta debugging (Zeller and Hildebrandt, 2002)."""

from transom.fuzz.campaign import Broken, replay
from transom.fuzz.operations import Operation

REPLAYS_MAX = 3_000


def shrink(broken: Broken) -> Broken:
    """Leaves out runs of operations, longest first, as long as what is left breaks somewhere."""
    smallest = replay(*broken.script) or broken
    size = max(1, len(smallest.script[1]) // 2)
    replays = 0
    while replays < REPLAYS_MAX:
        start, shorter = 0, False
        while start < len(smallest.script[1]) and replays < REPLAYS_MAX:
            found = _without(smallest, start, size)
            replays += 1
            if found is None:
                start += size
            else:
                smallest, shorter = found, True
        if size == 1 and not shorter:
            break
        size = size if shorter and size == 1 else max(1, size // 2)
    return smallest


def _without(broken: Broken, start: int, size: int) -> Broken | None:
    setting, operations = broken.script
    left: list[Operation] = operations[:start] + operations[start + size :]
    return replay(setting, left)
