"""Workloads: determined by their seed, and of the shape that their names promise."""

import numpy as np
import pytest

from transom.errors import ConfigError
from transom.values import Tokens
from transom_lab.sim.trace import Trace
from transom_lab.sim.workloads import DAY_S, WORKLOADS, make_trace


def same(one: Trace, other: Trace) -> bool:
    return len(one.arrivals) == len(other.arrivals) and all(
        (a.at, a.after, a.sample_of, a.tenant) == (b.at, b.after, b.sample_of, b.tenant)
        and np.array_equal(a.prompt, b.prompt)
        and np.array_equal(a.outputs, b.outputs)
        for a, b in zip(one.arrivals, other.arrivals, strict=True)
    )


def common(one: Tokens, other: Tokens) -> int:
    length = min(len(one), len(other))
    return int(np.cumprod(one[:length] == other[:length]).sum())


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_seed_gives_the_same_workload_and_another_seed_a_different_one(name: str) -> None:
    requests = 200 if name == "day" else 40
    assert same(make_trace(name, 7, requests), make_trace(name, 7, requests))
    assert not same(make_trace(name, 7, requests), make_trace(name, 8, requests))


def test_w3_shares_1502_tokens_and_no_more() -> None:
    trace = make_trace("w3", 0)
    assert [len(a.prompt) for a in trace.arrivals] == [1550] * 32
    assert common(trace.arrivals[0].prompt, trace.arrivals[31].prompt) == 1502
    assert trace.concurrency == 8


def test_a_turn_of_w4s_contains_the_turn_before_and_its_answer() -> None:
    trace = make_trace("w4s", 0)
    assert [len(a.prompt) for a in trace.arrivals[:9]] == [1064] * 8 + [1064 + 64 + 62]
    for arrival in trace.arrivals[8:]:
        assert arrival.after is not None
        before = trace.arrivals[arrival.after]
        history = np.concatenate([before.prompt, before.outputs])
        assert np.array_equal(arrival.prompt[: len(history)], history)


def test_agents_branch_and_rollouts_have_sixteen_outputs_of_each_prompt() -> None:
    followed = [a.after for a in make_trace("agents", 0).arrivals if a.after is not None]
    assert len(followed) > len(set(followed))
    rollouts = make_trace("rollouts", 0, 64).arrivals
    assert [a.sample_of for a in rollouts] == [
        None if number % 16 == 0 else number - number % 16 for number in range(64)
    ]


def test_a_day_is_busier_at_noon_than_at_midnight() -> None:
    hours = [int(a.at / 3600) for a in make_trace("day", 0, 2_000).arrivals]
    assert max(a.at for a in make_trace("day", 0, 2_000).arrivals) < DAY_S
    assert sum(11 <= hour < 13 for hour in hours) > 2 * sum(hour in (23, 0) for hour in hours)


def test_an_unknown_workload_is_refused_with_a_list_of_the_known() -> None:
    with pytest.raises(ConfigError, match="'w5'; it must be one of w1, w2c8"):
        make_trace("w5", 0)
