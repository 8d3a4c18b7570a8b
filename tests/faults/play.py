"""What the fault tests are played on: the memory core and the scheduler by their public interfaces."""

from collections.abc import Sequence

from transom.errors import NoSpace
from transom.kv.layout import CacheLayout
from transom_lab.worlds.cache_world import CacheWorld, Job
from transom_lab.worlds.mixes import components, first_key

FULL, WINDOW = 0, 1


def up_to(end: int, *more: int) -> list[int]:
    """Tokens 1, 2 ... `end`, and others."""
    return [*range(1, end + 1), *more]


def hybrid(
    page_size: int, window: int, pages: tuple[int, int] = (64, 64), *, rows: int = 4, context: int = 64
) -> CacheWorld:
    """Full attention and a window."""
    return CacheWorld(CacheLayout(components("FW", window), pages, page_size, rows, context))


def only_full(pages: int, page_size: int = 1, *, context: int = 64) -> CacheWorld:
    return CacheWorld(CacheLayout(components("F", 1), (pages,), page_size, rows=4, context=context))


def free(world: CacheWorld) -> list[int]:
    return [component.free for component in world.cache.stats().components]


def referenced(world: CacheWorld) -> list[int]:
    """Pages of the tree that requests read, per component."""
    return [component.referenced for component in world.cache.stats().components]


def reclaimed(world: CacheWorld) -> list[int]:
    return [component.evicted for component in world.cache.stats().components]


def row(world: CacheWorld, job: Job, component: int) -> list[int]:
    """Page ids, 0 where none."""
    return [int(page) for page in world.cache.page_tables[component][job.holding.row]]


def window_lengths(world: CacheWorld, tokens: Sequence[int]) -> list[int]:
    """Ends of the window pages in the tree that lie along `tokens`."""
    along = tuple(tokens)
    return sorted(len(prefix) for _, prefix in world.resident()[WINDOW] if prefix == along[: len(prefix)])


def begin(world: CacheWorld, tokens: Sequence[int]) -> int:
    """Where a request would begin: the offer, which is the best there is."""
    namespace, offer = world.offer(tokens)
    assert offer.begin.start == world.longest_hit(namespace, list(tokens)), offer
    return offer.begin.start


def hold(world: CacheWorld, tokens: int, name: str = "other") -> Job:
    """A request of another tenant that takes pages for `tokens` tokens, and computes none. Raises NoSpace."""
    job = world.admit([7] * tokens, name, cold=True)
    try:
        world.cache.extend(job.holding, tokens)
    except NoSpace:
        world.drop(job)
        raise
    return job


def squeeze(world: CacheWorld, tokens: int) -> None:
    """Somebody needs so many pages for a moment: the tree gives what it must."""
    world.drop(hold(world, tokens))
    world.audit()


def take_windows(world: CacheWorld) -> None:
    """The tree loses every window page that nobody reads, and no full page."""
    before = world.resident()[FULL]
    squeeze(world, world.cache.available.alone()[WINDOW])
    assert world.resident()[FULL] == before, "full pages were short as well"
    assert world.cache.stats().components[WINDOW].unreferenced == 0


def readable(world: CacheWorld, job: Job, query: int) -> list[int]:
    """Positions whose window page is there when the query at `query` is computed, its own page included."""
    entries, size = row(world, job, WINDOW), world.page_size
    kind = world.kinds[WINDOW]
    return [at for at in range(first_key(kind, query), query + 1) if entries[at // size]]


def everything_is_back(world: CacheWorld) -> None:
    """Nobody runs: no reference is left, and what is cached can be had."""
    assert not world.jobs
    world.audit()
    assert world.cache.available.alone() == world.cache.layout.pages
    assert referenced(world) == [0] * len(world.kinds)
