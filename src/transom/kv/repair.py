"""Repair: windows that are gone, rebuilt from full pages that are not. Pure."""

from transom.kv.page_rules import PageRule, first_needed


def repair_start(rules: tuple[PageRule, ...], layers: tuple[int, ...], until: int) -> int:
    """Where to begin so that everything is exact from `until` on, and each window from its `keep(until)`.

    `layers` names the component of every layer of the model, in order. Components that keep everything are
    resident up to `until`, which is a page boundary; of the others nothing is.

        start           keep(until)     until
        |~~~~~~~~~~~~~~~|===============|======
         inexact          windows exact   all exact

    The output of a window layer is exact at t if its keys from needed(t) on are: so each layer, from the last
    to the first, moves the start back by a window. A full layer reads keys that are there, and adds nothing.
    """
    assert until % rules[0].page_size == 0, (until, rules[0].page_size)
    start = until
    for component in reversed(layers):
        rule = rules[component]
        if not rule.keeps_all:
            start = min(rule.keep(until) * rule.page_size, first_needed(rule.component, start))
    return start
