"""Constrained outputs: always valid, and with the bits of a request that runs alone, in every schedule."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from tests.engine.schedules import (
    Played,
    assert_equal_to_cold,
    build,
    play,
    random_arrivals,
    random_requests,
)
from tests.engine.test_same_bits import config
from tests.tiny import EOS, vocabulary, write_tiny_gguf

from transom.config import EngineConfig
from transom.engine.engine import Engine
from transom.engine.masks import GRAMMAR_FAILED, GRAMMARS_KEPT, Masks, mask_of
from transom.models.load import load_model
from transom.models.spec import Model
from transom.ops.backend import choose_ops
from transom.ops.protocol import Ops
from transom.ops.reference import ReferenceOps
from transom.steps import Constraint, SpanWork, StepWork
from transom.text.detokenize import decode
from transom.text.grammar import NO_WHITESPACE, choice_grammar, regex_grammar, schema_grammar
from transom.text.tokenizer import Tokenizer
from transom.text.vocabulary import Vocabulary
from transom.values import (
    FinishReason,
    LogitRules,
    Logprobs,
    Request,
    RequestId,
    Sampling,
    Sibling,
    TokenSampled,
)
from transom.weights.gguf import read_gguf
from transom.weights.vocabulary import read_vocabulary
from transom.wire import Abort, AbortAll, Submit

SCHEMAS: tuple[Mapping[str, Any], ...] = (
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"enum": ["the", "a", None, 3]}, "minItems": 1, "maxItems": 4},
    {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "at": {"format": "date"}},
        "required": ["next"],
        "additionalProperties": False,
    },
)
GRAMMARS = (
    # A random model would fill every gap with as much whitespace as it may.
    *(schema_grammar(schema, "schema", NO_WHITESPACE) for schema in SCHEMAS),
    regex_grammar(r"[0-9]{3}-(the|a)+", "regex"),
    choice_grammar(["the", "them", "a cat", "ä"], "choice"),
)
LONG = regex_grammar("(the|an?|in|[0-9]| ){60,110}", "regex")
RULES = LogitRules(repetition=1.3, min_tokens=5, biased=np.array([40], np.int32), bias=(9.0,))
SCHEDULES = 4
LONGEST = 120


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return load_model(read_gguf(path))


@pytest.fixture(scope="module")
def words(path: Path) -> Vocabulary:
    return read_vocabulary(read_gguf(path))


@pytest.fixture(scope="module")
def tokenizer(words: Vocabulary) -> Tokenizer:
    return Tokenizer(words)


def engine_of(model: Model, words: Vocabulary, settings: EngineConfig, ops: Ops) -> Engine:
    engine = Engine(settings, model, ops)
    engine.allow_grammars(lambda: words)
    return engine


def alone(
    model: Model, words: Vocabulary, request: Request, ops: Ops
) -> tuple[list[TokenSampled], FinishReason]:
    """The tokens and the end of the request, which runs alone on an engine of its own."""
    engine = engine_of(model, words, EngineConfig(max_total_tokens=4096, max_running_requests=4), ops)
    commands: list[Any] = [Submit(request)]
    tokens: list[TokenSampled] = []
    for _ in range(5000):
        iteration = engine.iterate(commands)
        commands = []
        assert not iteration.rejected and iteration.failure is None, iteration
        for event in iteration.events:
            if isinstance(event, TokenSampled):
                tokens.append(event)
            else:
                return tokens, event.reason
    raise AssertionError("the request has not ended")


def text_of(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    return decode(tokens, lambda token: b"" if token == EOS else tokenizer.piece_bytes(token))


# ---------------------------------------------------------------- valid outputs


@pytest.mark.parametrize("number", range(len(SCHEMAS)))
@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_an_output_that_ends_by_itself_is_valid_under_its_schema(
    model: Model, words: Vocabulary, tokenizer: Tokenizer, number: int, temperature: float
) -> None:
    ops = choose_ops(1)
    ended = 0
    for seed in range(6):
        request = Request(
            id=RequestId(1),
            prompt=np.array([2, 5 + seed], np.int32),
            max_tokens=150,
            stop_ids=words.stop_ids,
            sampling=Sampling(temperature=temperature, seed=seed),
            grammar=GRAMMARS[number],
        )
        tokens, reason = alone(model, words, request, ops)
        text = text_of(tokenizer, [token.token for token in tokens])
        if reason is FinishReason.STOP:
            jsonschema.validate(json.loads(text), SCHEMAS[number])
            ended += 1
        else:
            assert reason is FinishReason.LENGTH and len(tokens) == 150
    assert ended, "no output has ended, so none was compared"


def test_numpy_and_native_sample_the_same_constrained_tokens(model: Model, words: Vocabulary) -> None:
    for grammar in GRAMMARS:
        request = Request(
            id=RequestId(1),
            prompt=np.array([2, 40, 41], np.int32),
            max_tokens=12,
            stop_ids=words.stop_ids,
            sampling=Sampling(temperature=1.0, seed=3),
            logprobs=Logprobs(top=3),
            grammar=grammar,
        )
        native = alone(model, words, request, choose_ops(1))
        assert native == alone(model, words, request, ReferenceOps())


def test_log_probabilities_are_those_among_the_allowed_tokens(model: Model, words: Vocabulary) -> None:
    request = Request(
        id=RequestId(1),
        prompt=np.array([2, 40], np.int32),
        max_tokens=1,
        logprobs=Logprobs(top=4),
        grammar=regex_grammar("[xyz]", "regex"),
    )
    ((token,), _) = alone(model, words, request, choose_ops(1))
    *allowed, banned = token.top
    assert sorted(vocabulary()[one.token] for one in allowed) == ["<0x78>", "<0x79>", "<0x7A>"]
    assert sum(np.exp(one.logprob) for one in allowed) == pytest.approx(1)
    assert banned.logprob == -np.inf and token.logprob == allowed[0].logprob


# ---------------------------------------------------------------- the same bits in every schedule


@pytest.fixture(scope="module")
def retractions(model: Model, words: Vocabulary) -> list[int]:
    """Runs every schedule and compares its outputs with requests alone. Returns the retractions of each."""
    return [play_and_compare(model, words, seed) for seed in range(SCHEDULES)]


def test_constrained_outputs_of_random_schedules_equal_those_of_requests_alone(
    retractions: list[int],
) -> None:
    assert len(retractions) == SCHEDULES


def test_several_schedules_had_retractions(retractions: list[int]) -> None:
    assert sum(map(bool, retractions)) >= 2


def play_and_compare(model: Model, words: Vocabulary, seed: int) -> int:
    rng = random.Random(seed)
    ops = choose_ops(1 + seed % 2)
    engine, runner = build(model, ops, config(rng, (1, 16, 64)[seed % 3]))
    engine.allow_grammars(lambda: words)
    requests = [
        constrained(rng, request, words) for request in random_requests(rng, 8, len(vocabulary()), LONGEST)
    ]
    played = play(engine, runner, random_arrivals(rng, requests))
    assert_equal_to_cold(ops, model, requests, played, runner)
    for request in requests:
        assert_equal_to_alone(model, words, request, played, ops)
    return engine.scheduler.stats().retractions


def constrained(rng: random.Random, request: Request, words: Vocabulary) -> Request:
    """The request, with a grammar usually and with siblings sometimes. Seeds stay unique."""
    siblings = [
        Sibling(
            RequestId(100 * request.id + number), replace(request.sampling, seed=100 * request.id + number)
        )
        for number in range(rng.choice([0, 0, 2]))
    ]
    return replace(
        request,
        grammar=rng.choice(["", LONG, LONG, LONG, *GRAMMARS]),
        rules=rng.choice([None, RULES]),
        stop_ids=words.stop_ids,
        siblings=tuple(siblings),
    )


def assert_equal_to_alone(
    model: Model, words: Vocabulary, request: Request, played: Played, ops: Ops
) -> None:
    outputs = [(request.id, request.sampling), *((one.id, one.sampling) for one in request.siblings)]
    for number, sampling in outputs:
        single = replace(request, id=number, sampling=sampling, siblings=())
        tokens, reason = alone(model, words, single, ops)
        assert played.outputs.get(number, []) == [token.token for token in tokens], number
        assert played.ended[number].reason is reason


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_an_output_that_continues_after_a_crash_has_the_same_tokens(
    model: Model, words: Vocabulary, grammar: str
) -> None:
    ops = choose_ops(1)
    request = Request(
        id=RequestId(1),
        prompt=np.array([2, 50, 51], np.int32),
        max_tokens=30,
        stop_ids=words.stop_ids,
        sampling=Sampling(temperature=1.0, seed=9),
        grammar=grammar,
    )
    whole, _ = alone(model, words, request, ops)
    for delivered in range(1, len(whole) - 1):
        outputs = tuple(token.token for token in whole[:delivered])
        rest, _ = alone(model, words, replace(request, outputs=outputs), ops)
        assert rest == whole[delivered:]


def test_a_mask_depends_on_the_tokens_alone_and_not_on_the_matcher_that_computes_it(
    words: Vocabulary,
) -> None:
    """One walk keeps its matcher; the other one begins again at every token, or skips masks."""
    width = len(words.pieces)
    masks = Masks(lambda: words, width, matchers_max=4)
    rng = random.Random(5)
    for grammar in GRAMMARS:
        outputs: list[int] = []
        while len(outputs) < 40:
            kept = banned(masks, RequestId(1 + GRAMMARS.index(grammar)), grammar, outputs)
            fresh = banned(masks, RequestId(1000 + len(outputs)), grammar, outputs)
            np.testing.assert_array_equal(kept, fresh)
            allowed = np.flatnonzero(~kept).tolist()
            if allowed == sorted(words.stop_ids):
                break
            outputs.append(rng.choice([token for token in allowed if token not in words.stop_ids]))
    masks.close()


def banned(masks: Masks, request: RequestId, grammar: str, outputs: Sequence[int]) -> np.ndarray:
    constraint = Constraint(grammar, np.array(outputs, np.int32))
    span = SpanWork(request, 0, 0, np.zeros(1, np.int32), Sampling(), constraint=constraint)
    begun = masks.begin(StepWork((span,), ()))
    assert begun is not None
    masks_of_step = begun.result()
    assert not masks_of_step.failures
    logits = np.zeros((1, masks._width), np.float32)
    masks_of_step.apply(logits)
    return logits[0] == -np.inf


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.5, 0.7, 0.999, 1.0])
@pytest.mark.parametrize("width", [1, 31, 32, 33, 1000])
def test_a_mask_bans_exactly_the_tokens_without_a_bit(share: float, width: int) -> None:
    allowed = np.random.default_rng(width).random(width) < share
    padded = np.zeros((width + 31) // 32 * 32, np.bool_)
    padded[:width] = allowed
    row = np.arange(width, dtype=np.float32)
    mask_of(np.packbits(padded, bitorder="little"), width).apply(row)
    np.testing.assert_array_equal(row, np.where(allowed, np.arange(width), -np.inf))


# ---------------------------------------------------------------- waiting for grammars, and failures


def request_with(grammar: str, number: int = 1, siblings: int = 0) -> Request:
    return Request(
        id=RequestId(number),
        prompt=np.array([2, 40], np.int32),
        max_tokens=8,
        grammar=grammar,
        siblings=tuple(Sibling(RequestId(number + 1 + i), Sampling(seed=i)) for i in range(siblings)),
    )


def test_a_grammar_that_cannot_be_compiled_refuses_its_request_only(model: Model, words: Vocabulary) -> None:
    engine = engine_of(model, words, EngineConfig(max_total_tokens=1024), choose_ops(1))
    bad = request_with("start: <|no_such_token|>", 1, siblings=1)
    iteration = engine.iterate([Submit(bad), Submit(request_with("", 9))])
    rejected = list(iteration.rejected)
    while not rejected:
        rejected += engine.iterate([]).rejected
    assert [one.request for one in rejected] == [1, 2]
    assert "no_such_token" in str(rejected[0].error)


def test_an_engine_without_a_vocabulary_refuses_grammars(model: Model) -> None:
    engine = Engine(EngineConfig(max_total_tokens=1024), model, choose_ops(1))
    iteration = engine.iterate([Submit(request_with(GRAMMARS[0]))])
    assert [one.request for one in iteration.rejected] == [1]


def test_a_model_that_cannot_end_an_output_refuses_grammars(model: Model, words: Vocabulary) -> None:
    engine = Engine(EngineConfig(max_total_tokens=1024), model, choose_ops(1))
    engine.allow_grammars(lambda: replace(words, stop_ids=frozenset()))
    rejected = list(engine.iterate([Submit(request_with(GRAMMARS[0]))]).rejected)
    while not rejected:
        rejected += engine.iterate([]).rejected
    assert "no token that ends" in str(rejected[0].error)


@pytest.mark.parametrize("command", [Abort(RequestId(2)), AbortAll()])
def test_a_request_that_waits_for_its_grammar_can_be_aborted(
    model: Model, words: Vocabulary, command: Abort | AbortAll
) -> None:
    engine = engine_of(model, words, EngineConfig(max_total_tokens=1024), choose_ops(1))
    # Both commands arrive together, before the grammar can be ready.
    iteration = engine.iterate([Submit(request_with(GRAMMARS[0], siblings=1)), command])
    assert RequestId(2) in {event.request for event in iteration.events}


def test_a_token_that_the_grammar_does_not_allow_ends_its_outputs_only(
    model: Model, words: Vocabulary
) -> None:
    """An engine replays outputs that it did not sample: a damaged one must not fail the whole step."""
    engine = engine_of(model, words, EngineConfig(max_total_tokens=1024), choose_ops(1))
    wrong = replace(request_with(regex_grammar("[0-9]{5}", "regex")), outputs=(EOS + 40,))
    ended, tokens = {}, []
    commands: list[Any] = [Submit(wrong), Submit(request_with("", 9))]
    while len(ended) < 2:
        iteration = engine.iterate(commands)
        commands = []
        for event in iteration.events:
            if isinstance(event, TokenSampled):
                tokens.append(event.request)
            else:
                ended[event.request] = event
    assert ended[RequestId(1)].reason is FinishReason.ERROR
    assert ended[RequestId(1)].code == GRAMMAR_FAILED
    assert ended[RequestId(9)].reason is FinishReason.LENGTH
    assert set(tokens) == {9}


def test_compiled_grammars_are_shared_and_bounded(words: Vocabulary) -> None:
    masks = Masks(lambda: words, len(words.pieces), matchers_max=1)
    first = masks.compile(GRAMMARS[0])
    assert masks.compile(GRAMMARS[0]) is first
    for number in range(GRAMMARS_KEPT):
        masks.compile(regex_grammar(f"a{number}", "regex"))
    assert masks.compile(GRAMMARS[0]) is not first
    masks.close()


def test_rules_apply_within_the_grammar_and_never_break_it(model: Model, words: Vocabulary) -> None:
    """A ban that would leave no token does not apply: the grammar ends before `min_tokens`."""
    rules = LogitRules(min_tokens=20, allowed=np.array([40], np.int32))
    request = replace(request_with(regex_grammar("[0-9]{3}", "regex")), stop_ids=words.stop_ids, rules=rules)
    tokens, reason = alone(model, words, request, choose_ops(1))
    assert len(tokens) == 4 and tokens[-1].token in words.stop_ids
    assert reason is FinishReason.STOP
