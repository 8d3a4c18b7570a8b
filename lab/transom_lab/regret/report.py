"""Regret: how many prompt tokens each cache policy finds, compared with the best possible policy.

The question is: with a given amount of memory, how many of the prompt tokens of a trace could the best
possible eviction policy have found in the cache? A real policy does not know which prompts will come. The
difference shows how much it loses by that, and how much a better policy could gain at most.

The optimum itself is too expensive to compute. Two numbers enclose it:

bound        at most: no policy finds more, even one that knows the whole trace (`bound`, a relaxation)
clairvoyant  at least: a policy that knows the whole trace finds this many on the real cache (`clairvoyant`)

The real eviction policies are replayed on the same cache in the same serving model (`replay`). All results
are prompt tokens found in the cache, summed over the requests of the trace; memory is in bytes that all pools
share.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from transom.errors import ConfigError, NoSpace
from transom.kv.cache import HybridCache
from transom.kv.check import inside
from transom.kv.eviction_policy import CachePolicy
from transom.kv.layout import CacheLayout
from transom_lab.regret.bound import bound
from transom_lab.regret.clairvoyant import Clairvoyant, best_options, memory_of, plan
from transom_lab.regret.problem import Problem, problem_of
from transom_lab.regret.replay import ReplayHook, ReplayRequest, replay, replay_requests, with_memory
from transom_lab.sim.trace import Trace

FRACTIONS = (1.0, 0.5, 0.25)
"""Default memory sizes: these fractions of `RegretTable.all` and of `RegretTable.least`."""


@dataclass(frozen=True, slots=True)
class Regret:
    """Prompt tokens found with `size` bytes. None if a request does not fit in that memory."""

    size: int
    bound: int
    clairvoyant: int | None
    found: Mapping[CachePolicy, int | None]


@dataclass(frozen=True, slots=True)
class RegretTable:
    """The regret of a trace with several sizes of memory, the largest first.

    prompt  tokens of all prompts
    most    tokens found with unlimited memory
    all     bytes in the cache at the end with unlimited memory, when nothing was evicted
    least   bytes with which a policy that knows the trace still finds `most`
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
    """The regret with each of `sizes` bytes; by default, with `FRACTIONS` of two sizes that the trace
    defines.

    Raises ConfigError for a layout whose regret cannot be computed, and for a request longer than its
    context.
    """
    requests = replay_requests(trace)
    longest = max(len(request.tokens) for request in requests)
    if longest > layout.context:
        raise ConfigError(
            f"--regret: a request of {longest} tokens is longer than the context, {layout.context}"
        )
    problem = problem_of(layout, requests)
    unlimited = HybridCache(with_memory(layout, _unlimited(layout, requests)))
    most = sum(replay(unlimited, requests))
    everything = inside(unlimited).budget.in_use()
    least = int(memory_of(problem, best_options(problem)).max())
    wanted = sizes or [int(part * whole) for whole in (everything, least) for part in FRACTIONS]
    rows = tuple(_regret(problem, layout, requests, size) for size in sorted(set(wanted), reverse=True))
    prompts = sum(request.prompt for request in requests)
    return RegretTable(trace.name, prompts, most, everything, least, rows)


def _unlimited(layout: CacheLayout, requests: Sequence[ReplayRequest]) -> int:
    """More bytes than the requests can use, though each took all its pages anew and one more to copy."""
    pages = sum(-(-len(request.tokens) // layout.page_size) + 1 for request in requests)
    return 2 * pages * sum(layout.page_bytes)


def _regret(problem: Problem, layout: CacheLayout, requests: Sequence[ReplayRequest], size: int) -> Regret:
    limit = bound(problem, size)
    clairvoyant = Clairvoyant(problem, plan(problem, size, limit))
    best = _found(with_memory(layout, size), requests, clairvoyant)
    found = {policy: _found(with_memory(layout, size, policy), requests) for policy in CachePolicy}
    # Where not even the rows of the requests fit, the relaxed sum can fall below zero.
    return Regret(size, max(0, int(limit.tokens)), best, found)


def _found(
    layout: CacheLayout, requests: Sequence[ReplayRequest], hook: ReplayHook | None = None
) -> int | None:
    try:
        return sum(replay(HybridCache(layout), requests, hook))
    except (NoSpace, ConfigError):
        return None


# ---------------------------------------------------------------- output


def rich_table(regret: RegretTable) -> Table:
    """The clairvoyant's tokens and its share of the bound; of each policy, its share of the clairvoyant's."""
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
        f"regret of {regret.name}, one request at a time: {regret.most:,} of {regret.prompt:,} prompt tokens "
        "are found if nothing is evicted\n"
        f"all: {regret.all / 2**20:,.0f} MiB are cached then; least: a policy that knows the trace finds as "
        f"many with {regret.least / 2**20:,.0f} MiB\n"
        "policies are in % of the clairvoyant's tokens, the clairvoyant is in % of the bound (at most)"
    )


def _share(part: int | None, whole: int | None) -> str:
    if part is None:
        return "does not fit"
    return f"{part / whole:.1%}" if whole else "-"
