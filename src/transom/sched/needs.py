"""What requests will need over their lives. Pure.

A request is expected to bring as much output as finished ones brought on the mean, far less than its
`max_tokens` as a rule: optimism, which fills the pools, and which retraction corrects. A request once
retracted is readmitted with `PESSIMISM` times that expectation, for itself and for all that run, twice
retracted with its square: it does not come back just to be thrown out again, and how often it can be
retracted is bounded by a logarithm of `max_tokens`.
"""

from collections.abc import Iterable

from transom.kv.components import PageRule
from transom.kv.holding import Holding
from transom.sched.spans import Pages

PESSIMISM = 4
"""Factor on expected outputs for each retraction a request has been through."""

MEMORY = 8
"""Finished requests over which outputs are averaged, more or less."""


def averaged(mean: float, outputs: int) -> float:
    """The running mean of output lengths after one more."""
    return mean + (outputs - mean) / MEMORY


def expected_end(length: int, outputs: int, kv_limit: int, outputs_expected: int) -> int:
    """The position a request is expected to reach: further than it is, as long as it may go further."""
    return min(kv_limit, length + max(1, outputs_expected - outputs))


def pages_at(grid: PageRule, end: int) -> int:
    """Pages held of a component, at most, on the way to `end` by a request that grows page by page.

    It takes a new page while it keeps what the boundary before that page needs.
    """
    return grid.held(grid.ceil(end))


def still_to_take(grids: Iterable[PageRule], holding: Holding, end: int) -> Pages:
    """Pages per component that a running request will hold at `end` beyond those it holds now.

    Never more than it grows by, and less where it slides: what falls out of a window pays for what comes.
    """
    return tuple(
        max(
            0,
            min(
                grid.entries(end) - holding.covered(grid),
                pages_at(grid, end) - (holding.covered(grid) - kept),
            ),
        )
        for grid, kept in zip(grids, holding.kept, strict=True)
    )


def added(a: Pages, b: Pages) -> Pages:
    return tuple(x + y for x, y in zip(a, b, strict=True))
