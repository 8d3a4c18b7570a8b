"""Wrong edits of the product, generated from its syntax trees.

An edit has a stable id: module, function, kind, and its number among the edits of that kind in the function.
The id survives reformatting and renames of variables. Applying an edit changes a few characters and keeps
every line number. Asserts, error messages, docstrings, annotations and code outside functions are not edited.
"""

import ast
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = Path("src/transom")
PACKAGES = ("kv", "sched")
LEFT_OUT = {"kv.check"}
"""The checker itself: a test calls it, and no server does unless it is asked to."""

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}
SYMMETRIC = {"min", "max", "isinstance"}
"""Calls that mean the same with swapped arguments, or that fail at once."""

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Change:
    """Bytes [start, end) of a module, which are `old`, become `new`."""

    start: int
    end: int
    old: bytes
    new: bytes


@dataclass(frozen=True, slots=True)
class Edit:
    """One wrong edit of the function `function` of `module`, such as `Journal.assign` of `kv.journal`."""

    module: str
    function: str
    kind: str
    number: int
    line: int
    changes: tuple[Change, ...]

    @property
    def id(self) -> str:
        return f"{self.module}:{self.function}:{self.kind}:{self.number}"

    @property
    def path(self) -> Path:
        return path_of(self.module)

    def apply(self, source: str) -> str:
        """The text of the module with this edit. Raises ValueError where the text is another one."""
        text = source.encode()
        for change in sorted(self.changes, key=lambda change: change.start, reverse=True):
            if text[change.start : change.end] != change.old:
                raise ValueError(f"{self.id}: {change.old!r} is no longer at byte {change.start}")
            text = text[: change.start] + change.new + text[change.end :]
        return text.decode()


def path_of(module: str) -> Path:
    """The file of a module, from the root of the repository."""
    return PRODUCT / f"{module.replace('.', '/')}.py"


def modules() -> list[str]:
    """The modules that are edited."""
    found = [
        f"{package}.{path.stem}"
        for package in PACKAGES
        for path in sorted((ROOT / PRODUCT / package).glob("*.py"))
        if path.stem != "__init__"
    ]
    return [module for module in found if module not in LEFT_OUT]


def source_of(module: str) -> str:
    return (ROOT / path_of(module)).read_text(encoding="utf-8")


def generated(module: str, source: str) -> list[Edit]:
    """All edits of a module, in the order of its text."""
    text = Text(source)
    counts: Counter[tuple[str, str]] = Counter()
    edits = []
    for function, node in functions(ast.parse(source)):
        for kind, at, changes in _edits(text, node):
            number = counts[function, kind]
            counts[function, kind] += 1
            edits.append(Edit(module, function, kind, number, at.lineno, changes))
    return edits


# ---------------------------------------------------------------- places in a text


class Text:
    """The text of a module, addressed by the nodes of its syntax tree."""

    def __init__(self, source: str) -> None:
        self.bytes = source.encode()
        self._lines = [0]
        for line in self.bytes.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._lines[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._lines[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: ast.expr | ast.stmt) -> str:
        return self.bytes[self.start(node) : self.end(node)].decode()

    def replace(self, node: ast.expr | ast.stmt, new: str) -> Change:
        """`new` in place of a node, with line breaks added so that later lines keep their numbers."""
        old = self.bytes[self.start(node) : self.end(node)]
        missing = old.count(b"\n") - new.count("\n")
        return Change(self.start(node), self.end(node), old, new.encode() + b"\n" * missing)

    def between(self, left: ast.expr, right: ast.expr, pattern: str, new: str) -> Change:
        """`new` in place of the operator between two operands."""
        start, end = self.end(left), self.start(right)
        found = re.search(pattern.encode(), self.bytes[start:end])
        assert found is not None, (self.bytes[start:end], pattern)
        return Change(start + found.start(), start + found.end(), found[0], new.encode())

    def around(self, node: ast.expr, before: str, after: str) -> tuple[Change, Change]:
        start, end = self.start(node), self.end(node)
        return Change(start, start, b"", before.encode()), Change(end, end, b"", after.encode())


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, FunctionNode]]:
    """Every function with its qualified name, as Python writes it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, FunctionNode):
            yield prefix + node.name, node
            yield from functions(node, f"{prefix}{node.name}.<locals>.")
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        else:
            yield from functions(node, prefix)


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function that may be edited. A function inside it has its own nodes."""
    body = node.body if isinstance(node, FunctionNode) else list(ast.iter_child_nodes(node))
    if isinstance(node, ast.AnnAssign):
        body = [child for child in (node.target, node.value) if child is not None]
    for child in body:
        if isinstance(child, FunctionNode | ast.ClassDef | ast.Assert | ast.Raise | ast.JoinedStr):
            continue
        yield child
        yield from own_nodes(child)


