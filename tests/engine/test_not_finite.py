"""Logits that are not finite, and token ids that the model does not have, end their own request only."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.engine.schedules import Played
from tests.models.test_load_errors import rewritten
from tests.tiny import vocabulary, write_tiny_gguf

from transom.config import EngineConfig
from transom.engine.engine import Engine
from transom.errors import BadRequest
from transom.kv.check import check
from transom.models.load import load_model
from transom.models.spec import Model
from transom.ops.backend import choose_ops
from transom.ops.protocol import F32, I32, Matrix, Ops
from transom.ops.reference import ReferenceOps
from transom.sched.commands import require_servable
from transom.steps import NOT_FINITE
from transom.values import FinishReason, LogitRules, Logprobs, Request, RequestId, Sampling, Sibling
from transom.weights.gguf import read_gguf
from transom.wire import Submit

PIECES = len(vocabulary())
SPOILT = 77
"""The token whose embedding is not finite."""
BACKENDS = {"numpy": ReferenceOps, "native": lambda: choose_ops(1)}


class SpoiltOps:
    """A backend that computes all of a model right, except for one token."""

    def __init__(self, ops: Ops, value: float) -> None:
        self._ops, self._value = ops, value

    def __getattr__(self, name: str) -> object:
        return getattr(self._ops, name)

    def embed(self, table: Matrix, tokens: I32, scale: float) -> F32:
        rows = self._ops.embed(table, tokens, scale)
        rows[tokens == SPOILT] = self._value
        return rows


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(read_gguf(write_tiny_gguf(tmp_path_factory.mktemp("finite") / "tiny.gguf")))


def request(number: int, prompt: Sequence[int], siblings: int = 0, **fields: object) -> Request:
    more = tuple(Sibling(RequestId(number + 1 + i), Sampling(1.0, seed=i)) for i in range(siblings))
    values = {"max_tokens": 6, "siblings": more, **fields}
    return Request(RequestId(number), np.array(prompt, np.int32), **values)  # type: ignore[arg-type]


def played(engine: Engine, requests: Sequence[Request]) -> Played:
    found = Played()
    commands = [Submit(one) for one in requests]
    while commands or engine.scheduler.has_work:
        iteration = engine.iterate(commands)
        assert iteration.failure is None, iteration.failure
        commands = []
        check(engine.cache)
        for event in iteration.events:
            found.record(event)
    return found


GOOD = [
    request(10, range(10, 60)),
    request(20, [*range(10, 50), 5], 2, logprobs=Logprobs(2, 0)),
    request(30, range(40, 45), rules=LogitRules(repetition=1.3)),
]
BAD = [
    request(110, [5, 6, SPOILT]),
    request(120, [*range(10, 50), SPOILT, *range(60, 70)], logprobs=Logprobs(3, 0)),
    request(130, [SPOILT, 8], 3),
    request(140, [9, SPOILT, 8, 7], sampling=Sampling(1.0, seed=4), rules=LogitRules(frequency=0.5)),
    request(150, [SPOILT, *range(10, 50)], 0, max_tokens=0, logprobs=Logprobs(0, 0)),
    request(160, [SPOILT, *range(10, 50)], 2, logprobs=Logprobs(0, 0)),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_ends_its_own_request_only(model: Model, backend: str, value: float) -> None:
    config = EngineConfig(page_size=4, chunked_prefill_size=24, max_total_tokens=2048)
    ops: Ops = SpoiltOps(BACKENDS[backend](), value)  # type: ignore[assignment]
    engine = Engine(config, model, ops)
    together = played(engine, [BAD[0], GOOD[0], *BAD[1:3], GOOD[1], *BAD[3:], GOOD[2]])
    alone = played(Engine(config, model, BACKENDS[backend]()), GOOD)
    for number, tokens in alone.outputs.items():
        assert together.outputs[number] == tokens
        assert together.logprobs[number] == alone.logprobs[number]
        assert together.ended[number].reason is FinishReason.LENGTH
    ids = [number for one in BAD for number in one.ids]
    for number in ids:
        end = together.ended[number]
        assert (end.reason, end.message, end.code) == (FinishReason.ERROR, NOT_FINITE.message, None)
        assert number not in together.outputs
    stats = engine.stats()
    assert (stats.invalid_logits, stats.failed_steps) == (len(ids), 0)
    assert stats.running == stats.waiting == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_request_is_well_again_where_the_spoilt_token_is_not(model: Model, backend: str) -> None:
    """An output that reaches the spoilt token ends there; what it had before counts."""
    config = EngineConfig(page_size=4)
    ops: Ops = SpoiltOps(BACKENDS[backend](), np.nan)  # type: ignore[assignment]
    forced = LogitRules(biased=np.array([SPOILT], np.int32), bias=(100.0,))
    found = played(Engine(config, model, ops), [request(1, [5, 6, 7], rules=forced), request(2, [5, 6, 7])])
    assert found.outputs[RequestId(1)] == [SPOILT]
    assert found.ended[RequestId(1)].message == NOT_FINITE.message
    assert len(found.outputs[RequestId(2)]) == 6


ODD: dict[str, tuple[dict[str, object], str]] = {
    "negative": ({"prompt": np.array([3, -1], np.int32)}, "prompt holds the token id -1"),
    "beyond the embedding": ({"prompt": np.array([PIECES, 3], np.int32)}, f"the token id {PIECES}; ids are"),
    "largest": ({"prompt": np.array([2**31 - 1], np.int32)}, "prompt holds the token id 2147483647"),
    "output of another engine": ({"outputs": (PIECES,)}, "outputs holds the token id"),
    "stop": ({"stop_ids": frozenset([PIECES + 5])}, "stop_token_ids holds the token id"),
    "bias": (
        {"rules": LogitRules(biased=np.array([PIECES], np.int32), bias=(1.0,))},
        "logit_bias holds the token id",
    ),
    "allowed": ({"rules": LogitRules(allowed=np.array([-7], np.int32))}, "allowed_token_ids holds"),
    "banned": ({"rules": LogitRules(banned=((4, PIECES),))}, "bad_words holds the token id"),
}


@pytest.mark.parametrize("case", ODD)
def test_a_request_with_an_odd_token_id_is_refused_and_its_neighbours_go_on(model: Model, case: str) -> None:
    fields, says = ODD[case]
    engine = Engine(EngineConfig(), model, choose_ops(1))
    odd = replace(request(50, [3]), **fields)  # type: ignore[arg-type]
    iteration = engine.iterate([Submit(odd), Submit(GOOD[0])])
    (rejected,) = iteration.rejected
    assert says in rejected.error.message and rejected.request == odd.id
    assert iteration.failure is None and engine.scheduler.has_work
    with pytest.raises(BadRequest, match="holds the token id"):
        require_servable(odd, 1000, PIECES)
    require_servable(odd, 1000)  # a simulator's tokens mean nothing


@pytest.mark.parametrize("tied", [True, False])
def test_rows_of_the_embedding_without_a_piece_are_never_chosen(tmp_path: Path, tied: bool) -> None:
    def padded(_: dict[str, object], tensors: dict[str, np.ndarray]) -> None:
        embedding = tensors["token_embd.weight"]
        # The likeliest of all tokens, were they chosen: a hundred times the other rows.
        high = np.concatenate([embedding, 100 * np.sign(embedding[:10]) * np.abs(embedding).max()])
        tensors["token_embd.weight"] = high.astype(np.float32)
        if not tied:
            tensors["output.weight"] = tensors["token_embd.weight"]

    source = write_tiny_gguf(tmp_path / "tiny.gguf")
    plain = load_model(read_gguf(rewritten(source, tmp_path / "plain.gguf", lambda values, tensors: None)))
    model = load_model(read_gguf(rewritten(source, tmp_path / "padded.gguf", padded)))
    assert model.spec.vocabulary == PIECES
    requests = [request(1, [5, 6], sampling=Sampling(5.0, seed=3)), request(3, [9], logprobs=Logprobs(5))]
    found, expected = (
        played(Engine(EngineConfig(), one, choose_ops(1)), requests).outputs for one in (model, plain)
    )
    assert found == expected
