"""The memory core: admit, extend, advance, publish, slide, truncate, drop."""

from collections.abc import Iterator
from contextlib import contextmanager

from transom.kv.holding import Begin, Holding, Namespace, Offer
from transom.kv.journal import Savepoint, Transaction
from transom.kv.layout import CacheLayout, PrefixCaching
from transom.kv.rows import RowTable
from transom.kv.stats import CacheStats
from transom.values import PageCopy, RequestId, Tokens

__all__ = ["Begin", "CacheLayout", "CacheStats", "Holding", "HybridCache", "Namespace", "Offer", "PrefixCaching",
           "RowTable", "Savepoint", "Transaction"]


class HybridCache:
    """Owns pools, rows and tree. Queries change nothing; each transition is all or nothing."""

    layout: CacheLayout
    rows: tuple[RowTable, ...]

    def __init__(self, layout: CacheLayout) -> None:
        """Raises ConfigError, naming the minimum, if one request with the smallest chunk cannot run."""
        raise NotImplementedError

    # ---------------------------------------------------------------- queries

    def namespace(self, request: RequestId, salt: str) -> Namespace:
        """The namespace of the current epoch."""
        raise NotImplementedError

    def offer(self, namespace: Namespace, tokens: Tokens) -> Offer:
        """The longest hit that leaves at least one token of `tokens` to compute, token-exact; or `cold()`."""
        raise NotImplementedError

    def cold(self) -> Offer:
        raise NotImplementedError

    def room(self) -> tuple[int, ...]:
        """Pages to be had per component: free, or of the tree and unreferenced. Exact."""
        raise NotImplementedError

    def growth(self, holding: Holding | None, begin_start: int, end: int) -> tuple[int, ...]:
        """Pages that extend(holding, end) would take; with None, after an admission at `begin_start`."""
        raise NotImplementedError

    def fits_alone(self, tokens: int, chunk: int) -> bool:
        raise NotImplementedError

    def longest_alone(self, chunk: int) -> int:
        raise NotImplementedError

    def stats(self) -> CacheStats:
        raise NotImplementedError

    def check(self) -> None:
        """All invariants; AssertionError with the values."""
        raise NotImplementedError

    # ---------------------------------------------------------------- transitions

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Whatever happens inside happens wholly, or on an exception not at all."""
        raise NotImplementedError
        yield

    def admit(self, request: RequestId, namespace: Namespace, tokens: Tokens, offer: Offer) -> Holding:
        """A row, references to the hit's pages, and a copy of the partial page. Raises NoSpace.

        NoSpace names `rows` when none is free and `prefix` when the tree no longer has the offered hit.
        """
        raise NotImplementedError

    def extend(self, holding: Holding, end: int) -> None:
        """Pages up to `end` in every component, reclaimed where free ones are short. Raises NoSpace."""
        raise NotImplementedError

    def advance(self, holding: Holding, end: int) -> None:
        """The runner has computed up to `end`."""
        raise NotImplementedError

    def truncate(self, holding: Holding, end: int) -> None:
        """Gives back the pages beyond `end`, which is not before `computed`."""
        raise NotImplementedError

    def publish(self, holding: Holding, tokens: Tokens) -> None:
        """Gives the computed whole pages to the tree. `tokens` are the request's, at least the computed ones."""
        raise NotImplementedError

    def slide(self, holding: Holding) -> None:
        """Gives back or unreferences what fell out of the window."""
        raise NotImplementedError

    def drop(self, holding: Holding) -> None:
        """The row ends: private pages to the pool, references released. Not published: publish first."""
        raise NotImplementedError

    def pending_copies(self) -> tuple[PageCopy, ...]:
        """To run before any kernel of the next step."""
        raise NotImplementedError

    def copies_done(self) -> None:
        """The pending copies have run; their sources are released."""
        raise NotImplementedError

    def flush(self) -> None:
        """A new epoch: nothing cached is found any more; running requests go on."""
        raise NotImplementedError
