"""The fuzzer's world, with a cache that can be made to fail at any primitive."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from transom.kv.check import inside
from transom.kv.journal import Journal
from transom_lab.fuzz.kinds import MIXES, PAGE_SIZES, WINDOWS, components
from transom_lab.fuzz.snapshot import same
from transom_lab.fuzz.world import Job
from transom_lab.fuzz.world import World as FuzzWorld

__all__ = [
    "MIXES",
    "PAGE_SIZES",
    "WINDOWS",
    "Fault",
    "Job",
    "World",
    "components",
    "same",
    "unchanged",
]


class Fault(Exception):
    """Injected."""


class FaultyJournal(Journal):
    """Refuses the primitive after `fuse` more, while a fuse is set."""

    __slots__ = ("fuse",)

    def __init__(self) -> None:
        super().__init__()
        self.fuse: int | None = None

    def log(self, undo: Any, *arguments: Any) -> None:
        if self.fuse is not None:
            if self.fuse == 0:
                self.fuse = None
                raise Fault
            self.fuse -= 1
        super().log(undo, *arguments)


class World(FuzzWorld):
    """A world with a fuse."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        with patch("transom.kv.cache.Journal", FaultyJournal):
            super().__init__(*arguments, **keywords)

    def set_fuse(self, fuse: int | None) -> None:
        journal = inside(self.cache).journal
        assert isinstance(journal, FaultyJournal)
        journal.fuse = fuse


@contextmanager
def unchanged(world: World) -> Iterator[None]:
    """Asserts that the block leaves the cache as it was."""
    before = world.snapshot()
    yield
    same(before, world.snapshot())
