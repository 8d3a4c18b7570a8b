"""Entries of an eviction queue: the same order as a sorted list, also after a sweep."""

import random

from transom.kv.entries import Entries, Key, packed, unpacked


def test_entries_come_out_in_order_however_they_went_in() -> None:
    draw = random.Random(5)
    entries, kept = Entries(), list[bytes]()
    for number in range(30_000):
        rank = draw.choice((0, 1, 1, 1, 2, 3))
        key: Key = (rank, number // 3 if rank == 1 else draw.randrange(500), draw.random())
        entry = packed(key, number, number, number + 1)
        assert unpacked(entry) == (*key, number, number, number + 1)
        entries.push(entry)
        kept.append(entry)
        if number % 3 == 0:
            kept.sort()
            for _ in range(draw.randrange(4)):
                assert entries.first(range(1, 30_001)) == unpacked(kept.pop(0))
                entries.pop()
        assert len(entries) == len(kept)
    for entry in sorted(kept):
        assert entries.first(range(1, 30_001)) == unpacked(entry)
        entries.pop()
    assert entries.first(()) is None and not len(entries)


def test_leading_entries_are_the_lowest_in_turn_below_the_limit() -> None:
    draw = random.Random(6)
    entries, kept = Entries(), list[bytes]()
    for number in range(3000):
        rank = draw.choice((1, 1, 1, 1, 2))
        kept.append(packed((rank, number // 2 + draw.randrange(2), 0.0), number, number, number + 1))
        entries.push(kept[-1])
    kept.sort()
    seen = 0
    while (first := entries.first(range(1, 3001))) is not None:
        until: Key = (1, first[1] + draw.randrange(20), 0.0)
        leading = list(entries.leading(until))
        assert leading == [unpacked(entry) for entry in kept[: len(leading)]]
        assert all(fields < (*until, 0, 0, 0) for fields in leading)
        seen += len(leading) > 1
        entries.pop()
        kept.pop(0)
    assert seen > 500, "mostly several lie side by side"


def test_a_sweep_drops_dead_entries_only() -> None:
    draw = random.Random(7)
    entries, versions = Entries(), [0] * 500
    for version in range(1, 20_000):
        number = draw.randrange(500)
        versions[number] = version
        key: Key = (draw.choice((1, 2)), draw.randrange(1000), 0.0)
        entries.push(packed(key, number, number, version))
        if version % 1024 == 0:
            entries.sweep(4096, versions)
    assert len(entries) < 8000, "twenty thousand went in, and five hundred count"
    assert sorted(number for part in entries.live(versions) for number in part) == list(range(500))
