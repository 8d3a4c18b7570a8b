"""The entries of an eviction queue in flat memory: a priority queue of short byte strings.

An entry is 37 bytes that compare like (key, age, number, version): big-endian, and no field is negative. As
a tuple of numbers it would take 300 bytes. Entries lie in sorted runs, one string each; a small heap has the
recent ones.
"""

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace, nsmallest
from itertools import chain, takewhile
from struct import Struct

from transom.kv.eviction_policy import RANK_UNNEEDED

Key = tuple[int, float, float]
"""Rank, then the policy's priority."""

Fields = tuple[int, float, float, int, int, int]
"""Key, age, number, version."""

SEALED = 256
"""Recent entries at which the heap becomes a run."""

READ_AHEAD = 64
"""Entries that `leading` reads at most."""

_FORMAT = Struct(">BddqIQ")
_SIZE = _FORMAT.size


def packed(key: Key, age: int, number: int, version: int) -> bytes:
    rank, one, two = key
    assert one >= 0 and two >= 0, key
    return _FORMAT.pack(rank, one, two, age, number, version)


unpacked: Callable[[bytes], Fields] = _FORMAT.unpack
"""The inverse of `packed`."""


class Entries:
    """Owns the entries. Mutable.

    Unneeded pages have the time of use for a key, so their entries mostly come in ascending order: they are
    appended to an open run. Appending is O(1), and `leading` can read several entries in turn. Others go
    to the heap, which becomes a run when it is full.
    """

    __slots__ = ("_count", "_firsts", "_heap", "_last", "_open", "_rests", "_serial")

    def __init__(self) -> None:
        self._heap: list[bytes] = []
        self._firsts: list[tuple[bytes, int]] = []
        """A heap: the first entry of each run, and the run's serial number."""
        self._rests: dict[int, bytearray] = {}
        """The other entries of a run, by serial number."""
        self._serial = 0
        self._open = 0
        """The run that can be appended to, if it still exists, and its last entry."""
        self._last = b""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def live(self, versions: Sequence[int]) -> Iterator[list[int]]:
        """The numbers of entries whose version is the one that `versions` names, a run at a time."""
        parts = [b"".join(self._heap), b"".join([first for first, _ in self._firsts])]
        for part in chain(parts, list(self._rests.values())):
            fields = _FORMAT.iter_unpack(bytes(part))
            yield [number for *_, number, version in fields if versions[number] == version]

    def first(self, versions: Sequence[int]) -> Fields | None:
        """The lowest entry whose version is the one that `versions` names. Drops the dead ones before it.

        All in one call, because every eviction comes here for each of its victims.
        """
        heap, firsts = self._heap, self._firsts
        while heap or firsts:
            in_heap = not firsts or (heap and heap[0] < firsts[0][0])
            fields = unpacked(heap[0] if in_heap else firsts[0][0])
            if versions[fields[4]] == fields[5]:
                return fields
            self.pop()
        return None

    def leading(self, until: Key) -> Iterator[Fields]:
        """The lowest entries in turn, as far as they lie side by side, below `until`."""
        heap, firsts = self._heap, self._firsts
        if not firsts or (heap and heap[0] < firsts[0][0]):
            return iter(())
        limit: Fields | Key = until
        # In a heap, the second lowest follows the lowest.
        for other in (*heap[:1], *[first for first, _ in firsts[1:3]]):
            limit = min(limit, unpacked(other))
        first, serial = firsts[0]
        ahead = first + self._rests[serial][: (READ_AHEAD - 1) * _SIZE]
        return takewhile(limit.__gt__, _FORMAT.iter_unpack(ahead))

    # ---------------------------------------------------------------- transitions

    def push(self, entry: bytes) -> None:
        assert len(entry) == _SIZE, entry
        self._count += 1
        if entry[0] != RANK_UNNEEDED:
            heappush(self._heap, entry)
            if len(self._heap) >= SEALED:
                self._add_run(b"".join(sorted(self._heap)))
                self._heap.clear()
        elif (rest := self._rests.get(self._open)) is None or len(rest) >= SEALED * _SIZE:
            self._add_run(entry)
            self._open, self._last = self._serial, entry
        elif entry > self._last:
            rest += entry
            self._last = entry
        else:
            heappush(self._heap, entry)

    def pop(self) -> None:
        """Removes the lowest entry."""
        assert self._count > 0, "no entry"
        self._count -= 1
        heap, firsts = self._heap, self._firsts
        if heap and (not firsts or heap[0] < firsts[0][0]):
            heappop(heap)
            return
        assert firsts, self._count
        serial = firsts[0][1]
        rest = self._rests[serial]
        if rest:
            heapreplace(firsts, (bytes(rest[:_SIZE]), serial))
            del rest[:_SIZE]  # O(1): the bytes before are only marked as unused
        else:
            heappop(firsts)
            del self._rests[serial]

    def sweep(self, least: int, versions: Sequence[int]) -> None:
        """Drops dead entries from the runs that were swept least recently, `least` entries or somewhat more.

        An entry is dead if `versions` names another version by its number.
        """
        assert least > 0, least
        taken, size = set(), 0
        # The oldest run has the lowest serial number; what is left of it gets a new one.
        for _, serial in nsmallest(1 + least // SEALED, self._firsts, key=lambda run: run[1]):
            if size < least and serial != self._open:
                taken.add(serial)
                size += 1 + len(self._rests[serial]) // _SIZE
        swept = [first + self._rests.pop(serial) for first, serial in self._firsts if serial in taken]
        self._firsts = [run for run in self._firsts if run[1] not in taken]
        heapify(self._firsts)
        live = []
        for entries in swept:
            for index, (*_, number, version) in enumerate(_FORMAT.iter_unpack(entries)):
                if versions[number] == version:
                    live.append(entries[index * _SIZE : (index + 1) * _SIZE])
        self._count += len(live) - size
        if live:
            self._add_run(b"".join(sorted(live)))

    def _add_run(self, entries: bytes) -> None:
        assert entries and len(entries) % _SIZE == 0, len(entries)
        self._serial += 1
        heappush(self._firsts, (entries[:_SIZE], self._serial))
        self._rests[self._serial] = bytearray(entries[_SIZE:])
