"""The cost of a step: counts, rates, and rates learned from steps with known rates."""

import random

import numpy as np
import pytest

from transom.sched.step_cost import CostLearner, StepCost, StepCounts, counts_of, keys_near, keys_read
from transom.steps import SpanWork, StepWork
from transom.values import RequestId, Sampling


def work(*spans: tuple[int, int]) -> StepWork:
    """Spans of one token sample the next one."""
    return StepWork(
        tuple(
            SpanWork(
                RequestId(i),
                i,
                start,
                np.zeros(end - start, np.int32),
                Sampling() if end == start + 1 else None,
            )
            for i, (start, end) in enumerate(spans)
        ),
        (),
    )


@pytest.mark.parametrize(("start", "end"), [(0, 1), (0, 9), (3, 4), (5, 30), (40, 41)])
@pytest.mark.parametrize("window", [1, 4, 7, 100])
def test_keys_equal_those_counted_token_by_token(start: int, end: int, window: int) -> None:
    assert keys_read(start, end) == sum(token + 1 for token in range(start, end))
    assert keys_near(start, end, window) == sum(min(token + 1, window) for token in range(start, end))


def test_a_step_is_counted_over_all_its_spans() -> None:
    step = work((9, 10), (0, 4), (4, 5))
    assert counts_of(step) == StepCounts(spans=3, tokens=6, sampled=2, attended=10 + 10 + 5, near=0)
    assert counts_of(step, window=3).near == 3 + (1 + 2 + 3 + 3) + 3


def test_a_step_costs_its_counts_times_the_rates() -> None:
    cost = StepCost(1.0, 0.5, 0.25, 0.125, per_sampled=2.0, per_near=4.0, window=3)
    assert cost.seconds(work((9, 10), (0, 4), (4, 5))) == 1 + 3 * 0.5 + 6 * 0.25 + 25 * 0.125 + 2 * 2 + 15 * 4
    assert cost.of_span(0, 4) == 0.5 + 4 * 0.25 + 10 * 0.125 + 9 * 4


def test_the_longest_span_is_the_last_that_costs_no_more() -> None:
    cost = StepCost(base=100.0, per_span=0.5, per_token=1.0)
    assert [cost.longest_span(7, 16, seconds) for seconds in (0.0, 1.4, 1.5, 9.0, 90.0)] == [0, 0, 1, 8, 16]
    assert StepCost(per_attended=1.0).longest_span(10, 16, 11 + 12 + 13) == 3


TRUE = StepCost(base=0.020, per_span=0.0008, per_token=0.0007, per_attended=3e-7)


def random_counts(rng: random.Random) -> StepCounts:
    """A step of up to 16 decodes, sometimes with a chunk."""
    spans = [(start, start + 1) for start in (rng.randint(10, 2000) for _ in range(rng.randint(0, 16)))]
    if not spans or rng.random() < 0.4:
        start = rng.randint(0, 2000)
        spans.append((start, start + rng.choice([16, 64, 256, 512])))
    return counts_of(work(*spans))


def observe_steps(
    learner: CostLearner, steps: int, rng: random.Random, outliers: float = 0.0, slower: float = 1.0
) -> None:
    for _ in range(steps):
        counts = random_counts(rng)
        seconds = TRUE.of(counts) * slower * rng.uniform(0.95, 1.05)
        learner.observe(counts, seconds * rng.choice([0.1, 5, 20]) if rng.random() < outliers else seconds)


def worst_error(learner: CostLearner, slower: float = 1.0) -> float:
    rng = random.Random("steps never seen")
    unseen = [random_counts(rng) for _ in range(100)]
    return max(abs(learner.cost().of(counts) / (slower * TRUE.of(counts)) - 1) for counts in unseen)


def test_before_the_first_observation_steps_cost_nothing() -> None:
    assert CostLearner().cost() == StepCost()


def test_a_hundred_steps_predict_the_cost_of_later_steps() -> None:
    learner = CostLearner()
    observe_steps(learner, 100, random.Random(1))
    assert worst_error(learner) < 0.05


def test_outliers_hardly_move_the_rates() -> None:
    learner = CostLearner()
    observe_steps(learner, 300, random.Random(2), outliers=0.1)
    assert worst_error(learner) < 0.15


def test_the_rates_follow_a_machine_that_becomes_slower() -> None:
    learner = CostLearner()
    observe_steps(learner, 200, random.Random(3))
    observe_steps(learner, 200, random.Random(4), slower=2.0)
    assert worst_error(learner, slower=2.0) < 0.10


def test_no_rate_falls_below_zero() -> None:
    learner = CostLearner()
    for tokens, seconds in ((1, 3.0), (100, 1.0)) * 20:
        learner.observe(StepCounts(1, tokens, 1, tokens), seconds)
    cost = learner.cost()
    assert min(cost.base, cost.per_span, cost.per_token, cost.per_attended) >= 0
    assert 1.0 <= cost.of(StepCounts(1, 100, 1, 100)) <= 3.0


def test_the_same_steps_give_the_same_rates() -> None:
    one, other = CostLearner(), CostLearner()
    observe_steps(one, 50, random.Random(5), outliers=0.1)
    observe_steps(other, 50, random.Random(5), outliers=0.1)
    assert one.cost() == other.cost() != StepCost()


def test_a_step_without_a_duration_is_ignored() -> None:
    learner = CostLearner()
    learner.observe(StepCounts(1, 1, 1, 1), 0.0)
    assert learner.cost() == StepCost()
