"""Response bodies for crafted outputs: names of tokens, and finish reasons."""

import json
import typing
from typing import Any

import pytest
from openai.types import CompletionChoice
from openai.types.chat.chat_completion import Choice as ChatChoice
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice

from transom.server.responses import ChatFormat, Choice, CompletionFormat, Contents, UsageBody
from transom.text.output import Delta, TokenLogprob
from transom.values import Alternative, FinishReason, SampledToken

PIECES = [
    b"A",
    b"A",
    b"A",
    b"\xf0\x9f",
    b"\xa6",
    b"\x9c",
    "é".encode(),
    b"",
    b"bytes:\\xa6",
    "\ufffd".encode(),
]
"""Pieces of equal text, parts of characters, a real U+FFFD, and a piece that looks like a spelled byte."""
USAGE = UsageBody(1, 1, 2)


def completion(*tokens: TokenLogprob) -> dict[str, Any]:
    format = CompletionFormat("m", PIECES.__getitem__, Contents(logprobs=True))
    body = format.whole([Choice(0, Delta("", tokens), FinishReason.STOP)], USAGE)
    found: dict[str, Any] = json.loads(body)["choices"][0]["logprobs"]
    return found


def chat(*tokens: TokenLogprob) -> list[dict[str, Any]]:
    format = ChatFormat("m", PIECES.__getitem__, Contents(logprobs=True))
    body = format.whole([Choice(0, Delta("", tokens), FinishReason.STOP)], USAGE)
    found: list[dict[str, Any]] = json.loads(body)["choices"][0]["logprobs"]["content"]
    return found


@pytest.mark.parametrize("sampled", range(len(PIECES)))
@pytest.mark.parametrize("count", [0, 1, 4, 7, len(PIECES)])
def test_every_alternative_has_a_name_of_its_own_and_the_sampled_token_its_value(
    sampled: int, count: int
) -> None:
    top = tuple((token, -0.5 - token) for token in range(count))
    logprobs = completion(TokenLogprob(sampled, -0.5 - sampled, 0, top))
    (listed,), (name,) = logprobs["top_logprobs"], logprobs["tokens"]
    assert len(listed) == max(count, 1) + (0 < count <= sampled)
    assert listed[name] == logprobs["token_logprobs"][0] == -0.5 - sampled
    likeliest = max(listed, key=lambda one: float(listed[one]))
    assert (likeliest == name) == (sampled == 0 or count == 0)


def test_parts_of_characters_are_named_by_their_bytes_also_in_a_prompt() -> None:
    logprobs = completion(TokenLogprob(3, None, 0), TokenLogprob(4, -2.0, 0, ((5, -1.0), (6, -3.0))))
    assert logprobs["tokens"] == ["bytes:\\xf0\\x9f", "bytes:\\xa6"]
    assert logprobs["top_logprobs"] == [None, {"bytes:\\x9c": -1.0, "é": -3.0, "bytes:\\xa6": -2.0}]


def test_a_chats_tokens_have_exact_bytes() -> None:
    (entry,) = chat(TokenLogprob(4, -2.0, 0, tuple((token, -1.0) for token in range(len(PIECES)))))
    assert (entry["token"], entry["bytes"]) == ("bytes:\\xa6", [0xA6])
    assert [bytes(other["bytes"]) for other in entry["top_logprobs"]] == PIECES


def test_minus_infinity_is_a_number_that_json_has() -> None:
    logprobs = completion(TokenLogprob(0, float("-inf"), 0, ((0, float("-inf")),)))
    assert logprobs["token_logprobs"] == [-9999.0]
    assert logprobs["top_logprobs"] == [{"A": -9999.0}]


def reasons(kind: Any) -> set[str]:
    """The finish reasons that a type of the openai package allows."""
    return {
        value
        for part in (kind.model_fields["finish_reason"].annotation,)
        for literal in (part, *typing.get_args(part))
        for value in typing.get_args(literal)
        if isinstance(value, str)
    }


