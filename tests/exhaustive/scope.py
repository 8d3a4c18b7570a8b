"""Exhaustive exploration of a small cache: visits every state that a few requests can reach, each once.

From every state, every move is applied inside a transaction, audited, and rolled back. States that differ
only in page numbers count as one. Equal caches mean equal states: the contents of pages follow from the state
of the cache, since every free page is blank. Contents are audited after every move. The invariants of the
cache are checked once per state, since the digest of a state covers everything that `check` reads.
"""

from collections.abc import Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from transom.kv.cache import HybridCache, Namespace
from transom.kv.check import check, inside
from transom.kv.holding import Holding
from transom.kv.pool import FREE, PagePool, owner_of
from transom.values import RequestId
from transom_lab.fuzz import operations as do
from transom_lab.fuzz.driver import Driver
from transom_lab.fuzz.operations import Operation, Setting
from transom_lab.worlds.residency import nodes


class _Undone(Exception):
    """Rolls a transaction back."""


Move = tuple[Operation, ...]
Path = tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """The cache and the requests to explore. Request i has `prompts[i]`.

    `chunks`: the token counts by which a request may grow at once. `flushes`: the most flushes per path.
    `evicted`: components in which an idle page may be evicted at any time, as if another request needed it.
    `forks`: a request that has not started may start as a fork of a running one.
    """

    setting: Setting
    prompts: tuple[tuple[int, ...], ...]
    chunks: tuple[int, ...]
    flushes: int = 0
    evicted: tuple[int, ...] = ()
    forks: bool = False


@dataclass(frozen=True, slots=True)
class Explored:
    """Size of the explored graph. `closed`: every reachable state was visited, at any depth."""

    states: int
    transitions: int
    depth: int
    closed: bool


class Wrong(AssertionError):
    """A failed audit, with the shortest sequence of moves that leads to it."""


def explore(scope: Scope, depth: int) -> Explored:
    """Explores breadth first, at most `depth` moves deep. Raises Wrong at the first failed audit.

    A state is stored as the path of moves that leads to it, and replayed: a driver cannot be copied.
    """
    frontier: list[Path] = [()]
    seen = {state_of(Driver(scope.setting))}
    transitions = 0
    for level in range(depth):
        next_frontier: list[Path] = []
        for path in frontier:
            for move, state in _successors(scope, path, seen):
                transitions += 1
                if state not in seen:
                    seen.add(state)
                    next_frontier.append((*path, move))
        if not next_frontier:
            return Explored(len(seen), transitions, level + 1, closed=True)
        frontier = next_frontier
    return Explored(len(seen), transitions, depth, closed=False)


# ---------------------------------------------------------------- moves


def moves(scope: Scope, driver: Driver) -> Iterator[Move]:
    """All moves that are possible in the current state of the driver."""
    for number, tokens in enumerate(scope.prompts):
        job = driver.jobs.get(number)
        if job is None:
            if len(driver.jobs) < scope.setting.rows:
                namespace = driver.cache.namespace(RequestId(number), "")
                ways = len(driver.cache.offers(namespace, np.array(tokens, np.int32))) - 1
                for way in range(max(1, ways)):
                    yield do.Ask(number, tokens, "", way), do.Admit(number)
                yield (do.AdmitCold(number, tokens, ""),)
                if scope.forks:
                    yield from ((do.Fork(other, number),) for other in driver.jobs)
        else:
            yield from ((operation,) for operation in _steps(scope, number, job.holding, len(job.tokens)))
    for component in scope.evicted:
        if inside(driver.cache).pools[component].idle:
            yield (do.Evict(component, 1),)
    if driver.cache.epoch < scope.flushes:
        yield (do.Flush(),)


def _steps(scope: Scope, number: int, holding: Holding, length: int) -> Iterator[Operation]:
    ends = {min(length, holding.computed + chunk) for chunk in scope.chunks}
    for end in sorted(ends):
        if end > holding.allocated:
            yield do.Extend(number, end - holding.computed)
    if holding.allocated > holding.computed:
        yield do.Run(number, holding.allocated - holding.computed)
        yield do.Truncate(number, holding.allocated - holding.computed)
    yield do.Publish(number)
    yield do.Slide(number)
    yield do.Drop(number)


