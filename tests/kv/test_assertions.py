"""The cache asserts its assumptions."""

import ast
from pathlib import Path

import transom.kv

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def test_the_cache_has_one_assertion_for_every_two_functions() -> None:
    files = sorted(Path(transom.kv.__file__).parent.glob("*.py"))
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    functions = sum(isinstance(node, FUNCTIONS) for node in nodes)
    asserts = sum(isinstance(node, ast.Assert) for node in nodes)
    assert functions > 100, functions
    assert asserts >= functions / 2, (asserts, functions)
