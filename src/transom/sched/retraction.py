"""Whom to retract when a running request needs a page and none is to be had. Pure."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from transom.sched.spans import PageCounts

COMPARED = 16
"""Victims compared by price, from the junior end. More would cost time just when there is none."""

V = TypeVar("V")

Enough = Callable[[PageCounts], bool]
"""Whether what is needed can be had once so many pages more have come to be had."""

Price = Callable[[V, PageCounts], float]
"""What it costs, per byte, that a victim gives so many pages."""


def choose_victims(
    enough: Enough, juniors: Sequence[V], *, releases: Callable[[Sequence[V]], PageCounts], price: Price[V]
) -> tuple[V, ...]:
    """The fewest of `juniors` (most junior first) whose retraction releases enough, () if none do.

    One is enough most of the time: the cheapest of those compared, the most junior of equals; or else the
    first that is enough alone. Only if nobody is, several, from the junior end.
    """
    return (
        _cheapest_one(enough, juniors[:COMPARED], releases, price)
        or _first_one(enough, juniors[COMPARED:], releases)
        or _several(enough, juniors, releases)
    )


def price_per_byte(gain: PageCounts, page_bytes: Sequence[int], recompute: int) -> float:
    """Tokens to recompute for each byte of `gain`."""
    return recompute / max(1, sum([pages * size for pages, size in zip(gain, page_bytes, strict=True)]))


def _cheapest_one(
    enough: Enough, juniors: Sequence[V], releases: Callable[[Sequence[V]], PageCounts], price: Price[V]
) -> tuple[V, ...]:
    gains = [releases((victim,)) for victim in juniors]
    suited = [i for i, gain in enumerate(gains) if enough(gain)]
    if not suited:
        return ()
    return (juniors[min(suited, key=lambda i: (price(juniors[i], gains[i]), i))],)


def _first_one(
    enough: Enough, juniors: Sequence[V], releases: Callable[[Sequence[V]], PageCounts]
) -> tuple[V, ...]:
    return next(((victim,) for victim in juniors if enough(releases((victim,)))), ())


def _several(
    enough: Enough, juniors: Sequence[V], releases: Callable[[Sequence[V]], PageCounts]
) -> tuple[V, ...]:
    for count in range(2, len(juniors) + 1):
        if enough(releases(juniors[:count])):
            return tuple(juniors[:count])
    return ()
