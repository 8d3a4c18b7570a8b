"""A request that arrives with the tokens another engine has sampled for it continues with the same bits."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.engine.schedules import Played, RecordingRunner, build, play, random_requests
from tests.engine.test_same_bits import LONGEST, PAGE_SIZES, config
from tests.tiny import vocabulary, write_tiny_gguf

from transom.errors import BadRequest
from transom.models.load import load_model
from transom.models.spec import Model
from transom.ops.backend import choose_ops
from transom.sched.commands import require_servable
from transom.values import FinishReason, Request, RequestId
from transom.weights.gguf import read_gguf
from transom.wire import Submit


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(read_gguf(write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")))


@pytest.mark.parametrize("seed", range(6))
def test_a_continuation_has_the_tokens_and_the_logits_of_the_uninterrupted_run(
    model: Model, seed: int
) -> None:
    rng = random.Random(seed)
    requests = random_requests(rng, 8, len(vocabulary()), LONGEST)
    settings, ops = config(rng, PAGE_SIZES[seed % 3]), choose_ops(1)
    whole, whole_runner = _played(model, requests, seed, rng)
    interrupted = [
        replace(request, outputs=tuple(whole.outputs[request.id][:cut]))
        for request in requests
        for cut in [rng.randrange(len(whole.outputs[request.id]))]
    ]
    engine, runner = build(model, ops, settings)
    played = play(engine, runner, [(rng.randrange(12), Submit(request)) for request in interrupted])
    for request in interrupted:
        assert [*request.outputs, *played.outputs[request.id]] == whole.outputs[request.id]
        end = played.ended[request.id]
        assert (end.usage.prompt_tokens, end.usage.completion_tokens, end.reason) == (
            len(request.prompt),
            request.max_tokens,
            FinishReason.LENGTH,
        )
        assert end.usage.cached_tokens <= end.usage.prompt_tokens
    assert runner.digests.items() <= whole_runner.digests.items()


def _played(
    model: Model, requests: Sequence[Request], seed: int, rng: random.Random
) -> tuple[Played, RecordingRunner]:
    engine, runner = build(model, choose_ops(1 + seed % 2), config(rng, PAGE_SIZES[seed % 3]))
    return play(engine, runner, [(0, Submit(request)) for request in requests]), runner


def test_equal_outputs_that_are_found_in_the_cache_do_not_count_as_cached_prompt_tokens(
    model: Model,
) -> None:
    engine, runner = build(model, choose_ops(1), config(random.Random(1), 1))
    first = Request(RequestId(1), np.arange(4, 12, dtype=np.int32), 40)
    outputs = tuple(play(engine, runner, [(0, Submit(first))]).outputs[first.id][:30])
    again = replace(first, id=RequestId(2), outputs=outputs)
    usage = play(engine, runner, [(0, Submit(again))]).ended[again.id].usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (8, 8, 40)


@pytest.mark.parametrize(("max_tokens", "context"), [(3, 100), (9, 11)])
def test_a_request_whose_outputs_are_complete_is_refused(max_tokens: int, context: int) -> None:
    complete = Request(RequestId(1), np.arange(8, dtype=np.int32), max_tokens, outputs=(1, 2, 3))
    with pytest.raises(BadRequest, match="no token can follow"):
        require_servable(complete, context)
