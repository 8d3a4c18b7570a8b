"""Draws layouts and operations so that pools are full, prompts share prefixes, and every operation occurs."""

from collections import deque
from random import Random

from transom.kv.component_specs import ComponentSpec
from transom.kv.eviction_policy import CachePolicy
from transom.kv.layout import pages_alone
from transom_lab.fuzz import operations as do
from transom_lab.fuzz.driver import Driver
from transom_lab.fuzz.operations import Operation, Setting
from transom_lab.worlds.mixes import (
    MIXES,
    PAGE_SIZES,
    WINDOWS,
    components,
    first_key,
    is_state,
    keeps_everything,
)

CONTEXT = 40
PROMPTS_REMEMBERED = 24
OFFERS_KEPT = 6
POLICIES = (*(policy.value for policy in CachePolicy), "value", "value")


def draw_setting(random: Random, page_size: int | None, window: int | None, mix: str | None) -> Setting:
    """Draws arguments that are not given. Pools hold one request of the whole context, or much more."""
    page_size = page_size or random.choice(PAGE_SIZES)
    window = window or random.choice(WINDOWS)
    mix = mix or random.choice(MIXES)
    kinds = components(mix, window)
    alone = [pages_alone(kind, page_size, CONTEXT, 1) for kind in kinds]
    layers = draw_layers(random, kinds)
    slack = random.randrange(2 + random.choice((0, 1, 3)) * CONTEXT // page_size)
    return Setting(
        page_size=page_size,
        window=window,
        mix=mix,
        pages=tuple(pages + slack for pages in alone),
        rows=random.choice((2, 3, 4, 4)),
        context=CONTEXT,
        prefix_caching=random.random() < 0.85,
        page_bytes=tuple(random.randrange(1, 8) for _ in kinds) if random.random() < 0.3 else (),
        policy=random.choice(POLICIES),
        pin_tokens=random.choice((CONTEXT // 2, 1 << 16)),
        layers=layers,
    )


def draw_layers(random: Random, kinds: tuple[ComponentSpec, ...]) -> tuple[int, ...]:
    """The layers of a short model, if these components allow a repair that pays within a context.

    Beside a recurrent state there is no repair; layers are drawn all the same, to see that none is offered.
    """
    if random.random() < 0.2:
        return ()
    if any(is_state(kind) for kind in kinds):
        return tuple(random.sample(range(len(kinds)), len(kinds)))
    if len({keeps_everything(kind, CONTEXT) for kind in kinds}) == 1:
        return ()
    layers = list(range(len(kinds))) + [random.randrange(len(kinds)) for _ in range(random.randrange(3))]
    random.shuffle(layers)
    reach = [CONTEXT - first_key(kind, CONTEXT) for kind in kinds]
    reread = sum(reach[c] for c in layers if not keeps_everything(kinds[c], CONTEXT))
    return tuple(layers) if reread < CONTEXT * 2 // 3 else ()


class OperationDrawer:
    """Owns a random source and recent prompts. Mutable. It reads the driver and does not change it."""

    def __init__(self, random: Random, driver: Driver) -> None:
        self._random = random
        self._driver = driver
        self._seen: deque[tuple[int, ...]] = deque([(0,) * CONTEXT], PROMPTS_REMEMBERED)
        self._requests = 0
        self._refused = 0
        states = any(is_state(kind) for kind in driver.cache.layout.components)
        self._repairs = bool(driver.setting.layers) and not states

    def next(self) -> Operation:
        """The next operation; most can be done in the present state of the driver."""
        driver, chance = self._driver, self._random.random()
        if driver.refused > self._refused:
            self._refused = driver.refused
            if driver.jobs and chance < 0.5:
                return self._retraction(chance)
        if chance < 0.001:
            return do.Flush()
        if chance < 0.01:
            return do.RunCopies()
        if chance < 0.02:
            return do.Undone(tuple(self._bookkeeping() for _ in range(self._random.randrange(1, 7))))
        if chance < 0.03:
            return self._pin()
        if chance < (0.08 if self._repairs else 0.035):
            return self._evict()
        if len(driver.jobs) < driver.setting.rows and (not driver.jobs or chance < 0.25):
            return self._arrival()
        return self._step(self._any_request())

    def _retraction(self, chance: float) -> Operation:
        """The last operation found no space: a request publishes or ends, as a scheduler would decide."""
        return do.Publish(self._any_request()) if chance < 0.2 else do.Drop(self._any_request())

    def _bookkeeping(self) -> do.Bookkeeping:
        chance = self._random.random()
        if chance < 0.2:
            return do.Flush() if chance < 0.1 else self._pin()
        while True:
            drawn = self._step(self._any_request())
            if not isinstance(drawn, do.Run):
                return drawn

    def _any_request(self) -> int:
        return self._random.choice(list(self._driver.jobs) or [self._requests])

    def _arrival(self) -> Operation:
        """Mostly `Ask`, and later `Admit` by the offer, which may be stale by then."""
        asked, chance = list(self._driver.asked), self._random.random()
        if asked and (len(asked) >= OFFERS_KEPT or chance < 0.6):
            return do.Admit(self._random.choice(asked) if chance < 0.2 else asked[-1])
        self._requests += 1
        tokens, salt = self._prompt(), "x" if self._random.random() < 0.1 else ""
        if chance > 0.9:
            return do.AdmitCold(self._requests, tokens, salt)
        return do.Ask(self._requests, tokens, salt, self._random.choice((0, 0, 0, 1)))

    def _pin(self) -> do.Pin:
        seen = self._random.choice(self._seen)
        return do.Pin(seen[: 1 + self._random.randrange(len(seen))], 1 + self._random.randrange(9))

    def _prompt(self) -> tuple[int, ...]:
        """The beginning of an earlier prompt, then fresh tokens."""
        random = self._random
        before = random.choice(self._seen)[: max(random.randrange(CONTEXT), random.randrange(CONTEXT))]
        more = 1 + min(random.randrange(CONTEXT - len(before)), random.randrange(12))
        fresh = tuple(int(random.random() < 0.2) for _ in range(more))
        self._seen.append(before + fresh)
        return before + fresh

    def _evict(self) -> do.Evict:
        """Where repairs are possible, many window pages at a time, and few of the full pages they need."""
        kinds = self._driver.cache.layout.components
        component = self._random.randrange(len(kinds))
        many = self._repairs and not keeps_everything(kinds[component], CONTEXT)
        return do.Evict(component, 1 + self._random.randrange(CONTEXT if many else 3))

    def _step(self, request: int) -> do.Bookkeeping | do.Run:
        """The next call a scheduler would make for this request, and sometimes one that it would not."""
        job, random = self._driver.jobs.get(request), self._random
        chance = random.random()
        if job is None or chance < 0.02:
            return do.Drop(request)
        holding = job.holding
        if chance < 0.04 and len(self._driver.jobs) < self._driver.setting.rows:
            self._requests += 1
            return do.Fork(request, self._requests)
        if chance < 0.07:
            return do.Truncate(request, 1 + random.randrange(8))
        if holding.allocated > holding.computed and chance < 0.75:
            return do.Run(request, self._length(holding.allocated - holding.computed))
        if chance < 0.33:
            return do.Publish(request)
        if chance < 0.5:
            return do.Slide(request)
        if holding.computed >= len(job.tokens) and chance < 0.75:
            self._seen.append(tuple(job.tokens.tolist()))
            return do.Drop(request)
        return do.Extend(request, self._chunk(holding.computed, max(1, len(job.tokens) - holding.computed)))

    def _chunk(self, computed: int, most: int) -> int:
        """Often to the end of a page, which is where pages are cached and snapshots are taken."""
        size = self._driver.setting.page_size
        tokens = self._length(most)
        if self._random.random() < 0.3:
            tokens = max(1, (computed + tokens) // size * size - computed)
        return tokens

    def _length(self, most: int) -> int:
        """All of it, or a few tokens."""
        return most if self._random.random() < 0.5 else 1 + self._random.randrange(8)
