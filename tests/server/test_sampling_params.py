"""What the engine is asked for: the input processor's requests for bodies of every kind."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.server.toy import CONTEXT, ByteText

from transom.server import protocol
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