@pytest.mark.parametrize("reason", FinishReason)
@pytest.mark.parametrize(("kind", "allowed"), [
    (CompletionFormat, reasons(CompletionChoice)),
    (ChatFormat, reasons(ChatChoice) & reasons(ChunkChoice)),
])  # fmt: skip
def test_finish_reasons_are_those_of_the_openai_package(
    reason: FinishReason, kind: Any, allowed: set[str]
) -> None:
    if reason is FinishReason.ERROR:
        return  # the answer is an error, not a choice
    format = kind("m", PIECES.__getitem__, Contents())
    (whole,) = json.loads(format.whole([Choice(0, Delta("", ()), reason)], USAGE))["choices"]
    (streamed,) = json.loads(format.ending(0, reason, None).removeprefix(b"data: "))["choices"]
    for choice in (whole, streamed):
        assert choice["finish_reason"] in allowed
        assert choice.get("finish_cause", choice["finish_reason"]) == reason


# ---------------------------------------------------------------- ids, and log-probabilities of prompts

CONTENTS = Contents(outputs=2, prompts=((1, 2), (3,)), prompt_top=1, null_usage=True)
SCORED = [SampledToken(2, -1.5, (Alternative(5, -0.5), Alternative(2, -1.5)))]
REPORTED = [
    None,
    {
        "2": {"logprob": -1.5, "rank": None, "decoded_token": "A"},
        "5": {"logprob": -0.5, "rank": 1, "decoded_token": "bytes:\\x9c"},
    },
]


def test_the_first_choice_of_a_prompt_has_its_ids_and_log_probabilities() -> None:
    format = CompletionFormat("m", PIECES.__getitem__, CONTENTS)
    choices = [Choice(i, Delta("x", (), (7,)), FinishReason.STOP, SCORED) for i in range(4)]
    found = json.loads(format.whole(choices, USAGE))["choices"]
    assert [choice["token_ids"] for choice in found] == [[7]] * 4
    assert [choice.get("prompt_token_ids") for choice in found] == [[1, 2], None, [3], None]
    assert [choice.get("prompt_logprobs") for choice in found] == [REPORTED, None, REPORTED, None]


@pytest.mark.parametrize("kind", [CompletionFormat, ChatFormat])
def test_the_end_of_an_answer_names_the_weights_that_serve_then(
    kind: type[CompletionFormat | ChatFormat],
) -> None:
    versions = ["old"]
    format = kind("m", PIECES.__getitem__, Contents(weights=lambda: versions[-1]))
    chunk = json.loads(format.chunk(0, Delta("x", ()), None).decode().removeprefix("data: "))
    versions.append("new")  # a live update, while the output is under way
    end = json.loads(format.ending(0, FinishReason.STOP, None).decode().removeprefix("data: "))
    whole = json.loads(format.whole([Choice(0, Delta("x", ()), FinishReason.STOP)], USAGE))
    assert "weights_version" not in chunk and end["weights_version"] == whole["weights_version"] == "new"


def test_a_chunk_is_one_line_for_every_reader() -> None:
    text = "a\u2028b\u2029c\x85d\x0be\x1cf"
    for format in (
        CompletionFormat("m", PIECES.__getitem__, Contents()),
        ChatFormat("m", PIECES.__getitem__, Contents()),
    ):
        chunk = format.chunk(0, Delta(text, ()), None).decode()
        assert len(chunk.splitlines()) == 2
        (choice,) = json.loads(chunk.removeprefix("data: "))["choices"]
        assert text in (choice.get("text"), choice.get("delta", {}).get("content"))


def test_a_chat_has_its_prompt_once() -> None:
    format = ChatFormat("m", PIECES.__getitem__, CONTENTS)
    whole = json.loads(format.whole([Choice(0, Delta("x", (), (7,)), FinishReason.STOP, SCORED)], USAGE))
    assert whole["choices"][0]["token_ids"] == [7]
    assert (whole["prompt_token_ids"], whole["prompt_logprobs"]) == ([1, 2], REPORTED)


@pytest.mark.parametrize("name", ["token_id:4"])
def test_tokens_may_be_named_by_id(name: str) -> None:
    contents = Contents(logprobs=True, names_are_ids=True)
    delta = Delta("", (TokenLogprob(4, -2.0, 0, ((5, -1.0),)),))
    choices = [Choice(0, delta, None)]
    text = json.loads(CompletionFormat("m", PIECES.__getitem__, contents).whole(choices, USAGE))
    assert text["choices"][0]["logprobs"]["top_logprobs"] == [{"token_id:5": -1.0, name: -2.0}]
    turn = json.loads(ChatFormat("m", PIECES.__getitem__, contents).whole(choices, USAGE))
    assert turn["choices"][0]["logprobs"]["content"][0]["token"] == name
