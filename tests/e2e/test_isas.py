"""The generated text does not depend on the instruction set of the kernels."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from transom import LLM
from transom.ops.native import info, set_isa

PROMPTS = ["the cat sat on the mat and ", "a", "漢字🙂 and some letters"]
SAMPLINGS: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 0.8, "seed": 9, "top_p": 0.9}]


@pytest.fixture(autouse=True)
def restore_isa() -> Iterator[None]:
    before = info().isa
    yield
    set_isa(before)


def generated(tiny: Path, isa: str) -> list[object]:
    """Text, tokens and log-probabilities of every prompt, computed with one instruction set."""
    set_isa(isa)
    llm = LLM(str(tiny), page_size=4, chunked_prefill_size=8, threads=2)
    assert llm.engine.ops.isa == isa
    return [
        (completion.text, completion.token_ids, completion.logprobs)
        for sampling in SAMPLINGS
        for completion in llm.generate(PROMPTS, max_tokens=12, ignore_eos=True, **sampling)
    ]


def test_every_instruction_set_generates_the_same_output_to_the_last_bit(tiny: Path) -> None:
    fastest, *others = info().isas
    expected = generated(tiny, fastest)
    assert len(expected) == len(PROMPTS) * len(SAMPLINGS)
    for isa in others:
        assert generated(tiny, isa) == expected, isa
