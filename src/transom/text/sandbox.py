"""The environment of chat templates: that of transformers, in a sandbox with a bound on work and on output.

A model file is not trusted. Jinja's sandbox keeps its template away from Python objects; it does not bound
loops, recursion or the size of strings. Here every iteration, call, filter and operation charges a budget in
proportion to the data that it reads or makes; an operation that multiplies data is refused before it runs.
Constants are not folded, so a template computes nothing while it is compiled.
"""

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from transom.errors import ConfigError
from transom.text.budget import UNBOUNDED, TextBudget

SOURCE_CHARACTERS_MAX = 1 << 20
"""Real templates stay below 20,000."""
STEPS_MAX = 300_000
"""Work of a short conversation, about half a second. Real templates need a few steps per message."""
STEPS_BETWEEN_LOOKS = 1000
CHARACTERS_PER_STEP = 32
CALL_STEPS = 5
"""A macro takes as long as several iterations of a loop."""
PRODUCT_MAX = 1 << 24
"""Most characters or elements that one operation may make of smaller ones."""
NUMBER_BITS_MAX = 4096
BUDGET = " budget"
CHARGE = " charge"
"""Names with a space: no template can write them."""


class RefusedError(jinja2.TemplateError):
    """The template called raise_exception."""


class TooMuchWorkError(jinja2.TemplateError):
    """The template exceeded its budget."""


TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors of template expressions that meet values of unexpected types, or ask for too much."""


class Budget:
    """Steps that a rendering may still take. Mutable."""

    __slots__ = ("_carry_on", "_left", "_next_look")

    def __init__(self, steps: int, carry_on: Callable[[], None] = lambda: None) -> None:
        """`carry_on` is called now and then, and raises if the text is not wanted any more."""
        self._left = steps
        self._carry_on = carry_on
        self._next_look = steps - STEPS_BETWEEN_LOOKS

    def charge(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise TooMuchWorkError("it takes too many steps, or makes too long a text")
        if self._left < self._next_look:
            self._next_look = self._left - STEPS_BETWEEN_LOOKS
            self._carry_on()

    def read(self, value: object) -> None:
        """Charges what it costs to print, compare or copy a value, with all that it holds.

        A list that holds another one twice may be exponentially larger in print than in memory.
        """
        left = [value]
        while left:
            one = left.pop()
            self.charge(1)
            if isinstance(one, str | bytes):
                self.charge(len(one) // CHARACTERS_PER_STEP)
            elif isinstance(one, Mapping):
                left += [*one.keys(), *one.values()]
            elif isinstance(one, list | tuple | set):
                left += one

    def made(self, value: Any) -> Any:
        """Charges for a new value, without what it holds, and returns it."""
        if isinstance(value, str | bytes):
            self.charge(len(value) // CHARACTERS_PER_STEP)
        elif isinstance(value, list | tuple | dict):
            self.charge(len(value) // 4)
        return value


# ---------------------------------------------------------------- operations that multiply data

_WIDTHS = frozenset(
    ("batch", "center", "expandtabs", "indent", "ljust", "rjust", "slice", "tojson", "wordwrap", "zfill")
)
"""Filters, and methods of strings, whose numbers are widths or counts."""
_SHALLOW = frozenset(
    {"attr", "batch", "count", "d", "default", "first", "items", "last", "length", "list", "map", "reject"}
    | {"rejectattr", "reverse", "select", "selectattr", "slice"}
)
"""Filters that do not read what the elements of a list hold."""
_WIDE = re.compile(r"\d{6}|\*|:[^{}]*\{")
"""A width of a million, or one that is an argument, in a format string."""


def _require_product(count: int, size: int) -> None:
    if count * size > PRODUCT_MAX:
        raise TooMuchWorkError("an operation makes too long a text or list")


def _require_operands(operator: str, left: Any, right: Any) -> None:
    """Refuses a product, power or format that is far larger than its operands."""
    if operator == "*":
        for sequence, count in ((left, right), (right, left)):
            if hasattr(sequence, "__len__") and isinstance(count, int):
                _require_product(len(sequence), count)
    if operator in "**" and isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if bits > NUMBER_BITS_MAX:
            raise TooMuchWorkError("a number is too large")
    if operator == "%" and isinstance(left, str) and _WIDE.search(left):
        raise TooMuchWorkError("a width in a format is too large, or not a constant")


def _require_call(name: str, value: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Refuses a filter, or a method of a string, whose result is far larger than its arguments."""
    if name in _WIDTHS:
        size = len(value) if hasattr(value, "__len__") else 1
        for number in (*arguments, *named.values()):
            if isinstance(number, int):
                _require_product(max(1, size), abs(number))
                if name == "tojson" and number > 64:
                    raise TooMuchWorkError("an indentation is too large")
    elif name == "replace" and len(arguments) >= 2:
        text, old, new = str(value), str(arguments[0]), str(arguments[1])
        _require_product(text.count(old), len(new))
    elif name == "join" and hasattr(value, "__len__"):
        words = [value, *arguments, *named.values()]
        texts = [len(word) for word in words if isinstance(word, str)]
        counts = [len(word) for word in words if hasattr(word, "__len__")]
        _require_product(max(texts, default=0), max(counts, default=0))
    elif name in ("format", "format_map") and isinstance(value, str) and _WIDE.search(value):
        raise TooMuchWorkError("a width in a format is too large, or not a constant")


