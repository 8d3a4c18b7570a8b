"""How long a chunk is: arithmetic on a token budget, page boundaries and pages to be had."""

from collections.abc import Callable

from transom.kv.budget import PageCounts

__all__ = ["PageCounts", "chunk_end", "fit_end", "is_cut"]


def chunk_end(start: int, known: int, budget: int, page_size: int) -> int:
    """The end of a chunk from `start` within `budget` tokens, `start` when there is no budget.

    A chunk that does not reach the last known token ends on a page boundary, unless the budget does not
    reach one: then it takes what there is, and the next chunk finds back to the boundaries.
    """
    end = min(known, start + budget)
    aligned = end - end % page_size
    return aligned if end < known and aligned > start else end


def is_cut(end: int, known: int, page_size: int) -> bool:
    """Whether a chunk ends early and inside a page: worth it only when the step has nothing better."""
    return end < known and end % page_size != 0


def fit_end(start: int, end: int, page_size: int, lacking: Callable[[int], int]) -> int:
    """The furthest end up to `end` for which `lacking(end)` pages is not positive; `start` if there is none.

    Each round steps back by what lacks.
    """
    while end > start:
        over = lacking(end)
        if over <= 0:
            return end
        end = (-(-end // page_size) - over) * page_size
    return start
