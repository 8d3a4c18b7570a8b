"""Why a hit ends where it ends. For people: slow, and a query."""

from dataclasses import dataclass

from transom.kv.events import EventLog
from transom.kv.holding import Namespace
from transom.kv.match import best_hit, candidates, repaired
from transom.kv.page_rules import PageRule
from transom.kv.radix_tree import Path, PrefixTree
from transom.values import RequestId


@dataclass(frozen=True, slots=True)
class Diverged:
    """Nobody has computed these tokens further than `at`, as far as is remembered."""

    at: int


@dataclass(frozen=True, slots=True)
class Evicted:
    """Positions from `at` on were there; they went in step `step`, for `request` if for anybody."""

    component: str
    at: int
    step: int
    request: RequestId | None


@dataclass(frozen=True, slots=True)
class Hole:
    """Positions [start, end) are needed at `Explanation.shared` and not there.

    `step` is None if they were never there, as far as is remembered: slid before they were given to the tree.
    """

    component: str
    start: int
    end: int
    step: int | None
    request: RequestId | None


Reason = Diverged | Evicted | Hole


@dataclass(frozen=True, slots=True)
class Explanation:
    """`start` is where the longest hit begins, `shared` how many tokens the tree has of it in any component.

    `lost` tokens are computed again though they were computed once. `repair` is where a repair would begin,
    and does, if that computes less; None if it would not.
    """

    start: int
    shared: int
    reasons: tuple[Reason, ...]
    repair: int | None = None

    @property
    def lost(self) -> int:
        return self.shared - self.start


def explain(
    tree: PrefixTree,
    rules: tuple[PageRule, ...],
    layers: tuple[int, ...],
    log: EventLog,
    namespace: Namespace,
    key: bytes,
) -> Explanation:
    """Of a request whose tokens, but for the last, are `key`; `layers` as in the layout."""
    path = tree.walk(namespace, key)
    hit = best_hit(tree, rules, namespace, key)
    repair = repaired(hit, rules, layers)
    start = hit.begin.start
    page = tree.page_bytes
    tail = key[path.pages * page : (path.pages + 1) * page]
    within = max([tokens for _, _, tokens in candidates(path, path.pages, tail)], default=0)
    shared = path.pages * rules[0].page_size + within
    assert start <= shared, (start, shared)
    reasons: list[Reason] = []
    if shared * 4 < len(key):
        reasons.append(_why_no_further(tree, rules, log, namespace, key, path, shared))
    if start < shared:
        for component, rule in enumerate(rules):
            reasons += _holes(log, namespace, key, path, shared, component, rule)
    return Explanation(start, shared, tuple(reasons), repair.begin.start if repair else None)


def _why_no_further(
    tree: PrefixTree,
    rules: tuple[PageRule, ...],
    log: EventLog,
    namespace: Namespace,
    key: bytes,
    path: Path,
    shared: int,
) -> Reason:
    end = (path.pages + 1) * tree.page_bytes
    if end <= len(key):
        for component, rule in enumerate(rules):
            removal = log.last_removal(component, namespace, key[:end])
            if removal is not None:
                at = path.pages * rule.page_size
                return Evicted(rule.component.name, at, removal.step, removal.request)
    return Diverged(shared)


def _holes(
    log: EventLog, namespace: Namespace, key: bytes, path: Path, end: int, component: int, rule: PageRule
) -> list[Reason]:
    """Runs of pages that a hit at `end` would read and the path lacks, those that went together in one."""
    resident, size = path.residency(component), rule.page_size * 4
    found: list[Reason] = []
    for page in range(min(rule.needed(end), path.pages), path.pages):
        if resident[page]:
            continue
        removal = log.last_removal(component, namespace, key[: (page + 1) * size])
        step, request = (removal.step, removal.request) if removal else (None, None)
        start, stop = page * rule.page_size, (page + 1) * rule.page_size
        last = found[-1] if found else None
        if isinstance(last, Hole) and (last.end, last.step, last.request) == (start, step, request):
            found[-1] = Hole(last.component, last.start, stop, step, request)
        else:
            found.append(Hole(rule.component.name, start, stop, step, request))
    return found
