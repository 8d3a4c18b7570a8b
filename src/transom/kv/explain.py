"""Explains why a hit ends where it ends. A slow query, for people."""

from dataclasses import dataclass

from transom.kv.events import EventLog
from transom.kv.holding import Namespace
from transom.kv.match import best_hit, partial_matches, repaired
from transom.kv.node import TOKEN_BYTES, Path
from transom.kv.page_rules import PageRule
from transom.kv.radix_tree import RadixTree
from transom.values import RequestId


@dataclass(frozen=True, slots=True)
class Diverged:
    """No request has computed these tokens beyond `at`, as far as the event log goes back."""

    at: int


@dataclass(frozen=True, slots=True)
class Evicted:
    """Positions from `at` on were evicted in step `step`, for `request`, if for a particular one."""

    component: str
    at: int
    step: int
    request: RequestId | None


@dataclass(frozen=True, slots=True)
class Hole:
    """A hit at `Explanation.shared` reads positions [start, end), which are not cached.

    step, request the eviction, as in Evicted. Without a step they were never cached, as far as the event
                  log goes back: the window had passed them before they were published
    """

    component: str
    start: int
    end: int
    step: int | None
    request: RequestId | None


Reason = Diverged | Evicted | Hole


@dataclass(frozen=True, slots=True)
class Explanation:
    """How much of a prompt is cached.

    start   first token to compute after the longest hit
    shared  tokens of the prompt in the tree, in any component
    reasons why `shared` is not more, and why `start` is not at `shared`
    repair  where a repair would start, if that computes less than the hit; otherwise None
    """

    start: int
    shared: int
    reasons: tuple[Reason, ...]
    repair: int | None = None

    @property
    def lost(self) -> int:
        """Tokens to compute again, although the tree has them in some component."""
        return self.shared - self.start


def explain(
    tree: RadixTree, layers: tuple[int, ...], log: EventLog, namespace: Namespace, key: bytes
) -> Explanation:
    """Explains the hit of a request with the tokens `key` and one more. `layers`: as in the layout."""
    path = tree.walk(namespace, key)
    hit = best_hit(tree, namespace, key)
    repair = repaired(hit, tree.rules, layers)
    start = hit.begin.start
    page = tree.page_bytes
    tail = key[path.pages * page : (path.pages + 1) * page]
    within = max([tokens for _, _, tokens in partial_matches(path, path.pages, tail)], default=0)
    shared = path.pages * tree.rules[0].page_size + within
    assert start <= shared, (start, shared)
    reasons: list[Reason] = []
    if shared * TOKEN_BYTES < len(key):
        reasons.append(_eviction_after(path, tree, log, key) or Diverged(shared))
    if start < shared:
        for component, rule in enumerate(tree.rules):
            reasons += _holes(log, namespace, key, path, shared, component, rule)
    return Explanation(start, shared, tuple(reasons), repair.begin.start if repair else None)


def _eviction_after(path: Path, tree: RadixTree, log: EventLog, key: bytes) -> Evicted | None:
    """The eviction of the page of `key` after the path, if the log has one."""
    end = (path.pages + 1) * tree.page_bytes
    if end > len(key):
        return None  # less than a page: it was never in the tree
    for component, rule in enumerate(tree.rules):
        removal = log.last_removal(component, path.root.namespace, key[:end])
        if removal is not None:
            at = path.pages * rule.page_size
            return Evicted(rule.component.name, at, removal.step, removal.request)
    return None


def _holes(
    log: EventLog, namespace: Namespace, key: bytes, path: Path, end: int, component: int, rule: PageRule
) -> list[Reason]:
    """Holes that a hit at `end` would read. Neighbouring pages with the same eviction are one hole."""
    resident, size = path.residency(component), rule.page_size * TOKEN_BYTES
    holes: list[Reason] = []
    for page in range(min(rule.needed(end), path.pages), path.pages):
        if resident[page]:
            continue
        removal = log.last_removal(component, namespace, key[: (page + 1) * size])
        step, request = (removal.step, removal.request) if removal else (None, None)
        start, stop = page * rule.page_size, (page + 1) * rule.page_size
        last = holes[-1] if holes else None
        if isinstance(last, Hole) and (last.end, last.step, last.request) == (start, step, request):
            holes[-1] = Hole(last.component, last.start, stop, step, request)
        else:
            holes.append(Hole(rule.component.name, start, stop, step, request))
    return holes
