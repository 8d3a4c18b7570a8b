"""Helpers of the fault tests: small cache worlds, and queries on them."""

from collections.abc import Sequence

from transom.errors import NoSpace
from transom.kv.layout import CacheLayout
from transom_lab.worlds.cache_world import CacheWorld, Job
from transom_lab.worlds.mixes import components, first_key

FULL, WINDOW = 0, 1


def up_to(end: int, *more: int) -> list[int]:
    """Tokens 1, 2 ... `end`, then `more`."""
    return [*range(1, end + 1), *more]


def hybrid(
    page_size: int, window: int, pages: tuple[int, int] = (64, 64), *, rows: int = 4, context: int = 64
) -> CacheWorld:
    """A world with full attention and a window."""
    return CacheWorld(CacheLayout(components("FW", window), pages, page_size, rows, context))


def only_full(pages: int, page_size: int = 1, *, context: int = 64) -> CacheWorld:
    return CacheWorld(CacheLayout(components("F", 1), (pages,), page_size, rows=4, context=context))


def free(world: CacheWorld) -> list[int]:
    return [component.free for component in world.cache.stats().components]


def referenced(world: CacheWorld) -> list[int]:
    """Pages of the tree with a reader, per component."""
    return [component.referenced for component in world.cache.stats().components]


def evicted(world: CacheWorld) -> list[int]:
    return [component.evicted for component in world.cache.stats().components]


def row(world: CacheWorld, job: Job, component: int) -> list[int]:
    """The page ids in a job's row, 0 where there is no page."""
    return [int(page) for page in world.cache.page_tables[component][job.holding.row]]


def window_lengths(world: CacheWorld, tokens: Sequence[int]) -> list[int]:
    """Ends of the cached window pages along `tokens`."""
    along = tuple(tokens)
    return sorted(len(prefix) for _, prefix in world.resident()[WINDOW] if prefix == along[: len(prefix)])


def hit_start(world: CacheWorld, tokens: Sequence[int]) -> int:
    """The start that the cache offers. Asserts that it is the longest hit possible."""
    namespace, offer = world.offer(tokens)
    assert offer.begin.start == world.longest_hit(namespace, list(tokens)), offer
    return offer.begin.start


def hold(world: CacheWorld, tokens: int, name: str = "other") -> Job:
    """Admits a request of another namespace, and allocates pages for `tokens` tokens. Raises NoSpace."""
    job = world.admit([7] * tokens, name, cold=True)
    try:
        world.cache.extend(job.holding, tokens)
    except NoSpace:
        world.drop(job)
        raise
    return job


def squeeze(world: CacheWorld, tokens: int) -> None:
    """Allocates pages for `tokens` tokens and frees them: the tree evicts as many pages as that needs."""
    world.drop(hold(world, tokens))
    world.audit()


def evict_windows(world: CacheWorld) -> None:
    """Evicts every window page without a reader, and no full page."""
    before = world.resident()[FULL]
    squeeze(world, world.cache.available.alone()[WINDOW])
    assert world.resident()[FULL] == before, "full pages were evicted as well"
    assert world.cache.stats().components[WINDOW].unreferenced == 0


def readable(world: CacheWorld, job: Job, query: int) -> list[int]:
    """Positions that the query at `query` reads and that have a window page."""
    entries, size = row(world, job, WINDOW), world.page_size
    kind = world.kinds[WINDOW]
    return [at for at in range(first_key(kind, query), query + 1) if entries[at // size]]


def require_all_available(world: CacheWorld) -> None:
    """Asserts that no request runs, no page is referenced, and every page is available."""
    assert not world.jobs
    world.audit()
    assert world.cache.available.alone() == world.cache.layout.pages
    assert referenced(world) == [0] * len(world.kinds)
