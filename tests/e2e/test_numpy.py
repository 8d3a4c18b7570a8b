"""Without the native extension the engine is slow and generates the same text."""

import os
import subprocess
import sys
from pathlib import Path

from tests.over_http import Json, complete, events, streamed_text
from tests.serving import serving

NUMPY = {"TRANSOM_NATIVE": "0"}
PROMPTS = ["the cat sat on the mat and ", "a", "漢字🙂 and some letters"]
SAMPLINGS: list[Json] = [
    {"temperature": 0},
    {"temperature": 1, "seed": 4},
    {"top_p": 0.9, "top_k": 9, "seed": 5},
]

IN_PROCESS = """
import sys
from transom import LLM
llm = LLM(sys.argv[1], page_size=4, chunked_prefill_size=8)
print(llm.engine.ops.isa)
for completion in llm.generate(sys.argv[2:], max_tokens=12, ignore_eos=True, temperature=0.8, seed=9):
    print(ascii((completion.text, completion.token_ids, completion.logprobs)))
"""


def served(tiny: Path, environment: dict[str, str]) -> tuple[str, list[Json]]:
    """The line of the startup screen that names the kernels, and the choices with their log-probabilities."""
    with serving(model=tiny, environment=environment) as server, server.client() as http:
        (threads,) = [line for line in server.screen if line.startswith("threads ")]
        choices = []
        for sampling in SAMPLINGS:
            fields = {**sampling, "max_tokens": 20, "ignore_eos": True}
            for prompt in PROMPTS:
                answer = complete(http, prompt, logprobs=1, **fields)
                chunks = events(http, "/v1/completions", {"prompt": prompt, **fields})
                assert streamed_text(chunks) == answer["choices"][0]["text"]
                choices.append(answer["choices"][0])
        return threads, choices


def test_the_server_answers_the_same_with_and_without_the_extension(tiny: Path) -> None:
    kernels, slow = served(tiny, NUMPY)
    assert "numpy" in kernels
    kernels, fast = served(tiny, {})
    assert "numpy" not in kernels
    assert slow == fast


def in_process(tiny: Path, environment: dict[str, str]) -> tuple[str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", IN_PROCESS, str(tiny), *PROMPTS],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    isa, *lines = done.stdout.splitlines()
    return isa, lines


def test_llm_generates_the_same_with_and_without_the_extension(tiny: Path) -> None:
    slow_isa, slow = in_process(tiny, NUMPY)
    fast_isa, fast = in_process(tiny, {})
    assert (slow_isa, len(slow)) == ("numpy", len(PROMPTS))
    assert fast_isa != "numpy"
    assert slow == fast
