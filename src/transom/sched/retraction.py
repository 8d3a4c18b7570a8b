"""Whom to retract when a running request needs a page and none is to be had. Pure."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from transom.sched.spans import Pages

COMPARED = 16
"""Victims compared by price, from the junior end. More would cost time just when there is none."""

V = TypeVar("V")


Enough = Callable[[Pages], bool]
"""Whether what is needed can be had once so many pages more have come to be had."""


def choose_victims(
    enough: Enough,
    juniors: Sequence[V],
    *,
    releases: Callable[[Sequence[V]], Pages],
    recompute: Callable[[V], int],
) -> tuple[V, ...]:
    """The fewest of `juniors` (most junior first) whose retraction releases enough, () if none do.

    One is enough most of the time: the one with the fewest tokens to recompute per page released, the
    most junior of equals. Else several, from the junior end.
    """
    one = _cheapest_one(enough, juniors[:COMPARED], releases, recompute)
    return one or _several(enough, juniors, releases)


def _cheapest_one(
    enough: Enough,
    juniors: Sequence[V],
    releases: Callable[[Sequence[V]], Pages],
    recompute: Callable[[V], int],
) -> tuple[V, ...]:
    gains = [releases((victim,)) for victim in juniors]
    suited = [i for i, gain in enumerate(gains) if enough(gain)]
    if not suited:
        return ()
    return (juniors[min(suited, key=lambda i: (recompute(juniors[i]) / max(1, sum(gains[i])), i))],)


def _several(enough: Enough, juniors: Sequence[V], releases: Callable[[Sequence[V]], Pages]) -> tuple[V, ...]:
    for count in range(2, len(juniors) + 1):
        if enough(releases(juniors[:count])):
            return tuple(juniors[:count])
    return ()
