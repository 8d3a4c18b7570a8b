from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from transom.kv.component_specs import Full, State
from transom.kv.holding import Namespace
from transom.kv.page_rules import PageRule, page_rule
from transom.sched.admission import InFlightPrefix, InFlightPrefixes, common_prefix
from transom.values import Tokens

HERE = Namespace(0, "", None)


def tokens(*values: int) -> Tokens:
    return np.array(values, np.int32)


def is_worth_waiting_for(
    prefix: InFlightPrefix,
    wanted: Tokens,
    cached: int = 0,
    gain_min: int = 1,
    page: int = 4,
    more: Sequence[PageRule] = (),
) -> bool:
    in_flight = InFlightPrefixes([page_rule(Full(), page, 64), *more], gain_min)
    in_flight.prefixes.append(prefix)
    return in_flight.is_worth_waiting_for(HERE, wanted, cached=cached)


@given(a=st.lists(st.integers(0, 1), max_size=9), b=st.lists(st.integers(0, 1), max_size=9))
def test_the_common_prefix_is_the_one_found_token_by_token(a: list[int], b: list[int]) -> None:
    expected = 0
    while expected < min(len(a), len(b)) and a[expected] == b[expected]:
        expected += 1
    assert common_prefix(tokens(*a), tokens(*b)) == expected


def test_a_prefix_not_yet_published_is_worth_waiting_for() -> None:
    assert is_worth_waiting_for(InFlightPrefix(HERE, tokens(*range(12)), 4), tokens(*range(8), 99))


def test_a_published_prefix_is_not_worth_waiting_for() -> None:
    assert not is_worth_waiting_for(InFlightPrefix(HERE, tokens(*range(12)), 8), tokens(*range(8), 99))


def test_only_whole_pages_are_worth_waiting_for() -> None:
    """On pages of four, only four of seven known tokens will be published."""
    assert not is_worth_waiting_for(InFlightPrefix(HERE, tokens(*range(7)), 4), tokens(*range(7), 99))
    assert is_worth_waiting_for(InFlightPrefix(HERE, tokens(*range(7)), 0), tokens(*range(7), 99))


def test_a_part_of_a_page_is_worth_waiting_for_until_its_page_is_published() -> None:
    wanted = tokens(*range(6), 99)
    assert is_worth_waiting_for(InFlightPrefix(HERE, tokens(*range(12)), 7), wanted, cached=4)
    assert not is_worth_waiting_for(InFlightPrefix(HERE, tokens(*range(12)), 8), wanted, cached=4)


def test_cached_tokens_are_no_gain() -> None:
    publisher = InFlightPrefix(HERE, tokens(*range(12)), 0)
    assert not is_worth_waiting_for(publisher, tokens(*range(8), 99), cached=8)
    assert not is_worth_waiting_for(publisher, tokens(*range(8), 99), cached=4, gain_min=5)


def test_the_last_token_is_never_worth_waiting_for() -> None:
    assert not is_worth_waiting_for(InFlightPrefix(HERE, tokens(*range(8)), 0), tokens(0))


def test_a_prefix_in_another_namespace_is_not_worth_waiting_for() -> None:
    other = InFlightPrefix(Namespace(0, "tenant", None), tokens(*range(12)), 0)
    assert not is_worth_waiting_for(other, tokens(*range(8), 99))


def test_with_states_only_a_prefix_that_ends_in_a_snapshot_is_worth_waiting_for() -> None:
    """With snapshots every 8 tokens on pages of 4, 8 of 13 shared tokens can be hit."""
    state = page_rule(State(8), 4, 64)
    shared, wanted = tokens(*range(24)), tokens(*range(13), 99)
    assert is_worth_waiting_for(InFlightPrefix(HERE, shared, 0), wanted, gain_min=8, more=[state])
    assert not is_worth_waiting_for(InFlightPrefix(HERE, shared, 0), wanted, gain_min=9, more=[state])
    assert not is_worth_waiting_for(InFlightPrefix(HERE, shared, 8), wanted, cached=8, more=[state])
    assert is_worth_waiting_for(InFlightPrefix(HERE, shared, 8), wanted, cached=8), (
        "without states the part of a page is a hit"
    )
    assert not is_worth_waiting_for(
        InFlightPrefix(HERE, shared, 4), tokens(*range(7), 99), cached=4, more=[state]
    )
