"""Docstrings, comments and pages stay below a ceiling of loose pronouns.

A loose pronoun leaves the reader to guess the noun: "who gives first" for "the component that evicts".
Well-kept code of this field has 0 to 3 of them per 1,000 words. The count is a floor for plain language, not
a proof of it.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.pages import PAGES, ROOT, prose

LOOSE = re.compile(
    r"\b(?:who|whoever|whose|those|what|whatever|nobody|anybody|everybody|somebody|none|others)\b", re.I
)
SOURCES = (ROOT / "src" / "transom", ROOT / "lab")
PER_1000_WORDS_MAX = 4.0
PER_1000_WORDS_OF_A_PACKAGE_MAX = 8.0


def python_prose(path: Path) -> Iterator[str]:
    """Docstrings of modules, classes, functions and attributes, and comments."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def cpp_prose(path: Path) -> Iterator[str]:
    yield from re.findall(r"//(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)


def packages() -> dict[str, list[str]]:
    """All prose of each Python package, and of the native code, by path."""
    found: dict[str, list[str]] = {}
    for root in SOURCES:
        for path in sorted(root.rglob("*.py")):
            found.setdefault(str(path.parent.relative_to(ROOT)), []).extend(python_prose(path))
    for path in sorted((ROOT / "native").rglob("*.[ch]*")):
        found.setdefault("native", []).extend(cpp_prose(path))
    return found


def rate(texts: list[str]) -> float:
    """Loose pronouns per 1,000 words."""
    words = sum(len(text.split()) for text in texts)
    return 1000 * sum(len(LOOSE.findall(text)) for text in texts) / max(1, words)


def worst(texts: list[str]) -> str:
    hits = [" ".join(text.split()) for text in texts if LOOSE.search(text)]
    return "\n".join(hits[:20])


def test_the_measure_counts_a_loose_pronoun() -> None:
    assert rate(["The cache evicts a page."]) == 0
    assert rate(["Who gives first, nobody says."]) == 400


@pytest.mark.parametrize("package", packages())
def test_a_package_stays_below_its_ceiling_of_loose_pronouns(package: str) -> None:
    texts = packages()[package]
    assert rate(texts) <= PER_1000_WORDS_OF_A_PACKAGE_MAX, worst(texts)


def test_the_code_stays_below_its_ceiling_of_loose_pronouns() -> None:
    texts = [text for package in packages().values() for text in package]
    assert rate(texts) <= PER_1000_WORDS_MAX, worst(texts)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_stays_below_its_ceiling_of_loose_pronouns(page: Path) -> None:
    texts = [re.sub(r"`[^`]*`|\]\([^)]*\)", " ", prose(page))]
    assert rate(texts) <= PER_1000_WORDS_OF_A_PACKAGE_MAX, worst(texts[0].split("\n"))
