"""Where a repair may start, found by trying every start.

A repair recomputes tokens for their window pages. Its first tokens lack keys, so their outputs are
inexact; a token is exact in a layer if it reads all its keys and all of them are exact. This module follows
that rule token by token and layer by layer, with no formula of `transom.kv.repair`.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from transom.kv.component_specs import ComponentSpec
from transom_lab.worlds.mixes import first_key, keeps_everything

Mask = NDArray[np.bool_]


def exact_after(kind: ComponentSpec, exact: Mask, start: int) -> Mask:
    """Which tokens from `start` on leave a layer exact, if it has no key before `start`."""
    return np.array(
        [
            first_key(kind, t) >= start and bool(exact[first_key(kind, t) - start : t - start + 1].all())
            for t in range(start, start + len(exact))
        ],
        dtype=np.bool_,
    )


def is_enough(kinds: tuple[ComponentSpec, ...], page_size: int, context: int, until: int, start: int) -> bool:
    """Whether computing from `start` makes every window page before `until`, and the token there, exact.

    `kinds` is the component of each layer, in order. Layers that keep everything are resident up to `until`.
    """
    exact = np.ones(until + 1 - start, dtype=np.bool_)
    for kind in kinds:
        if keeps_everything(kind, context):
            continue
        first = first_key(kind, until) // page_size * page_size
        if first < start or not exact[first - start :].all():
            return False
        exact = exact_after(kind, exact, start)
    return bool(exact[-1])


@cache
def latest_start(kinds: tuple[ComponentSpec, ...], page_size: int, context: int, until: int) -> int:
    """The last start that is enough. 0, a cold start, always is."""
    starts = range(until, 0, -1)
    return next((s for s in starts if is_enough(kinds, page_size, context, until, s)), 0)
