"""The blocks of docs/python.md run one after another, unchanged, and print the output that the page shows."""

import contextlib
import io
from pathlib import Path

import pytest
from tests.docs.pages import DOCS, blocks, text_of

from transom import LLM, llm

PAGE = DOCS / "python.md"


@pytest.mark.model
def test_the_python_page_runs_and_prints_the_output_that_it_shows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    found = blocks(PAGE)
    assert sum(block.language == "python" for block in found) > 10
    for block, after in zip(found, [*found[1:], None], strict=True):
        if block.language != "python":
            continue
        # Leading newlines make a traceback name the line of the page.
        code = compile("\n" * (block.line - 1) + block.text, str(PAGE), "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, names)
        shown = after.text if after is not None and after.language == "text" else ""
        assert printed.getvalue() == shown, f"docs/python.md, line {block.line}"


def test_every_public_name_has_a_docstring_and_is_on_the_page() -> None:
    page = text_of(PAGE)
    for name, value in vars(LLM).items():
        if not name.startswith("_"):
            assert value.__doc__, name
            assert name in page or name == "engine", name
    for name in (*llm.Options.__annotations__, *llm.EngineOptions.__annotations__):
        assert f"`{name}`" in page, name
    for kind in (llm.Piece, llm.Completion, llm.Score, llm.Options, llm.EngineOptions, LLM):
        assert kind.__doc__
