"""Every native kernel test runs once for each instruction set this machine has, on 1, 2 and 3 threads."""

from collections.abc import Iterator

import pytest

from transom.ops.native import NativeOps, info, set_isa, set_threads

WAYS = [(isa, threads) for isa in ("scalar", "avx512") for threads in (1, 2, 3)]


@pytest.fixture(params=WAYS, ids=[f"{isa}-{threads}" for isa, threads in WAYS])
def native(request: pytest.FixtureRequest) -> Iterator[NativeOps]:
    isa, threads = request.param
    before = info()
    try:
        set_isa(isa)
    except ValueError:
        pytest.skip(f"this CPU does not run {isa}")
    yield NativeOps(threads)
    set_isa(before.isa)
    set_threads(before.threads)
