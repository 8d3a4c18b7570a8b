"""The core asserts what it relies on."""

import ast
from pathlib import Path

import transom.kv

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def test_every_other_function_of_the_core_asserts_something_on_average() -> None:
    files = sorted(Path(transom.kv.__file__).parent.glob("*.py"))
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    functions = sum(isinstance(node, FUNCTIONS) for node in nodes)
    asserts = sum(isinstance(node, ast.Assert) for node in nodes)
    assert functions > 100, functions
    assert asserts >= functions / 2, (asserts, functions)
