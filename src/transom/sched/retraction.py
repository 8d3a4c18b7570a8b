"""Choice of the requests to retract when a running request needs a page that is not available. Pure."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from transom.kv.budget import PageCounts

COMPARED = 16
"""Victims compared by price, from the junior end. More would cost time in the steps that have the least."""

V = TypeVar("V")

Enough = Callable[[PageCounts], bool]
"""Whether the need is met after this many more pages are freed."""

Price = Callable[[V, PageCounts], float]
"""Cost of retracting a victim, per byte of the pages that this frees."""


def choose_victims(
    enough: Enough, juniors: Sequence[V], *, freed_by: Callable[[Sequence[V]], PageCounts], price: Price[V]
) -> tuple[V, ...]:
    """The fewest of `juniors` (most junior first) that free enough; () if all of them together do not.

    A single victim is enough most of the time: the cheapest of the first `COMPARED`, or the most junior of
    equally cheap ones; failing that, the first of the rest that is enough. Only if every junior alone is too
    little, several are taken from the junior end.
    """
    return (
        _cheapest_one(enough, juniors[:COMPARED], freed_by, price)
        or _first_one(enough, juniors[COMPARED:], freed_by)
        or _several(enough, juniors, freed_by)
    )


def price_per_byte(gain: PageCounts, page_bytes: Sequence[int], recompute: int) -> float:
    """Tokens to recompute for each byte of `gain`."""
    return recompute / max(1, sum([pages * size for pages, size in zip(gain, page_bytes, strict=True)]))


def _cheapest_one(
    enough: Enough, juniors: Sequence[V], freed_by: Callable[[Sequence[V]], PageCounts], price: Price[V]
) -> tuple[V, ...]:
    gains = [freed_by((victim,)) for victim in juniors]
    # The index breaks ties, so that equal prices retract the most junior one.
    suited = [i for i, gain in enumerate(gains) if enough(gain)]
    if not suited:
        return ()
    return (juniors[min(suited, key=lambda i: (price(juniors[i], gains[i]), i))],)


def _first_one(
    enough: Enough, juniors: Sequence[V], freed_by: Callable[[Sequence[V]], PageCounts]
) -> tuple[V, ...]:
    return next(((victim,) for victim in juniors if enough(freed_by((victim,)))), ())


def _several(
    enough: Enough, juniors: Sequence[V], freed_by: Callable[[Sequence[V]], PageCounts]
) -> tuple[V, ...]:
    # Only stretches from the junior end: the choice among all subsets would be exponential, and a junior has
    # the least claim to its pages.
    for count in range(2, len(juniors) + 1):
        if enough(freed_by(juniors[:count])):
            return tuple(juniors[:count])
    return ()
