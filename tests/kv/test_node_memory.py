"""Bytes of Python objects for each node of the radix tree: all that a cache allocates as its tree grows."""

import pytest

from transom_lab.microbench.scale import bytes_for_each

BYTES_MOST = 600
NODES = 20_000


@pytest.mark.parametrize("turns", [1, 4, 100], ids=["one root", "conversations", "long paths"])
def test_a_node_takes_at_most_600_bytes(turns: int) -> None:
    assert bytes_for_each(NODES, turns) <= BYTES_MOST
