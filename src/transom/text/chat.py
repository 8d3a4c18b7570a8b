"""Renders chat messages as a prompt, with the Jinja template of the model file or ours, in a sandbox."""

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import loopcontrols
from jinja2.filters import do_format
from jinja2.sandbox import ImmutableSandboxedEnvironment

from transom.errors import BadRequest, ConfigError
from transom.text.budget import UNBOUNDED, TextBudget
from transom.text.control import ControlTokens, free_mark
from transom.text.tools import ToolFormat, described, format_of

Message = Mapping[str, Any]

GEMMA_TEMPLATE = """\
{{- bos_token -}}
{%- set preface = '' -%}
{%- set turns = messages -%}
{%- if messages[0].role == 'system' -%}
    {%- set preface = messages[0].content | trim + '\\n\\n' -%}
    {%- set turns = messages[1:] -%}
{%- endif -%}
{%- if not turns -%}
    {{- raise_exception('there is no user message') -}}
{%- endif -%}
{%- for turn in turns -%}
    {%- if turn.role != loop.cycle('user', 'assistant') -%}
        {{- raise_exception('after an optional system message, user and assistant must take turns') -}}
    {%- endif -%}
    {{- '<start_of_turn>' + ('user' if turn.role == 'user' else 'model') + '\\n' -}}
    {{- preface if loop.first -}}
    {{- turn.content | trim + '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<start_of_turn>model\\n' -}}
{%- endif -%}
"""
"""Gemma's chat format. It has no system role: the system message is prepended to the first user turn."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """How a conversation becomes a prompt.

    add_generation_prompt  the prompt ends with the beginning of an answer
    continue_final         the prompt ends within the last message, which the answer continues
    variables              further variables of the template
    """

    add_generation_prompt: bool = True
    continue_final: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert not (self.add_generation_prompt and self.continue_final), self


ANSWER = Rendering()
"""The prompt for the assistant's next message."""
RESERVED = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")
"""Variables that every rendering sets."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation. `mark` separates the characters of control tokens that users wrote."""

    marked: str
    mark: str

    @property
    def text(self) -> str:
        return self.marked.replace(self.mark, "")


