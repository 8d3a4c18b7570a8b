"""Commands pasted from docs/start.md (after the installation) and docs/serving.md give the pages' results."""

import json
import subprocess
import sys

import pytest
from tests.docs.pages import DOCS, Block, blocks
from tests.over_http import Json
from tests.serving import Serving

PAGE = blocks(DOCS / "start.md")
CURLS = [block for block in PAGE if "curl" in block.text]

pytestmark = pytest.mark.model


def pasted(block: Block, server: Serving) -> list[Json]:
    """The JSON answers of a pasted block, with the test server's address in place of the page's."""
    script = block.text.replace("http://127.0.0.1:8000", server.url)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found, rest = [], done.stdout
    while rest:
        answer, end = json.JSONDecoder().raw_decode(rest)
        found.append(answer)
        rest = rest[end:].strip()
    return found


def test_the_first_request_gets_the_answer_on_the_page(server: Serving) -> None:
    (answer,) = pasted(CURLS[0], server)
    after = PAGE[PAGE.index(CURLS[0]) + 1]
    assert json.dumps(answer["choices"]).count(after.text.rstrip("\n")) == 1


def test_the_second_request_reuses_as_many_tokens_as_the_page_states(server: Serving) -> None:
    first, second = (answer["usage"] for answer in pasted(CURLS[1], server))
    assert first["prompt_tokens"] == second["prompt_tokens"] == 604
    assert second["prompt_tokens_details"]["cached_tokens"] == 592


REQUESTS = [
    block for block in blocks(DOCS / "serving.md") if "/v1/" in block.text and "abort" not in block.text
]
"""The block with an abort is left out: it sends two requests at once, and their order is random."""


@pytest.mark.parametrize("block", REQUESTS, ids=lambda block: f"line {block.line}")
def test_the_requests_on_the_serving_page_are_answered(block: Block, server: Serving) -> None:
    for answer in pasted(block, server):
        assert answer["choices"]


@pytest.mark.parametrize("block", [block for block in PAGE if block.language == "python"])
def test_the_python_on_the_page_runs(block: Block) -> None:
    done = subprocess.run([sys.executable, "-c", block.text], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == " Wednesday, Thursday, Friday, Saturday,\n 5, 6, 7\n"
