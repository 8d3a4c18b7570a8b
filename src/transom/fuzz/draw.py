"""Draws settings and operations so that pools are full, prompts meet and every operation has its turn."""

from collections import deque
from random import Random

from transom.fuzz import operations as do
from transom.fuzz.driver import Driver
from transom.fuzz.kinds import MIXES, PAGE_SIZES, WINDOWS, components
from transom.fuzz.operations import Operation, Setting
from transom.kv.layout import pages_alone

CONTEXT = 40
PROMPTS_REMEMBERED = 24
OFFERS_KEPT = 6


def draw_setting(random: Random, page_size: int | None, window: int | None, mix: str | None) -> Setting:
    """What is None is drawn. The pools hold one request of the whole context, and little to much more."""
    page_size = page_size or random.choice(PAGE_SIZES)
    window = window or random.choice(WINDOWS)
    mix = mix or random.choice(MIXES)
    slack = random.randrange(2 + random.choice((0, 1, 3)) * CONTEXT // page_size)
    return Setting(
        page_size=page_size,
        window=window,
        mix=mix,
        pages=tuple(pages_alone(kind, page_size, CONTEXT, 1) + slack for kind in components(mix, window)),
        rows=random.choice((2, 3, 4, 4)),
        context=CONTEXT,
        prefix_caching=random.random() < 0.85,
    )


class Drawer:
    """Owns a random source and the prompts seen. Mutable; the driver it looks at is not changed."""

    def __init__(self, random: Random, driver: Driver) -> None:
        self._random = random
        self._driver = driver
        self._seen: deque[tuple[int, ...]] = deque([(0,) * CONTEXT], PROMPTS_REMEMBERED)
        self._requests = 0
        self._refused = 0

    def next(self) -> Operation:
        """An operation that mostly can be done where the driver stands."""
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
        if len(driver.jobs) < driver.setting.rows and (not driver.jobs or chance < 0.25):
            return self._arrival()
        return self._step(self._someone())

    def _retraction(self, chance: float) -> Operation:
        """Memory is short: somebody publishes, or goes."""
        return do.Publish(self._someone()) if chance < 0.2 else do.Drop(self._someone())

    def _bookkeeping(self) -> do.Bookkeeping:
        if self._random.random() < 0.1:
            return do.Flush()
        while True:
            drawn = self._step(self._someone())
            if not isinstance(drawn, do.Run):
                return drawn

    def _someone(self) -> int:
        return self._random.choice(list(self._driver.jobs) or [self._requests])

    def _arrival(self) -> Operation:
        """Usually asked for and then admitted by what was offered; the two may lie far apart."""
        asked, chance = list(self._driver.asked), self._random.random()
        if asked and (len(asked) >= OFFERS_KEPT or chance < 0.6):
            return do.Admit(self._random.choice(asked) if chance < 0.2 else asked[-1])
        self._requests += 1
        tokens, salt = self._prompt(), "x" if self._random.random() < 0.1 else ""
        if chance > 0.9:
            return do.AdmitCold(self._requests, tokens, salt)
        return do.Ask(self._requests, tokens, salt)

    def _prompt(self) -> tuple[int, ...]:
        """A beginning of an earlier one, and something else."""
        random = self._random
        before = random.choice(self._seen)[: random.randrange(CONTEXT)]
        more = 1 + min(random.randrange(CONTEXT - len(before)), random.randrange(12))
        fresh = tuple(int(random.random() < 0.2) for _ in range(more))
        self._seen.append(before + fresh)
        return before + fresh

    def _step(self, request: int) -> do.Bookkeeping | do.Run:
        """What a scheduler would do next with this request, or something stranger."""
        job, random = self._driver.jobs.get(request), self._random
        chance = random.random()
        if job is None or chance < 0.02:
            return do.Drop(request)
        holding = job.holding
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
        """Often to the end of a page, where everything that is kept is kept."""
        size = self._driver.setting.page_size
        tokens = self._length(most)
        if self._random.random() < 0.3:
            tokens = max(1, (computed + tokens) // size * size - computed)
        return tokens

    def _length(self, most: int) -> int:
        """Mostly all, else a few tokens."""
        return most if self._random.random() < 0.5 else 1 + self._random.randrange(8)
