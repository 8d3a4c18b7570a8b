"""What requests will need over their lives. Pure.

A request is expected to bring as much output as recent ones let expect, far less than its `max_tokens` as a
rule: optimism, which fills the pools, and which retraction corrects. A request once retracted is readmitted
with `PESSIMISM` times that expectation, for itself and for all that run, twice retracted with its square: it
does not come back just to be thrown out again, and how often it can be retracted is bounded by a logarithm of
`max_tokens`.
"""

from transom.kv.cache import HybridCache, Offer
from transom.kv.page_rules import PageRule
from transom.sched.spans import PageCounts

PESSIMISM = 4
"""Factor on expected outputs for each retraction a request has been through."""


def pages_at(rule: PageRule, end: int) -> int:
    """Pages held of a component, at most, on the way to `end` by a request that grows page by page.

    It takes a new page while it keeps what the boundary before that page needs.
    """
    return rule.held(rule.ceil(end))


def need(cache: HybridCache, offer: Offer, end: int) -> PageCounts:
    """Pages that leave room when a request begins with `offer` and grows to `end`."""
    growth = cache.growth(offer.begin, end)
    return tuple(map(sum, zip(growth, offer.takes, offer.pins, strict=True)))
