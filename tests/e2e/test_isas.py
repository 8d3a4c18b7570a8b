"""Which kernels compute does not show in what is said."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from transom import LLM
from transom.ops.native import info, set_isa

PROMPTS = ["the cat sat on the mat and ", "a", "漢字🙂 and some letters"]
ASKED: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 0.8, "seed": 9, "top_p": 0.9}]


@pytest.fixture(autouse=True)
def same_isa_after() -> Iterator[None]:
    before = info().isa
    yield
    set_isa(before)


def said(tiny: Path, isa: str) -> list[object]:
    set_isa(isa)
    llm = LLM(str(tiny), page_size=4, chunked_prefill_size=8, threads=2)
    assert llm.engine.ops.isa == isa
    return [
        (completion.text, completion.token_ids, completion.logprobs)
        for asked in ASKED
        for completion in llm.generate(PROMPTS, max_tokens=12, ignore_eos=True, **asked)
    ]


def test_every_instruction_set_says_the_same_to_the_last_bit(tiny: Path) -> None:
    fastest, *others = info().isas
    expected = said(tiny, fastest)
    assert len(expected) == len(PROMPTS) * len(ASKED)
    for isa in others:
        assert said(tiny, isa) == expected, isa
