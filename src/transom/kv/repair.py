"""Repair: windows that are gone, rebuilt from full pages that are not. Pure."""

from transom.kv.page_rules import PageRule, first_needed


def repair_start(grids: tuple[PageRule, ...], layers: tuple[int, ...], until: int) -> int:
    """Where to begin so that everything is exact from `until` on, and each window from its `keep(until)`.

    `layers` names the component of every layer of the model, in order. Components that keep everything are
    resident up to `until`, which is a page boundary; of the others nothing is.

        start           keep(until)     until
        |~~~~~~~~~~~~~~~|===============|======
         inexact          windows exact   all exact

    The output of a window layer is exact at t if its keys from needed(t) on are: so each layer, from the last
    to the first, moves the start back by a window. A full layer reads keys that are there, and adds nothing.
    """
    assert until % grids[0].page_size == 0, (until, grids[0].page_size)
    start = until
    for component in reversed(layers):
        grid = grids[component]
        if not grid.rooted:
            start = min(grid.keep(until) * grid.page_size, first_needed(grid.component, start))
    return start
