"""Prefixes that a request of this step computes right now, and who should wait for them. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from transom.kv.cache import Namespace
from transom.values import Tokens


@dataclass(frozen=True, slots=True)
class Publisher:
    """A request with a row, as one who shares its prefix sees it: known tokens, `computed` of them done."""

    namespace: Namespace
    tokens: Tokens
    computed: int

    def has_more(self, page_size: int) -> bool:
        """Whether a page of known tokens is still to be published."""
        return self.computed // page_size < len(self.tokens) // page_size


def is_promised(
    publishers: Iterable[Publisher],
    namespace: Namespace,
    tokens: Tokens,
    *,
    cached: int,
    page_size: int,
    gain_min: int,
) -> bool:
    """Whether one of `publishers` will publish at least `gain_min` tokens of `tokens` beyond `cached`."""
    return any(
        _gain(publisher, tokens, cached, page_size) >= gain_min
        for publisher in publishers
        if publisher.namespace == namespace
    )


def _gain(publisher: Publisher, tokens: Tokens, cached: int, page_size: int) -> int:
    """Tokens beyond `cached`; 0 when they are published already, or never will be.

    published          reach    publishable
    ----------|--------------|==========|---  publisher's tokens
    """
    published = publisher.computed - publisher.computed % page_size
    publishable = len(publisher.tokens) - len(publisher.tokens) % page_size
    if published == publishable:
        return 0
    reach = min(common_prefix(publisher.tokens, tokens), publishable, len(tokens) - 1)
    return reach - cached if reach > published else 0


def common_prefix(a: Tokens, b: Tokens) -> int:
    """Length of the longest common prefix."""
    shared = min(len(a), len(b))
    if shared == 0 or a[0] != b[0]:
        return 0
    differ = a[:shared] != b[:shared]
    first = int(np.argmax(differ))
    return first if differ[first] else shared
