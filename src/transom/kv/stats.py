"""Statistics of a cache: immutable snapshots, and the counters that feed them."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from transom.kv.holding import StartPoint
from transom.kv.journal import Journal
from transom.kv.pool import PagePool


@dataclass(frozen=True, slots=True)
class ComponentStats:
    """Pages of one component: capacity = free + referenced + unreferenced + private.

    The last three are totals since the start: pages evicted, holes that publications filled, and pages freed
    at publication because the tree had the same.
    """

    name: str
    capacity: int
    free: int
    referenced: int
    unreferenced: int
    private: int
    evicted: int
    holes_filled: int
    duplicates_returned: int


@dataclass(frozen=True, slots=True)
class CacheStats:
    """One cache. The last five are totals since the start.

    hit_tokens   tokens that were not computed, thanks to hits and repairs
    pages_copied pages copied for hits that end inside a page, over all components
    """

    components: tuple[ComponentStats, ...]
    page_size: int
    rows_used: int
    epoch: int
    admitted: int
    hits: int
    hit_tokens: int
    pages_copied: int
    repairs: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """Totals of one component, see ComponentStats."""

    evicted: int = 0
    holes_filled: int = 0
    duplicates_returned: int = 0


class Admissions(NamedTuple):
    admitted: int = 0
    hits: int = 0
    hit_tokens: int = 0
    pages_copied: int = 0
    repairs: int = 0


class Counters:
    """Owns the totals. Mutable; a rollback takes back the counts of its transitions."""

    __slots__ = ("_journal", "admissions", "traffic")

    def __init__(self, components: int, journal: Journal) -> None:
        self.traffic: tuple[Traffic, ...] = (Traffic(),) * components
        self.admissions = Admissions()
        self._journal = journal

    def add(self, component: int, **counts: int) -> None:
        """Adds to the totals of one component, by name."""
        assert counts and min(counts.values()) >= 0, counts
        # New tuples instead of changes in place, so that a rollback only has to put the old one back.
        old = self.traffic[component]
        new = replace(old, **{name: getattr(old, name) + count for name, count in counts.items()})
        self._journal.assign(
            self, "traffic", (*self.traffic[:component], new, *self.traffic[component + 1 :])
        )

    def admit(self, begin: StartPoint, pages_copied: int) -> None:
        assert pages_copied >= 0, pages_copied
        old = self.admissions
        new = Admissions(
            old.admitted + 1,
            # A repair is counted apart from hits.
            old.hits + (begin.start > 0 and not begin.is_repair),
            old.hit_tokens + begin.start,
            old.pages_copied + pages_copied,
            old.repairs + begin.is_repair,
        )
        self._journal.assign(self, "admissions", new)


def component_stats(pool: PagePool, traffic: Traffic) -> ComponentStats:
    assert pool.free + pool.tree <= pool.capacity and pool.idle <= pool.tree, (
        pool.name,
        pool.free,
        pool.tree,
    )
    return ComponentStats(
        name=pool.name,
        capacity=pool.capacity,
        free=pool.free,
        referenced=pool.tree - pool.idle,
        unreferenced=pool.idle,
        private=pool.capacity - pool.free - pool.tree,
        evicted=traffic.evicted,
        holes_filled=traffic.holes_filled,
        duplicates_returned=traffic.duplicates_returned,
    )
