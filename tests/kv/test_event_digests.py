"""Digests of cached prefixes: one salt, one family of digests."""

import pytest

from transom.kv.events import prefix_digest

TOKENS = bytes(range(64))


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 256])
def test_salts_that_differ_anywhere_have_different_digests(length: int) -> None:
    salt = "s" * length
    others = (salt + "x", salt + "\0", "x" + salt, salt[:-1] + "x", "é" * length + "x")
    assert all(prefix_digest(salt, TOKENS) != prefix_digest(other, TOKENS) for other in others)
    assert prefix_digest(salt, TOKENS) == prefix_digest(salt, TOKENS)
