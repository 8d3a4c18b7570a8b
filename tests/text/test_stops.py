"""Stop strings, against a reading of the rule character by character."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom.errors import BadRequest
from transom.text.stops import StopMatcher, StopStrings

SMALL = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=5)


def cut(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The first prefix that ends with a stop string ends the stream; the longest such string is cut off."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


def pieces(text: str, cuts: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(at for at in cuts if at < len(text))})
    return [text[a:b] for a, b in pairwise(edges)]


@given(SMALL, STOPS, st.lists(st.integers(0, 30)))
def test_the_released_text_does_not_depend_on_the_pieces_of_the_stream(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    matcher = StopMatcher(StopStrings(stops))
    released, stopped = "", None
    for piece in pieces(text, cuts):
        step = matcher.feed(piece)
        released += step.text
        if step.stop is not None:
            stopped = step.stop
            break
    if stopped is None:
        released += matcher.finish()
    assert (released, stopped) == cut(text, stops)


@given(SMALL, STOPS)
def test_only_a_possible_beginning_of_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(StopStrings(stops))
    step = matcher.feed(text)
    if step.stop is None:
        held = text[len(step.text) :]
        longest = max(
            (
                k
                for k in range(len(text) + 1)
                if any(stop.startswith(text[len(text) - k :]) for stop in stops)
            ),
            default=0,
        )
        assert len(held) == longest


def test_text_that_only_began_like_a_stop_string_is_released_at_once() -> None:
    matcher = StopMatcher(StopStrings(["</answer>"]))
    assert matcher.feed("so </ans").text == "so "
    assert matcher.feed("wers>").text == "</answers>"
    assert matcher.finish() == ""


def test_a_stop_string_spread_over_many_pieces_is_never_sent() -> None:
    matcher = StopMatcher(StopStrings(["STOP"]))
    steps = [matcher.feed(piece) for piece in ("a S", "T", "O", "P b")]
    assert [step.text for step in steps] == ["a ", "", "", ""]
    assert steps[-1].stop == "STOP"


def test_without_stop_strings_everything_passes() -> None:
    matcher = StopMatcher(StopStrings([]))
    assert (matcher.feed("any text").text, matcher.finish()) == ("any text", "")


def test_an_empty_stop_string_is_a_bad_request() -> None:
    with pytest.raises(BadRequest, match="empty"):
        StopStrings(["a", ""])


def test_a_long_periodic_stop_string_costs_no_more_per_character() -> None:
    stop = "a" * 20_000 + "b"
    matcher = StopMatcher(StopStrings([stop]))
    assert matcher.feed("a" * 50_000).text == "a" * 30_000
    assert matcher.feed("b").stop == stop


def test_cursors_in_one_automaton_are_independent() -> None:
    stops = StopStrings(["ab"])
    first, second = StopMatcher(stops), StopMatcher(stops)
    assert (first.feed("a").text, second.feed("b").text) == ("", "b")
    assert (first.feed("b").stop, second.feed("a").text) == ("ab", "")
    assert second.finish() == "a"