# ---------------------------------------------------------------- kinds of edits

Found = tuple[str, ast.expr | ast.stmt, tuple[Change, ...]]


def _edits(text: Text, function: FunctionNode) -> Iterator[Found]:
    for node in own_nodes(function):
        match node:
            case ast.Compare():
                yield from _comparisons(text, node)
            case ast.BoolOp():
                pattern, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                pairs = zip(node.values, node.values[1:], strict=False)
                yield "and or", node, tuple(text.between(a, b, rf"\b{pattern}\b", new) for a, b in pairs)
            case ast.Constant(value=int() as value) if not isinstance(value, bool):
                yield "off by one", node, (text.replace(node, str(value + 1)),)
                if value:
                    yield "off by one", node, (text.replace(node, str(value - 1)),)
            case ast.Call():
                yield from _calls(text, node)
            case ast.Expr(value=ast.Call() as call):
                yield from _statements(text, node, call)
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign():
                yield "drop statement", node, (text.replace(node, "pass"),)
            case ast.If() | ast.While() | ast.IfExp():
                yield "negate", node.test, text.around(node.test, "not (", ")")
            case ast.comprehension():
                for test in node.ifs:
                    yield "negate", test, text.around(test, "not (", ")")


def _comparisons(text: Text, node: ast.Compare) -> Iterator[Found]:
    operands = [node.left, *node.comparators]
    for number, operator in enumerate(node.ops):
        pattern, new = COMPARISONS[type(operator)]
        pattern = rf"\b{pattern}\b" if pattern[0].isalpha() else pattern
        yield "compare", node, (text.between(operands[number], operands[number + 1], pattern, new),)


def _calls(text: Text, node: ast.Call) -> Iterator[Found]:
    name = called(node)
    if isinstance(node.func, ast.Name) and name in ("min", "max"):
        yield "min max", node, (text.replace(node.func, "max" if name == "min" else "min"),)
    if name in SYMMETRIC:
        return
    for one, other in zip(node.args, node.args[1:], strict=False):
        if isinstance(one, ast.Starred) or isinstance(other, ast.Starred):
            continue
        sources = text.of(one), text.of(other)
        if sources[0] != sources[1] and sources[0].count("\n") == sources[1].count("\n"):
            swapped = text.replace(one, text.of(other)), text.replace(other, text.of(one))
            yield "swap arguments", node, swapped


def _statements(text: Text, node: ast.Expr, call: ast.Call) -> Iterator[Found]:
    name, is_journal = called(call), isinstance(call.func, ast.Attribute) and "journal" in text.of(call.func)
    if (is_journal and name == "log") or name in ("rollback", "unwind"):
        yield "skip undo", node, (text.replace(node, "pass"),)
        return
    if is_journal and name in ("assign", "assign_alone"):
        yield "skip undo", node, (text.replace(call.func, "setattr"),)
    yield "drop statement", node, (text.replace(node, "pass"),)


def called(call: ast.Call) -> str:
    """The last name of the function that is called, or nothing."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


# ---------------------------------------------------------------- in the running process


@contextmanager
def made(edit: Edit) -> Iterator[None]:
    """The running product has the edit inside this block: the code of one function is another one."""
    source = source_of(edit.module)
    outer = edit.function.partition(".<locals>")[0]
    code = compile(edit.apply(source), str(ROOT / edit.path), "exec", dont_inherit=True)
    (new,) = [found for found in _codes(code) if found.co_qualname == outer]
    function = _function(edit.module, outer)
    before = function.__code__
    function.__code__ = new
    try:
        yield
    finally:
        function.__code__ = before


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _function(module: str, name: str) -> FunctionType:
    found: object = import_module(f"transom.{module}")
    for part in name.split("."):
        found = inspect.getattr_static(found, part)
    if isinstance(found, property):
        found = found.fget
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    function = inspect.unwrap(found)  # type: ignore[arg-type]
    assert isinstance(function, FunctionType), (module, name, function)
    return function