def _successors(scope: Scope, path: Path, seen: Set[bytes]) -> Iterator[tuple[Move, bytes]]:
    """Every move from the end of `path`, with the state after it. Each move is rolled back."""
    driver = Driver(scope.setting)
    for operation in (operation for move in path for operation in move):
        driver.apply(operation)
    before = state_of(driver)
    for move in list(moves(scope, driver)):
        try:
            yield move, _tried(driver, move, seen)
            assert state_of(driver) == before, "a rolled back move changed the state"
        except Exception as error:
            raise Wrong(f"{type(error).__name__}: {error}\n  after {(*path, move)}") from error


def _tried(driver: Driver, move: Move, seen: Set[bytes]) -> bytes:
    """The audited state after `move`. The driver is restored."""
    contents, jobs, running = driver.world.contents.saved(), dict(driver.jobs), list(driver.world.jobs)
    with suppress(_Undone), driver.cache.transaction():
        for operation in move:
            driver.apply(operation)
        driver.world.audit_contents()
        state = state_of(driver)
        if state not in seen:
            check(driver.cache)
        raise _Undone
    # The transaction covers the cache only; the driver's own tables are restored by hand.
    driver.asked.clear()
    driver.world.contents.restore(contents)
    driver.jobs, driver.world.jobs = jobs, running
    return state


# ---------------------------------------------------------------- states


def state_of(driver: Driver) -> bytes:
    """A digest of the whole state of the cache. Pages are numbered in the order in which they are visited.

    With these numbers, two states that differ only in page numbers have one digest.
    """
    cache = driver.cache
    parts = inside(cache)
    names: list[dict[int, int]] = [{0: 0} for _ in parts.pools]

    def named(component: int, pages: np.ndarray) -> list[int]:
        known = names[component]
        return [known.setdefault(page, len(known)) for page in pages.tolist()]

    order = sorted(nodes(cache), key=lambda found: (_space(cache, found[0]), found[1]))
    tree = [
        (
            _space(cache, space),
            prefix,
            [named(c, pages) for c, pages in enumerate(node.pages)],
            node.resident,
            [child.key for child in node.children],
        )
        for space, prefix, node in order
    ]
    index_of = {id(node): index for index, (_, _, node) in enumerate(order)}
    orders = [[index_of[id(node)] for node in listed.items()] for listed in parts.tree.queues]
    running = sorted((_local(driver, number), number) for number in driver.jobs)
    rows = [
        (
            local,
            [named(c, rows.table[driver.jobs[number].holding.row]) for c, rows in enumerate(parts.tables)],
        )
        for local, number in running
    ]
    row_owners = {id(driver.jobs[number].holding): index for index, (_, number) in enumerate(running)}
    pending = [
        (
            row_owners[id(p.holding)],
            p.copy.component,
            named(p.copy.component, np.array([p.copy.source, p.copy.target])),
            p.copy.tokens,
            named(p.copy.component, np.array([p.pin])),
            p.snapshot_of,
            row_owners.get(id(p.reads)),
        )
        for p in parts.pending
    ]
    row_of = {driver.jobs[number].holding.row: index for index, (_, number) in enumerate(running)}
    pools = [_pool(pool, names[c], row_of) for c, pool in enumerate(parts.pools)]
    entries = [int(np.count_nonzero(rows.table)) for rows in parts.tables]
    return blake2b(repr((tree, orders, rows, pending, pools, entries)).encode(), digest_size=16).digest()


def _pool(pool: PagePool, names: dict[int, int], row_of: dict[int, int]) -> tuple[object, ...]:
    """Owners and references of the pages that the tree or a row names. Other pages enter as sums only."""
    numbers = {owner_of(row): index for row, index in row_of.items()}
    owners, references = pool.owners(), pool.references(np.arange(pool.capacity + 1))
    owned = [(numbers.get(owners[page], int(owners[page])), int(references[page])) for page in names]
    totals = int(np.count_nonzero(owners != FREE)), int(references.sum())
    return owned, totals, pool.free, pool.tree, pool.idle


def _space(cache: HybridCache, namespace: Namespace) -> tuple[int, str, int]:
    """A namespace relative to the current epoch: the absolute epoch makes no difference."""
    return cache.epoch - namespace.epoch, namespace.salt, namespace.private or 0


def _local(driver: Driver, number: int) -> tuple[object, ...]:
    """The state of one request without its pages. Two requests with the same prompt may have equal states."""
    job = driver.jobs[number]
    held = job.holding
    return (
        job.tokens.tolist(),
        _space(driver.cache, held.namespace),
        (
            held.start,
            held.computed,
            held.allocated,
            held.published,
            held.kept,
            held.exact,
            held.full_until,
            held.clip,
        ),
    )
