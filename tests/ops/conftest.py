"""Native kernel tests run once per instruction set of this machine; the fastest with 1, 2 and 3 threads."""

from collections.abc import Iterator

import pytest

from transom.ops.native import NativeOps, info, set_isa, set_threads

FASTEST, *OTHERS = info().isas
WAYS = [(FASTEST, threads) for threads in (1, 2, 3)] + [(isa, 2) for isa in OTHERS]


@pytest.fixture(params=WAYS, ids=[f"{isa}-{threads}" for isa, threads in WAYS])
def native(request: pytest.FixtureRequest) -> Iterator[NativeOps]:
    isa, threads = request.param
    before = info()
    set_isa(isa)
    yield NativeOps(threads)
    set_isa(before.isa)
    set_threads(before.threads)