class ChatTemplate:
    """A compiled template. Rendering depends only on its arguments: no clock, no randomness, no files."""

    __slots__ = ("_control", "_names", "_template", "tool_format")

    def __init__(self, source: str, control: ControlTokens, *, bos: str = "", eos: str = "") -> None:
        """`bos` and `eos` are the literals of these tokens. ConfigError if the template does not compile."""
        self._control = control
        self._names = {"bos_token": bos, "eos_token": eos}
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            used = meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateError as error:
            raise ConfigError(f"the chat template does not compile: {_one_line(error)}") from error
        self.tool_format: ToolFormat = format_of(source, has_tools="tools" in used)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        rendering: Rendering = ANSWER,
        budget: TextBudget = UNBOUNDED,
        of_token: int = 1,
    ) -> ChatPrompt:
        """BadRequest if the template rejects the messages.

        RequestTooLarge as soon as the text exceeds the budget; a token has at most `of_token` characters.
        """
        normal = normalize(messages)
        if self.tool_format.is_described:
            normal, tools = described(normal, tools or ()), None
        # Templates test for none, not for an empty list.
        variables = {**rendering.variables, "messages": normal, "tools": tools or None}
        # The mark must not occur in any string of the input: removing it would change that string.
        written = json.dumps(variables, ensure_ascii=False, default=str)
        mark = free_mark(written)
        last = normal[-1]["content"]
        end = free_mark(written + mark)
        if rendering.continue_final:
            normal[-1]["content"] = _with_end(last, end)
        disarmed = self._disarm(variables, mark)
        try:
            text = self._rendered(
                {**disarmed, "add_generation_prompt": rendering.add_generation_prompt, **self._names},
                budget,
                of_token,
            )
        except _TEMPLATE_ERRORS as error:
            raise BadRequest(
                f"the chat template cannot render these messages: {_one_line(error)}", param="messages"
            ) from error
        if rendering.continue_final:
            text = _up_to_end(text, last, end)
        return ChatPrompt(text, mark)

    def _rendered(self, variables: dict[str, Any], budget: TextBudget, of_token: int) -> str:
        steps = 0

        def step() -> str:
            nonlocal steps
            steps += 1
            if steps > budget.steps:
                raise _RefusedError(f"its loops take more than {budget.steps} steps")
            if steps % STEPS_BETWEEN_LOOKS == 0:
                budget.carry_on()
            return ""

        pieces, characters = [], 0
        for piece in self._template.generate(variables, **{STEP: step}):
            pieces.append(piece)
            characters += len(piece)
            budget.check_characters(characters, of_token)
        return "".join(pieces)

    def _disarm(self, value: Any, mark: str) -> Any:
        """A copy in which no string contains a control token."""
        if isinstance(value, str):
            return self._control.disarm(value, mark)
        if isinstance(value, Mapping):
            # Keys too: templates print the keys of tool descriptions.
            return {self._disarm(key, mark): self._disarm(entry, mark) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return [self._disarm(entry, mark) for entry in value]
        return value


def _with_end(content: str, mark: str) -> str:
    """A message's content with a mark behind its text, before spaces, which templates may cut off."""
    text = content.rstrip()
    return f"{text}{mark}{content[len(text) :]}"


def _up_to_end(rendered: str, content: str, mark: str) -> str:
    """The rendered text up to the mark of `_with_end`, and the content's spaces if the template kept them."""
    before, found, after = rendered.rpartition(mark)
    if not found:
        raise BadRequest("the chat template leaves the last message out", param="messages")
    spaces = content[len(content.rstrip()) :]
    # A template may write a message more than once.
    return before.replace(mark, "") + (spaces if after.startswith(spaces) else "")


# ---------------------------------------------------------------- messages


def normalize(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages with their content as text. `BadRequest`, naming the message, if one is invalid."""
    if not messages:
        raise BadRequest("there are no messages", param="messages")
    return [_normalize(message, f"messages.{i}") for i, message in enumerate(messages)]


def _normalize(message: Message, where: str) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise BadRequest("a message needs a role", param=f"{where}.role")
    content = _text(message.get("content"), f"{where}.content")
    return {**message, "role": "system" if role == "developer" else role, "content": content}


def _text(content: Any, where: str) -> str:
    """A string as it is, text parts joined by line breaks as in other servers, and "" for null."""
    match content:
        case None:
            return ""
        case str():
            return content
        case [*parts]:
            return "\n".join(_part(part, f"{where}.{i}") for i, part in enumerate(parts))
    raise BadRequest("content must be a string or a list of parts", param=where)


def _part(part: Any, where: str) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": str(kind)} if kind != "text":
            raise BadRequest(f"content of type {kind[:40]!r} is not supported; only text is", param=where)
    raise BadRequest('a content part must be {"type": "text", "text": "..."}', param=where)


# ---------------------------------------------------------------- templates


class _RefusedError(jinja2.TemplateError):
    """The template called raise_exception."""


_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors of template expressions that meet values of unexpected types."""


STEP = "transom_step"
"""Variable of every template: a function that each pass through a loop or a macro calls first."""
STEPS_BETWEEN_LOOKS = 1000
REPEATS_MAX = 10_000
"""Largest number in an operation that makes a text or a list from a number."""
VALUE_CHARACTERS_MAX = 1 << 24
"""Largest text that an operation of a template may make."""


class _Compiler(CodeGenerator):
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.joined((")
        for operand in node.nodes:
            self.visit(operand, frame)
            self.write(", ")
        self.write("))")


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox that bounds work, too: passes through loops and macros, and the size of what operations make.

    A model file is not trusted: its template may neither reach Python objects nor change its arguments, and
    may not occupy the server. Bounded operations are not folded when a template is compiled.
    """

    code_generator_class = _Compiler
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            _check_size(len(left) + len(right))
        elif operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, str | list | tuple) and isinstance(times, int):
                    _check_size(len(value) * times)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_size(left.bit_length() * right)
        elif operator == "%" and isinstance(left, str):
            _check_widths(left)
        return super().call_binop(context, operator, left, right)

    def joined(self, values: Sequence[Any]) -> str:
        """The operator ~."""
        texts = [str(value) for value in values]
        _check_size(sum(map(len, texts)))
        return "".join(texts)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        blocks: list[nodes.For | nodes.Macro] = [
            *template.find_all(nodes.For),
            *template.find_all(nodes.Macro),
        ]
        for block in blocks:
            call = nodes.Call(nodes.Name(STEP, "load"), [], [], None, None)
            block.body.insert(0, nodes.ExprStmt(call))
        template.set_environment(self)
        return template


def _check_size(size: int) -> None:
    if size > VALUE_CHARACTERS_MAX:
        raise _RefusedError("it makes a value that is too large")


def _check_widths(pattern: str) -> None:
    if re.search(r"%[^%a-zA-Z]*\d{5}", pattern):
        raise _RefusedError("it pads a text too far")


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that refuses large numbers among its arguments."""

    @functools.wraps(function)
    def bounded(*arguments: Any, **named: Any) -> Any:
        if any(isinstance(one, int) and one > REPEATS_MAX for one in (*arguments[1:], *named.values())):
            raise _RefusedError("a filter has too large a number")
        return function(*arguments, **named)

    return bounded


def _format(pattern: Any, *arguments: Any, **named: Any) -> str:
    _check_widths(str(pattern))
    return do_format(pattern, *arguments, **named)


def _environment() -> jinja2.Environment:
    """Configured as in transformers, because model files contain templates for it; without its clock."""
    environment = _BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.globals.pop("lipsum")
    for name in ("center", "indent", "batch", "slice"):
        environment.filters[name] = _bounded(environment.filters[name])
    environment.filters["format"] = _format
    environment.globals["raise_exception"] = _refuse
    environment.filters["tojson"] = _to_json
    return environment


def _refuse(message: str) -> NoReturn:
    raise _RefusedError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    # Jinja's own filter escapes HTML; a prompt is plain text.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _one_line(error: Exception) -> str:
    # Messages of Jinja errors may quote long stretches of the template.
    return " ".join(str(error).split())[:300] or type(error).__name__
