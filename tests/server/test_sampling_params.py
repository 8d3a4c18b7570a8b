"""What the engine is asked for: the input processor's requests for bodies of every kind."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from tests.server.toy import CONTEXT, ByteText

from transom.server import protocol
from transom.server.errors import Refused
from transom.server.input_processor import InputProcessor
from transom.server.output_processor import Generation
from transom.values import Request

MESSAGES = [{"role": "user", "content": "x"}]


def generation(**fields: Any) -> Generation:
    """The generation for a completion, or for a chat if the fields have messages."""
    processor = InputProcessor(ByteText(), "toy", CONTEXT)
    body = msgspec.json.encode(fields)
    if "messages" in fields:
        return asyncio.run(processor.chat(protocol.read_chat.read(body)[0]))
    return asyncio.run(processor.completion(protocol.read_completion.read(body)[0]))


def seeds(**fields: Any) -> list[int]:
    """The seed of each choice, in the order of the answer."""
    return [seed for request in generation(**fields).requests for seed in seeds_of(request)]


def seeds_of(request: Request) -> list[int]:
    return [request.sampling.seed, *(sibling.sampling.seed for sibling in request.siblings)]


PROMPTS: list[dict[str, Any]] = [
    {"prompt": ["same"] * 4},
    {"prompt": [[1, 2, 3]] * 4},
    {"prompt": "same", "n": 4},
    {"prompt": ["same", "same"], "n": 2},
    {"messages": MESSAGES, "n": 4},
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", PROMPTS)
def test_without_a_seed_every_choice_has_draws_of_its_own(fields: dict[str, Any], stream: bool) -> None:
    asked = {**fields, "stream": stream}
    drawn = [seeds(**asked), seeds(**asked), seeds(**asked, seed=None), seeds(**asked, seed=-1)]
    assert len({seed for choices in drawn for seed in choices}) == 16


@pytest.mark.parametrize("fields", PROMPTS)
@pytest.mark.parametrize(
    ("seed", "first"), [(0, 0), (7, 7), (2**63, 2**63), (-2, 2**64 - 2), (2**64 - 2, 2**64 - 2)]
)
def test_with_a_seed_choice_i_has_the_seed_plus_i(fields: dict[str, Any], seed: int, first: int) -> None:
    assert seeds(**fields, seed=seed) == [(first + number) % 2**64 for number in range(4)]


# ---------------------------------------------------------------- logit rules


def test_fields_become_rules_of_every_output() -> None:
    asked = generation(
        prompt=["a", "b"],
        n=2,
        logit_bias={"7": 1.5, "3": -100},
        repetition_penalty=1.2,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        min_tokens=3,
        allowed_token_ids=[9, 2, 9],
        bad_words=["x", " yz"],
    )
    for request in asked.requests:
        rules = request.rules
        assert rules is not None and rules.biased is not None and rules.allowed is not None
        assert dict(zip(rules.biased.tolist(), rules.bias, strict=True)) == {7: 1.5, 3: -100.0}
        assert (rules.repetition, rules.frequency, rules.presence, rules.min_tokens) == (1.2, 0.5, -0.5, 3)
        assert rules.allowed.tolist() == [2, 9]
        # Each word at the start of a text and behind a space; without the begin token.
        assert rules.banned == ((120,), (32, 120), (121, 122), (32, 121, 122))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"repetition_penalty": 1, "presence_penalty": 0, "min_tokens": 0, "logit_bias": {}, "bad_words": []},
        {"repetition_penalty": None, "logit_bias": None, "allowed_token_ids": None, "bad_words": None},
    ],
)
def test_fields_that_ask_for_nothing_make_no_rules(fields: dict[str, Any]) -> None:
    assert all(request.rules is None for request in generation(prompt="x", **fields).requests)


def test_a_prompt_may_leave_out_the_begin_token() -> None:
    (request,) = generation(prompt="x", add_special_tokens=False).requests
    assert request.prompt.tolist() == [120]


def test_max_completion_tokens_wins_in_both_endpoints() -> None:
    for fields in ({"prompt": "x"}, {"messages": MESSAGES}):
        (request,) = generation(**fields, max_tokens=9, max_completion_tokens=2).requests
        assert request.max_tokens == 2


# ---------------------------------------------------------------- chat templates


def prompt(**fields: Any) -> str:
    (request,) = generation(messages=MESSAGES, **fields).requests
    return bytes(request.prompt[1:].tolist()).decode()


def test_the_end_and_the_variables_of_a_rendered_chat() -> None:
    assert prompt() == prompt(add_generation_prompt=True, continue_final_message=False) == "u:x"
    assert prompt(add_generation_prompt=False) == "u:x!"
    assert prompt(continue_final_message=True) == "u:x."
    assert prompt(continue_final_message=True, add_generation_prompt=False) == "u:x."
    assert prompt(chat_template_kwargs={"enable_thinking": False}) == "enable_thinking=False;u:x"
    assert prompt(reasoning_effort="low") == "reasoning_effort=low;u:x"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"x" * 300: 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {f"name{number}": 1 for number in range(65)}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": json.loads("[" * 70 + "]" * 70)}}, "chat_template_kwargs"),
        ({"reasoning_effort": "x" * 300}, "reasoning_effort"),
    ],
)
def test_contradictions_and_names_that_are_taken_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Refused) as caught:
        prompt(**fields)
    assert caught.value.problem.param == param
