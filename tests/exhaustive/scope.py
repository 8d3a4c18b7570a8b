"""All that a few requests can do to a small cache: every state, each once.

From every state every move is tried inside a transaction, audited, and rolled back; states that differ only
in the numbers of pages are one. The contents of pages follow from the state of the cache, since every free
page is blank: so states are equal when caches are. Contents are audited after every move, the cache's own
invariants once for each state, since the digest of a state covers all that `check` reads.
"""

from collections.abc import Iterator, Set
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

Move = tuple[Operation, ...]
Path = tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """Which cache, which requests (number i has prompt i), and by how many tokens they may grow at once.

    `short`: components of which somebody else may be short. `forks`: a request that waits may begin as one.
    """

    setting: Setting
    prompts: tuple[tuple[int, ...], ...]
    chunks: tuple[int, ...]
    flushes: int = 0
    short: tuple[int, ...] = ()
    forks: bool = False


@dataclass(frozen=True, slots=True)
class Explored:
    """`closed` when no state was left to go on from."""

    states: int
    transitions: int
    depth: int
    closed: bool


class Wrong(AssertionError):
    """What was found, and the moves that lead there."""


def explore(scope: Scope, depth: int) -> Explored:
    """Breadth first, `depth` moves deep at most. Raises Wrong."""
    frontier: list[Path] = [()]
    seen = {state_of(Driver(scope.setting))}
    transitions = 0
    for level in range(depth):
        following: list[Path] = []
        for path in frontier:
            for move, state in _successors(scope, path, seen):
                transitions += 1
                if state not in seen:
                    seen.add(state)
                    following.append((*path, move))
        if not following:
            return Explored(len(seen), transitions, level + 1, closed=True)
        frontier = following
    return Explored(len(seen), transitions, depth, closed=False)


# ---------------------------------------------------------------- moves


def moves(scope: Scope, driver: Driver) -> Iterator[Move]:
    """Everything that can be done, and only that."""
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
    for component in scope.short:
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
    """Every move from where `path` leads, and the state after it; all of them undone again."""
    driver = Driver(scope.setting)
    for operation in (operation for move in path for operation in move):
        driver.apply(operation)
    before = state_of(driver)
    for move in list(moves(scope, driver)):
        try:
            yield move, _tried(driver, move, seen)
            assert state_of(driver) == before, "undone, it is not what it was"
        except Exception as error:
            raise Wrong(f"{type(error).__name__}: {error}\n  after {(*path, move)}") from error


def _tried(driver: Driver, move: Move, seen: Set[bytes]) -> bytes:
    """The state after `move`, audited; the driver is as it was."""
    contents, jobs, running = driver.world.contents.saved(), dict(driver.jobs), list(driver.world.jobs)
    with driver.cache.transaction() as transaction:
        savepoint = transaction.savepoint()
        for operation in move:
            driver.apply(operation)
        driver.world.audit_contents()
        state = state_of(driver)
        if state not in seen:
            check(driver.cache)
        transaction.rollback(savepoint)
    driver.asked.clear()
    driver.world.contents.restore(contents)
    driver.jobs, driver.world.jobs = jobs, running
    return state


# ---------------------------------------------------------------- states


def state_of(driver: Driver) -> bytes:
    """A digest of all that the cache knows, pages named in the order in which they are met."""
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
            node.sorted_children,
        )
        for space, prefix, node in order
    ]
    place = {id(node): index for index, (_, _, node) in enumerate(order)}
    orders = [[place[id(node)] for node in listed.items()] for listed in parts.tree.queues]
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
    """Owners and references of the pages that the tree or a row names; of other pages only sums."""
    numbers = {owner_of(row): index for row, index in row_of.items()}
    owners, references = pool.owners(), pool.references(np.arange(pool.capacity + 1))
    owned = [(numbers.get(owners[page], int(owners[page])), int(references[page])) for page in names]
    totals = int(np.count_nonzero(owners != FREE)), int(references.sum())
    return owned, totals, pool.free, pool.tree, pool.idle


def _space(cache: HybridCache, namespace: Namespace) -> tuple[int, str, int]:
    return cache.epoch - namespace.epoch, namespace.salt, namespace.private or 0


def _local(driver: Driver, number: int) -> tuple[object, ...]:
    """One request, without its pages. Two that ask the same are alike."""
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