# ---------------------------------------------------------------- the environment


def _budget(context: Context) -> Budget:
    found: Budget = context.parent[BUDGET]
    return found


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = _budget(context)
        budget.charge(1)
        _require_operands(operator, left, right)
        if operator == "%" and isinstance(left, str):
            budget.read(right)
        return budget.made(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = _budget(__context)
        budget.charge(CALL_STEPS)
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps `format`
        owner = getattr(method, "__self__", None)
        if getattr(method, "__name__", "") == "changed":  # of a loop: compares
            budget.read(args)
        elif isinstance(owner, str | bytes):
            # A method of a string reads all of it, and all of its arguments.
            budget.read(owner)
            budget.read(args)
            budget.read(kwargs)
            _require_call(method.__name__, owner, args, kwargs)
        return budget.made(super().call(__context, __obj, *args, **kwargs))


def _bounded(name: str, function: Callable[..., Any], *, is_test: bool = False) -> Callable[..., Any]:
    """A filter or test, with its charges. A test reads what it is compared with."""
    passed = getattr(getattr(function, "jinja_pass_arg", None), "name", "")

    @jinja2.pass_context
    def call(context: Context, value: Any, *arguments: Any, **named: Any) -> Any:
        budget = _budget(context)
        budget.charge(1)
        if is_test:
            budget.read(arguments)
        elif name not in _SHALLOW:
            budget.read(value)
            budget.read(arguments)
        _require_call(name, value, arguments, named)
        first: dict[str, Any] = {
            "context": context,
            "eval_context": context.eval_ctx,
            "environment": context.environment,
        }
        given = (first[passed],) if passed else ()
        return budget.made(function(*given, value, *arguments, **named))

    return call


@jinja2.pass_context
def _charge(context: Context, value: Any, steps: int = 0) -> Any:
    """Charges `steps`, and the reading of `value`, which it returns."""
    budget = _budget(context)
    budget.charge(steps)
    budget.read(value)
    return value


class _Charging(NodeTransformer):
    """Adds charges to a parsed template: for each iteration, comparison, slice and joined text."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        node = self.generic_visit(node)  # type: ignore[assignment]
        node.body = [_statement(node), *node.body]
        if node.test is not None:
            node.test = _charged(node.test)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        node = self.generic_visit(node)  # type: ignore[assignment]
        node.body = [_statement(node), *node.body]
        return node

    visit_CallBlock = visit_Macro

    def visit_Operand(self, node: nodes.Operand) -> nodes.Node:
        node = self.generic_visit(node)  # type: ignore[assignment]
        node.expr = _charged(node.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        node = self.generic_visit(node)  # type: ignore[assignment]
        return node if not isinstance(node.arg, nodes.Slice) else _made(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        node = self.generic_visit(node)  # type: ignore[assignment]
        node.nodes = [_charged(part) for part in node.nodes]
        return node


def _statement(body: nodes.Node) -> nodes.Node:
    """Charges one iteration of a body, by the length of its text."""
    text = sum(len(data.data) for data in body.find_all(nodes.TemplateData))
    value = nodes.Const("", lineno=body.lineno)
    steps = nodes.Const(1 + text // CHARACTERS_PER_STEP, lineno=body.lineno)
    charge = nodes.Filter(value, CHARGE, [steps], [], None, None, lineno=body.lineno)
    return nodes.ExprStmt(charge, lineno=body.lineno)


def _charged(node: Any) -> nodes.Expr:
    return nodes.Filter(node, CHARGE, [], [], None, None, lineno=node.lineno)


MADE = " made"


def _made(node: nodes.Expr) -> nodes.Expr:
    return nodes.Filter(node, MADE, [], [], None, None, lineno=node.lineno)


@jinja2.pass_context
def _charge_made(context: Context, value: Any) -> Any:
    return _budget(context).made(value)


@jinja2.pass_context
def _printed(context: Context, value: Any) -> Any:
    _budget(context).read(value)
    return value


class _Generation(Extension):
    """`{% generation %}` of transformers marks the assistant's tokens for training; here it marks nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> _Environment:
    """Configured as in transformers, because model files have templates for it."""
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[loopcontrols, _Generation],
        # With the context passed, constants cannot be printed while the template is compiled.
        finalize=_printed,
        optimized=False,
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    environment.filters["tojson"] = _to_json
    # Random text, of any length.
    del environment.globals["lipsum"], environment.filters["random"]
    environment.filters = {name: _bounded(name, one) for name, one in environment.filters.items()}
    tests = cast(Mapping[str, Callable[..., Any]], environment.tests)
    environment.tests = {name: _bounded(name, one, is_test=True) for name, one in tests.items()}
    environment.filters |= {CHARGE: _charge, MADE: _charge_made}
    return environment


def _refuse(message: str) -> NoReturn:
    raise RefusedError(message)


def _now(format: str) -> str:
    if _WIDE.search(format) or len(format) > 200:
        raise TooMuchWorkError("a width in a format is too large, or not a constant")
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML; a prompt is plain text.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class BoundedTemplate:
    """A compiled template, safe to use from several threads."""

    __slots__ = ("_template", "variables")

    variables: frozenset[str]
    """Names that the template reads."""

    def __init__(self, source: str) -> None:
        """ConfigError if the source does not compile."""
        if len(source) > SOURCE_CHARACTERS_MAX:
            raise ConfigError(
                f"the chat template has {len(source)} characters; {SOURCE_CHARACTERS_MAX} are allowed"
            )
        environment = _environment()
        try:
            parsed = environment.parse(source)
            self.variables = frozenset(meta.find_undeclared_variables(parsed))
            self._template = environment.from_string(_Charging().visit(parsed))
        except Exception as error:
            # Broad on purpose: deep nesting, odd numbers and undefined filters raise errors of many kinds, in
            # Jinja as in Python's compiler.
            raise ConfigError(f"the chat template does not compile: {one_line(error)}") from error

    def render(
        self,
        variables: Mapping[str, Any],
        characters: int,
        bounds: TextBudget = UNBOUNDED,
        of_token: int = 1,
    ) -> str:
        """The text. `characters` of the conversation: more of them may cause more work.

        Raises one of `TEMPLATE_ERRORS`; RequestTooLarge as soon as the text exceeds `bounds`.
        """
        budget = Budget(min(bounds.steps, STEPS_MAX) + characters, bounds.carry_on)
        parts, length = [], 0
        for part in self._template.generate({**variables, BUDGET: budget}):
            budget.charge(1 + len(part) // CHARACTERS_PER_STEP)
            length += len(part)
            bounds.check_characters(length, of_token)
            parts.append(part)
        return "".join(parts)


def one_line(error: BaseException) -> str:
    # Messages of Jinja errors may quote long stretches of the template.
    return " ".join(str(error).split())[:300] or type(error).__name__
