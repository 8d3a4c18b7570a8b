from collections.abc import Callable, Mapping, Sequence

from transom.kv.budget import PageCounts
from transom.sched.retraction import COMPARED, Price, choose_victims, price_per_byte


def together(gains: Mapping[str, PageCounts]) -> Callable[[Sequence[str]], PageCounts]:
    def freed_by(victims: Sequence[str]) -> PageCounts:
        return tuple(sum(gains[v][c] for v in victims) for c in range(2))

    return freed_by


def lacking(*pages: int) -> Callable[[PageCounts], bool]:
    return lambda gain: all(g >= lack for g, lack in zip(gain, pages, strict=True))


def per_page(recompute: int) -> Price[str]:
    return lambda _, gain: price_per_byte(gain, (1, 1), recompute)


def test_one_victim_is_taken_when_one_is_enough() -> None:
    gains = {"c": (1, 1), "b": (4, 4), "a": (4, 4)}
    victims = choose_victims(lacking(2, 2), ["c", "b", "a"], freed_by=together(gains), price=per_page(8))
    assert victims == ("b",)


def test_the_victim_has_the_least_to_recompute_per_page() -> None:
    gains = {"c": (2, 2), "b": (4, 4), "a": (4, 4)}
    cost = {"c": 30, "b": 40, "a": 20}
    assert choose_victims(
        lacking(1, 1),
        ["c", "b", "a"],
        freed_by=together(gains),
        price=lambda victim, gain: price_per_byte(gain, (1, 1), cost[victim]),
    ) == ("a",)


def test_bytes_count_and_not_pages() -> None:
    """Forty tokens for 4 big pages cost less than thirty tokens for 1 big and 5 small pages."""
    gains, cost = {"c": (1, 5), "b": (4, 0)}, {"c": 30, "b": 40}
    victims = choose_victims(
        lacking(1, 0),
        ["c", "b"],
        freed_by=together(gains),
        price=lambda victim, gain: price_per_byte(gain, (100, 1), cost[victim]),
    )
    assert victims == ("b",)


def test_one_victim_far_from_the_junior_end_is_better_than_several() -> None:
    names = [f"{n:02}" for n in range(COMPARED + 4)]
    gains = dict.fromkeys(names, (1, 1)) | {names[-2]: (2, 2)}
    victims = choose_victims(lacking(2, 2), names, freed_by=together(gains), price=per_page(8))
    assert victims == (names[-2],)


def test_the_most_junior_of_equal_victims_is_taken() -> None:
    gains = {"c": (2, 2), "b": (2, 2)}
    assert choose_victims(lacking(1, 0), ["c", "b"], freed_by=together(gains), price=per_page(8)) == ("c",)


def test_several_victims_are_taken_from_the_junior_end_if_one_is_not_enough() -> None:
    gains = {"d": (1, 0), "c": (1, 0), "b": (1, 1), "a": (1, 1)}
    victims = choose_victims(lacking(2, 1), ["d", "c", "b", "a"], freed_by=together(gains), price=per_page(8))
    assert victims == ("d", "c", "b")


def test_no_request_is_retracted_in_vain() -> None:
    gains = {"c": (1, 0), "b": (1, 0)}
    assert choose_victims(lacking(1, 1), ["c", "b"], freed_by=together(gains), price=per_page(8)) == ()
    assert choose_victims(lacking(1, 1), [], freed_by=together(gains), price=per_page(8)) == ()


def test_a_component_with_pages_to_spare_does_not_count() -> None:
    gains = {"c": (0, 3)}
    assert choose_victims(lacking(-5, 2), ["c"], freed_by=together(gains), price=per_page(8)) == ("c",)
