"""How much is to be had, in pages and in bytes."""

from transom.kv.budget import Capacity


def test_what_a_span_lacks_is_of_the_worst_component() -> None:
    assert Capacity((2, 5), 0, (0, 0)).lacks((3, 1)) == 1
    assert Capacity((3, 1), 0, (0, 0)).lacks((3, 1)) == 0
    assert Capacity((9, 9), 0, (0, 0)).lacks((3, 1)) == 0


def test_what_a_span_lacks_in_bytes_is_saved_by_every_component_that_grows() -> None:
    room = Capacity((9, 9), 100, (30, 10))
    assert [room.lacks(need) for need in ((2, 4), (3, 3), (4, 4), (4, 0))] == [0, 1, 2, 1]
    assert room.covers((2, 4)) and not room.covers((3, 3))
    assert room.alone() == (3, 9)
    assert room.less((2, 2)).more((0, 1)) == Capacity((7, 8), 30, (30, 10))
