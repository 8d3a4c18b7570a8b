"""The KV store: layout, bytes, and memory that is free until it is written."""

import numpy as np
import pytest

from transom.ops.store import KVStore, KVType, PageShape

FULL = PageShape(layers=3, page_size=4, kv_heads=2, head_dim=16)
WINDOW = PageShape(layers=5, page_size=16, kv_heads=1, head_dim=32, type=KVType.FLOAT32)


def test_pages_are_laid_out_as_kernels_expect() -> None:
    store = KVStore((FULL, WINDOW), (7, 9))
    assert store.view(0).shape == (8, 3, 2, 4, 2, 16) and store.view(0).dtype == np.float16
    assert store.view(1).shape == (10, 5, 2, 16, 1, 32) and store.view(1).dtype == np.float32
    for component in (0, 1):
        view = store.view(component)
        assert view[0].flags.c_contiguous and view.flags.writeable
        assert view.ctypes.data % 4096 == 0


@pytest.mark.parametrize("shape", [FULL, WINDOW, PageShape(1, 1, 1, 16), PageShape(15, 16, 1, 256)])
def test_the_stride_of_a_page_is_its_bytes_rounded_up_to_4_kib(shape: PageShape) -> None:
    view = KVStore((shape,), (3,)).view(0)
    assert view.strides[0] == shape.page_bytes and shape.page_bytes % 4096 == 0
    assert 0 <= shape.page_bytes - view[0].nbytes < 4096


def test_pages_do_not_overlap_and_begin_as_zeros() -> None:
    view = KVStore((FULL,), (5,)).view(0)
    assert not view.any()
    for page in range(6):
        view[page] = page
    assert all((view[page] == page).all() for page in range(6))


def test_components_do_not_share_bytes() -> None:
    store = KVStore((FULL, FULL), (4, 4))
    store.view(0)[...] = 1
    assert not store.view(1).any()


def test_paged_does_not_copy_the_page_table() -> None:
    store = KVStore((FULL,), (4,))
    table = np.zeros((2, 3), dtype=np.int32)
    paged = store.paged(0, table)
    table[1, 2] = 4
    assert paged.rows[1, 2] == 4 and paged.page_size == 4
    paged.pages[4] = 1
    assert (store.view(0)[4] == 1).all()


def test_filling_with_nan_poisons_every_slot() -> None:
    store = KVStore((FULL, WINDOW), (2, 2))
    store.fill(np.nan)
    assert np.isnan(store.view(0)).all() and np.isnan(store.view(1)).all()


def test_a_view_outlives_its_store() -> None:
    view = KVStore((FULL,), (2,)).view(0)
    view[1] = 3
    assert (view[1] == 3).all()


def test_address_space_far_beyond_memory_can_be_mapped() -> None:
    shape = PageShape(layers=15, page_size=16, kv_heads=1, head_dim=256)
    pages = 2**40 // shape.page_bytes
    view = KVStore((shape,), (pages,)).view(0)
    view[pages] = 1
    assert (view[pages] == 1).all() and not view[pages // 2].any()
