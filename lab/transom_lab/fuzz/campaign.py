"""Runs many short episodes of a cache, each with a layout of its own, until one breaks."""

from collections import Counter
from dataclasses import dataclass
from random import Random

from transom_lab.fuzz.draw import OperationDrawer, draw_setting
from transom_lab.fuzz.driver import Driver
from transom_lab.fuzz.operations import Operation, Script, Setting

EPISODE_OPERATIONS = 2_000
CHECK_EVERY = 50


@dataclass(frozen=True, slots=True)
class Drawn:
    """The source of a campaign. A setting that is left out is drawn for each episode."""

    seed: int
    page_size: int | None = None
    window: int | None = None
    mix: str | None = None


@dataclass(frozen=True, slots=True)
class Broken:
    """A script up to the operation that broke, and the error."""

    script: Script
    error: str


@dataclass(slots=True)
class Tally:
    """Totals of a campaign. Mutable: they only grow."""

    operations: Counter[str]
    refused: int = 0
    skipped: int = 0
    hits: int = 0
    repairs: int = 0
    hit_tokens: int = 0
    holes_filled: int = 0
    evicted: int = 0
    duplicates_returned: int = 0

    @property
    def total(self) -> int:
        return self.operations.total() + self.skipped

    def add(self, driver: Driver) -> None:
        stats = driver.cache.stats()
        self.operations += driver.done
        self.refused += driver.refused
        self.skipped += driver.skipped
        self.hits += stats.hits
        self.repairs += stats.repairs
        self.hit_tokens += stats.hit_tokens
        for component in stats.components:
            self.holes_filled += component.holes_filled
            self.evicted += component.evicted
            self.duplicates_returned += component.duplicates_returned


def run_episode(drawn: Drawn, number: int, count: int, tally: Tally) -> Broken | None:
    """Runs `count` operations on a new cache, audited at intervals and at the end."""
    random = Random(f"{drawn.seed}/{number}")
    setting = draw_setting(random, drawn.page_size, drawn.window, drawn.mix)
    driver = Driver(setting)
    drawer = OperationDrawer(random, driver)
    done: list[Operation] = []
    try:
        for place in range(count):
            done.append(drawer.next())
            driver.apply(done[-1])
            if place % CHECK_EVERY == 0:
                audit(driver)
        driver.end()
    except Exception as error:  # any exception is the finding that the campaign looks for
        return Broken((setting, done), _line(error))
    tally.add(driver)
    return None


def audit(driver: Driver) -> None:
    """Asserts all invariants, all contents, and that offers are the longest hits possible."""
    driver.world.audit()
    for tokens, namespace, _ in driver.asked.values():
        if namespace.epoch == driver.cache.epoch:
            offered = [offer.begin for offer in driver.cache.offers(namespace, tokens)]
            island = driver.world.longest_island(namespace, tokens.tolist())
            repair = driver.world.latest_repair(namespace, tokens.tolist())
            starts = [begin.start for begin in offered if not begin.is_repair]
            assert starts[0] == island, (namespace, tokens, offered, "possible", island)
            starts = [begin.start for begin in offered if begin.is_repair]
            assert starts == [repair] * (repair > island), (namespace, tokens, offered, "possible", repair)
            assert offered[-1].full_until == 0, ("cold is always offered", offered)


def replay(setting: Setting, operations: list[Operation]) -> Broken | None:
    """Runs a script with an audit after every operation. A script that breaks is cut behind its last one."""
    driver = Driver(setting)
    done: list[Operation] = []
    try:
        for operation in operations:
            done.append(operation)
            driver.apply(operation)
            audit(driver)
        driver.end()
    except Exception as error:  # any exception is the finding that the campaign looks for
        return Broken((setting, done), _line(error))
    return None


def _line(error: Exception) -> str:
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:600]}"
