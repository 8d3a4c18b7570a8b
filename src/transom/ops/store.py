"""Memory of keys and values: one mapping per component, page after page."""

import mmap
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from transom.ops.protocol import F32, I32, PagedKV

PAGE_ALIGNMENT = 4096

# mmap of Python 3.11 lacks the flag. The value is that of Linux on x86-64, AArch64 and RISC-V.
_NO_RESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


class KVType(StrEnum):
    """The dtype that keys and values are stored in."""

    FLOAT16 = "float16"
    FLOAT32 = "float32"


@dataclass(frozen=True, slots=True)
class PageShape:
    """The page of one component: `[layers, key or value, page_size, kv_heads, head_dim]`."""

    layers: int
    page_size: int
    kv_heads: int
    head_dim: int
    type: KVType = KVType.FLOAT16

    @property
    def axes(self) -> tuple[int, ...]:
        return (self.layers, 2, self.page_size, self.kv_heads, self.head_dim)

    @property
    def page_bytes(self) -> int:
        """Bytes per page, rounded up to 4 KiB so that `discard` can return single pages to the system."""
        size = int(np.prod(self.axes)) * np.dtype(self.type.value).itemsize
        return size + -size % PAGE_ALIGNMENT


class KVStore:
    """Owns the memory of keys and values of all components, which callers change through its views.

    Component i has `pages[i]` usable pages, with ids from 1. Page 0 is the null page: page tables hold it for
    positions without a page, and no kernel reads it. Memory is mapped without being reserved, so a page that
    was never written costs nothing and reads as zeros.
    """

    def __init__(self, shapes: tuple[PageShape, ...], pages: tuple[int, ...]) -> None:
        assert len(shapes) == len(pages), (len(shapes), len(pages))
        self.shapes = shapes
        self.pages = pages
        self._maps = tuple(_map(shape, n + 1) for shape, n in zip(shapes, pages, strict=True))
        self._views = tuple(_view(m, shape) for m, shape in zip(self._maps, shapes, strict=True))

    def view(self, component: int) -> NDArray[np.float16] | F32:
        """`[pages + 1, layers, 2, page_size, kv_heads, head_dim]`, pages strided by `page_bytes`."""
        return self._views[component]

    def paged(self, component: int, table: I32) -> PagedKV:
        """The argument of kernels. `table` is the page table of the component, which is not copied."""
        assert table.dtype == np.int32 and table.ndim == 2, (table.dtype, table.shape)
        return PagedKV(self.view(component), table, self.shapes[component].page_size)

    def discard(self, component: int, pages: Sequence[int]) -> None:
        """Return the memory of pages to the system; they then read as zeros. One call per run of ids."""
        size = self.shapes[component].page_bytes
        for first, count in runs(pages):
            assert first > 0 and first + count <= self.pages[component] + 1, (component, first, count)
            # On systems with larger memory pages, neighbours would lose their bytes: keep the memory.
            if size % mmap.PAGESIZE == 0:
                self._maps[component].madvise(mmap.MADV_DONTNEED, first * size, count * size)

    def fill(self, value: float) -> None:
        """Overwrite every slot, also of the null page. NaN exposes reads of slots that were never written."""
        for view in self._views:
            view[...] = value


def runs(pages: Sequence[int]) -> list[tuple[int, int]]:
    """`pages` as runs of consecutive ids, (first, count), ascending."""
    found: list[tuple[int, int]] = []
    for page in sorted(pages):
        if found and sum(found[-1]) == page:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((page, 1))
    return found


def _map(shape: PageShape, pages: int) -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    return mmap.mmap(-1, pages * shape.page_bytes, flags=flags)


def _view(memory: mmap.mmap, shape: PageShape) -> NDArray[np.float16] | F32:
    pages = len(memory) // shape.page_bytes
    dtype = np.dtype(shape.type.value)
    inner = np.empty((1, *shape.axes), dtype=dtype).strides[1:]
    return np.ndarray((pages, *shape.axes), dtype, buffer=memory, strides=(shape.page_bytes, *inner))
