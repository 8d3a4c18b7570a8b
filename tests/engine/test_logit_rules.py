"""Penalties, biases and bans: their arithmetic, and the same outputs in every schedule."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.schedules import (
    Played,
    assert_equal_to_cold,
    build,
    cold_logits,
    play,
    random_arrivals,
    random_requests,
)
from tests.engine.test_same_bits import LONGEST, PAGE_SIZES, config
from tests.tiny import vocabulary, write_tiny_gguf

from transom.engine.logit_rules import apply_rules
from transom.models.load import load_model
from transom.models.spec import Model
from transom.ops.backend import choose_ops
from transom.ops.protocol import F32, Ops, SamplingRows
from transom.ops.reference import ReferenceOps
from transom.sched.commands import outputs_of
from transom.steps import RuledOutput
from transom.values import FinishReason, LogitRules, Request, RequestId, Sampling, Sibling
from transom.weights.gguf import read_gguf
from transom.wire import Submit

VOCABULARY = len(vocabulary())
SMALL = 9


# ---------------------------------------------------------------- an independent oracle


def changed(row: F32, output: RuledOutput) -> list[np.float32]:
    """The rules written as a loop over the vocabulary, one float32 operation after another."""
    rules, outputs, known = output.rules, output.outputs.tolist(), set(output.tokens.tolist())
    bias = {} if rules.biased is None else dict(zip(rules.biased.tolist(), rules.bias, strict=True))
    logits = []
    for token, logit in enumerate(row):
        if token in bias:
            logit = logit + np.float32(bias[token])
        if rules.repetition != 1 and token in known:
            factor = np.float32(rules.repetition)
            logit = logit / factor if logit > 0 else logit * factor
        if (rules.frequency or rules.presence) and token in outputs:
            logit = logit - np.float32(rules.frequency) * np.float32(outputs.count(token))
            logit = logit - np.float32(rules.presence)
        logits.append(logit)
    completed = [word[-1] for word in rules.banned if tuple([*outputs, word[-1]][-len(word) :]) == word]
    for banned in (
        set(range(len(row))) - set(rules.allowed.tolist()) if rules.allowed is not None else set(),
        output.stop_ids if len(outputs) < rules.min_tokens else set(),
        set(completed),
    ):
        after = [np.float32(-np.inf) if token in banned else logit for token, logit in enumerate(logits)]
        logits = after if max(after) > -np.inf else logits
    return logits


tokens = st.integers(0, SMALL - 1)
rules_of_any_kind = st.builds(
    lambda bias, allowed, **rest: LogitRules(
        biased=np.array(sorted(bias), np.int32) if bias else None,
        bias=tuple(bias[token] for token in sorted(bias)),
        allowed=np.array(sorted(allowed), np.int32) if allowed else None,
        **rest,
    ),
    bias=st.dictionaries(tokens, st.floats(-100, 100), max_size=4),
    allowed=st.sets(tokens),
    repetition=st.sampled_from([1.0, 0.5, 1.1, 1.7]),
    frequency=st.sampled_from([0.0, 0.3, -1.1]),
    presence=st.sampled_from([0.0, 0.7, -0.1]),
    min_tokens=st.integers(0, 4),
    banned=st.lists(st.lists(tokens, min_size=1, max_size=3).map(tuple), max_size=4).map(tuple),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.floats(-50, 50, width=32), min_size=SMALL, max_size=SMALL),
    rules_of_any_kind,
    st.lists(tokens, min_size=1, max_size=3),
    st.lists(tokens, max_size=5),
    st.frozensets(tokens, max_size=3),
)
def test_rules_equal_a_loop_over_the_vocabulary(
    logits: list[float], rules: LogitRules, prompt: list[int], outputs: list[int], stop_ids: frozenset[int]
) -> None:
    output = RuledOutput(rules, np.array(prompt + outputs, np.int32), len(prompt), stop_ids)
    row = np.array(logits, np.float32)
    before, expected = row.tobytes(), np.array(changed(row, output), np.float32)
    after = apply_rules(row, output)
    assert row.tobytes() == expected.tobytes()
    after.undo()
    assert row.tobytes() == before


def test_a_row_that_is_not_finite_stays_so() -> None:
    """The sampler reports such rows; a rule must not hide them, and must not raise."""
    every = LogitRules(
        np.array([0], np.int32), (1.0,), 1.1, 0.5, 0.5, np.array([1], np.int32), 9, ((1,), (2, 1))
    )
    for value in (math.nan, math.inf):
        row = np.full(SMALL, value, np.float32)
        apply_rules(row, RuledOutput(every, np.array([1, 2], np.int32), 1, frozenset({1})))
        assert not np.isfinite(row.max())


# ---------------------------------------------------------------- schedules


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(read_gguf(write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")))


def random_rules(rng: random.Random) -> LogitRules | None:
    some = np.array(sorted(rng.sample(range(VOCABULARY), 40)), np.int32)
    word = tuple(rng.choices(range(VOCABULARY), k=2))
    return rng.choice(
        [
            None,
            LogitRules(repetition=1.4, presence=0.5),
            LogitRules(frequency=1.5, min_tokens=20),
            LogitRules(biased=some, bias=(3.0,) * len(some), repetition=0.8),
            LogitRules(allowed=some, banned=((int(some[0]),), word), frequency=0.1),
            LogitRules(frequency=-2.0, presence=-2.0, banned=tuple((token,) for token in range(0, 60, 2))),
        ]
    )


def with_rules(rng: random.Random, requests: Sequence[Request]) -> list[Request]:
    """The requests with logit rules; some with more outputs, all with stop ids."""
    ruled = []
    for number, request in enumerate(requests):
        siblings = tuple(
            Sibling(RequestId(100 * (number + 1) + i), Sampling(0.9, seed=1000 * (number + 1) + i))
            for i in range(rng.choice([0, 0, 2]))
        )
        ruled.append(
            replace(
                request,
                rules=random_rules(rng),
                siblings=siblings,
                stop_ids=frozenset(rng.sample(range(VOCABULARY), 6)),
            )
        )
    return ruled


@pytest.mark.parametrize("seed", range(2))
def test_outputs_with_rules_equal_the_cold_run_in_every_schedule(model: Model, seed: int) -> None:
    rng = random.Random(seed)
    ops = choose_ops(1 + seed % 2)
    engine, runner = build(model, ops, config(rng, PAGE_SIZES[seed % 3]))
    requests = with_rules(rng, random_requests(rng, 7, VOCABULARY, LONGEST))
    played = play(engine, runner, random_arrivals(rng, requests))
    assert_equal_to_cold(ops, model, requests, played, runner)
    for request in (output for asked in requests for output in outputs_of(asked)):
        assert_sampled_from_changed_logits(model, ops, request, played)
    assert seed or engine.scheduler.stats().retractions > 0


def assert_sampled_from_changed_logits(model: Model, ops: Ops, request: Request, played: Played) -> None:
    outputs = played.outputs[request.id]
    prompt, rules = request.prompt.tolist(), request.rules or LogitRules()
    rows = cold_logits(ops, model, [*prompt, *outputs[:-1]], len(prompt))
    for number, (row, token) in enumerate(zip(rows, outputs, strict=True)):
        known = np.array(prompt + outputs[:number], np.int32)
        logits = np.array(changed(row, RuledOutput(rules, known, len(prompt), request.stop_ids)), np.float32)
        assert ReferenceOps().sample(logits[None], sampling_row(request, len(known)))[0] == [token]
        own = ReferenceOps().logprobs(row[None], np.array([token], np.int32), 0)[0]
        assert own == [np.float32(played.logprobs[request.id][number])]
    if len(outputs) < rules.min_tokens:
        assert played.ended[request.id].reason is FinishReason.LENGTH


def sampling_row(request: Request, position: int) -> SamplingRows:
    one = request.sampling
    return SamplingRows(
        temperature=np.array([one.temperature], np.float32),
        top_k=np.array([one.top_k], np.int32),
        top_p=np.array([one.top_p], np.float32),
        min_p=np.array([one.min_p], np.float32),
        seed=np.array([one.seed], np.uint64),
        position=np.array([position], np.int32),
    )


def test_an_output_continues_with_its_rules_in_another_engine(model: Model) -> None:
    """As after a crash: the successor gets the tokens that were delivered."""
    rng = random.Random(3)
    ops = choose_ops(1)
    for request in with_rules(rng, random_requests(rng, 8, VOCABULARY, LONGEST)):
        alone = replace(request, siblings=(), max_tokens=24)
        engine, runner = build(model, ops, config(rng, 16))
        whole = play(engine, runner, [(0, Submit(alone))]).outputs[alone.id]
        for cut in (1, len(whole) // 2):
            if 0 < cut < len(whole):
                engine, runner = build(model, ops, config(rng, 16))
                rest = replace(alone, outputs=tuple(whole[:cut]))
                assert whole[cut:] == play(engine, runner, [(0, Submit(rest))]).outputs[alone.id]
