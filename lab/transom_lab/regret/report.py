"""Regret: what cache policies find in a trace, against who knows the trace, and against what nobody could."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from transom.errors import ConfigError, NoSpace
from transom.kv.cache import HybridCache
from transom.kv.check import inside
from transom.kv.eviction_policy import CachePolicy
from transom.kv.layout import CacheLayout
from transom_lab.regret.bound import Problem, bound, problem_of
from transom_lab.regret.clairvoyant import Clairvoyant
from transom_lab.regret.plan import most, plan, used_by_slot
from transom_lab.regret.replay import Access, Watcher, accesses, replay, with_memory
from transom_lab.sim.trace import Trace

PARTS = (1.0, 0.5, 0.25)
"""Of all that a trace leaves, and of the least that loses nothing: the memory to look at, if nobody says."""


@dataclass(frozen=True, slots=True)
class Regret:
    """Tokens found with `size` bytes: at most by anybody, by the clairvoyant policy, by each other policy.

    None where a request does not fit.
    """

    size: int
    bound: int
    clairvoyant: int | None
    found: Mapping[CachePolicy, int | None]


@dataclass(frozen=True, slots=True)
class RegretTable:
    """Of a trace, played one request after the other.

    prompt  tokens of all prompts
    most    tokens found if nothing is ever given back
    all     bytes that are left behind then
    least   bytes with which one who knows the trace loses none of it
    """

    name: str
    prompt: int
    most: int
    all: int
    least: int
    rows: tuple[Regret, ...]

    def as_json(self) -> dict[str, object]:
        rows = [
            {
                "bytes": row.size,
                "bound": row.bound,
                "clairvoyant": row.clairvoyant,
                **{policy.value: found for policy, found in row.found.items()},
            }
            for row in self.rows
        ]
        head = {"trace": self.name, "prompt_tokens": self.prompt, "hit_tokens_most": self.most}
        return {**head, "bytes_all": self.all, "bytes_least": self.least, "rows": rows}


def regret_table(trace: Trace, layout: CacheLayout, sizes: Sequence[int] = ()) -> RegretTable:
    """At each of `sizes` bytes; without any, at parts of all that the trace leaves, and of the least it
    needs to lose nothing.

    Raises ConfigError where regret is not known for such a layout, or a request is longer than its context.
    """
    requests = accesses(trace)
    longest = max(len(request.tokens) for request in requests)
    if longest > layout.context:
        raise ConfigError(
            f"--regret: a request of {longest} tokens is longer than the context, {layout.context}"
        )
    problem = problem_of(layout, requests)
    unlimited = HybridCache(with_memory(layout, _plenty(layout, requests)))
    found = sum(replay(unlimited, requests))
    everything = inside(unlimited).budget.in_use()
    least = int(used_by_slot(problem, most(problem)).max())
    wanted = sizes or [int(part * whole) for whole in (everything, least) for part in PARTS]
    rows = tuple(_regret(problem, layout, requests, size) for size in sorted(set(wanted), reverse=True))
    prompts = sum(request.prompt for request in requests)
    return RegretTable(trace.name, prompts, found, everything, least, rows)


def _plenty(layout: CacheLayout, requests: Sequence[Access]) -> int:
    pages = sum(-(-len(request.tokens) // layout.page_size) + 1 for request in requests)
    return 2 * pages * sum(layout.page_bytes)


def _regret(problem: Problem, layout: CacheLayout, requests: Sequence[Access], size: int) -> Regret:
    priced = bound(problem, size)
    clairvoyant = Clairvoyant(problem, plan(problem, size, priced))
    best = _found(with_memory(layout, size), requests, clairvoyant)
    found = {policy: _found(with_memory(layout, size, policy), requests) for policy in CachePolicy}
    return Regret(size, max(0, int(priced.tokens)), best, found)


def _found(layout: CacheLayout, requests: Sequence[Access], watcher: Watcher | None = None) -> int | None:
    try:
        return sum(replay(HybridCache(layout), requests, watcher))
    except (NoSpace, ConfigError):
        return None


# ---------------------------------------------------------------- telling


def rich_table(regret: RegretTable) -> Table:
    """Tokens found by the clairvoyant, and its share of the bound; of others, shares of the clairvoyant's."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("MiB", "of all", "of least", "at most", "clairvoyant", *CachePolicy):
        table.add_column(name, justify="right", no_wrap=True)
    for row in regret.rows:
        shares = [_share(row.found[policy], row.clairvoyant) for policy in CachePolicy]
        clairvoyant = _share(row.clairvoyant, row.bound)
        if row.clairvoyant is not None:
            clairvoyant = f"{row.clairvoyant:,} ({clairvoyant})"
        parts = [f"{row.size / whole:.0%}" for whole in (regret.all, regret.least)]
        table.add_row(f"{row.size / 2**20:,.0f}", *parts, f"{row.bound:,}", clairvoyant, *shares)
    return table


def heading(regret: RegretTable) -> str:
    return (
        f"regret of {regret.name}, one request after the other: at most {regret.most:,} of {regret.prompt:,} "
        f"prompt tokens are found\nall it leaves is {regret.all / 2**20:,.0f} MiB; who knows the trace needs "
        f"{regret.least / 2**20:,.0f} MiB to lose nothing. Shares are of what the clairvoyant finds"
    )


def _share(part: int | None, whole: int | None) -> str:
    if part is None:
        return "does not fit"
    return f"{part / whole:.1%}" if whole else "-"
