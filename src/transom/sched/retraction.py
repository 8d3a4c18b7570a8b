"""Whom to retract when a running request needs a page and none is to be had. Pure."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from transom.sched.spans import Pages, shortage

COMPARED = 16
"""Victims compared by price, from the junior end. More would cost time just when there is none."""

V = TypeVar("V")


def choose_victims(
    lack: Pages,
    juniors: Sequence[V],
    *,
    releases: Callable[[Sequence[V]], Pages],
    recompute: Callable[[V], int],
) -> tuple[V, ...]:
    """The fewest of `juniors` (most junior first) whose retraction releases `lack` pages, () if none do.

    One is enough most of the time: the one with the fewest tokens to recompute per page released, the
    most junior of equals. Else several, from the junior end.
    """
    return _cheapest_one(lack, juniors[:COMPARED], releases, recompute) or _several(lack, juniors, releases)


def _cheapest_one(
    lack: Pages,
    juniors: Sequence[V],
    releases: Callable[[Sequence[V]], Pages],
    recompute: Callable[[V], int],
) -> tuple[V, ...]:
    gains = [releases((victim,)) for victim in juniors]
    enough = [i for i, gain in enumerate(gains) if shortage(lack, gain) <= 0]
    if not enough:
        return ()
    return (juniors[min(enough, key=lambda i: (recompute(juniors[i]) / max(1, sum(gains[i])), i))],)


def _several(lack: Pages, juniors: Sequence[V], releases: Callable[[Sequence[V]], Pages]) -> tuple[V, ...]:
    for count in range(2, len(juniors) + 1):
        if shortage(lack, releases(juniors[:count])) <= 0:
            return tuple(juniors[:count])
    return ()
