"""A cache world that can be made to fail at any change of its state."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from transom.kv.check import inside
from transom.kv.component_specs import ComponentSpec
from transom.kv.journal import Journal
from transom.kv.layout import CacheLayout, PrefixCaching
from transom_lab.worlds.cache_world import CacheWorld, Job
from transom_lab.worlds.mixes import MIXES, PAGE_SIZES, WINDOWS, components
from transom_lab.worlds.snapshot import same

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
    """The injected failure."""


class FaultyJournal(Journal):
    """Raises Fault at the change after `fuse` more, if a fuse is set."""

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


class World(CacheWorld):
    """A cache world with a journal that can be made to fail."""

    def __init__(
        self,
        kinds: tuple[ComponentSpec, ...],
        pages: tuple[int, ...],
        page_size: int,
        *,
        rows: int = 4,
        context: int = 64,
        caching: PrefixCaching = PrefixCaching.ON,
        **layout: Any,
    ) -> None:
        with patch("transom.kv.cache.Journal", FaultyJournal):
            super().__init__(CacheLayout(kinds, pages, page_size, rows, context, caching, **layout))

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
