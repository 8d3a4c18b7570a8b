"""Renders chat messages as a prompt, with the Jinja template of the model file or ours, in a sandbox."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transom.errors import BadRequest
from transom.text.budget import UNBOUNDED, StepsSpent, TextBudget
from transom.text.control import ControlTokens, free_mark
from transom.text.sandbox import TEMPLATE_ERRORS, BoundedTemplate, TooMuchWorkError, one_line
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
    """A compiled template. Rendering depends on its arguments, and on the date if the template asks."""

    __slots__ = ("_control", "_names", "_template", "tool_format")

    def __init__(self, source: str, control: ControlTokens, *, bos: str = "", eos: str = "") -> None:
        """`bos` and `eos` are the literals of these tokens. ConfigError if the template does not compile."""
        self._control = control
        self._names = {"bos_token": bos, "eos_token": eos}
        self._template = BoundedTemplate(source)
        self.tool_format: ToolFormat = format_of(source, has_tools="tools" in self._template.variables)

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
            variables = {
                **disarmed,
                "add_generation_prompt": rendering.add_generation_prompt,
                **self._names,
            }
            text = self._template.render(variables, len(written), budget, of_token)
        except TEMPLATE_ERRORS as error:
            kind = StepsSpent if isinstance(error, TooMuchWorkError) else BadRequest
            raise kind(
                f"the chat template cannot render these messages: {one_line(error)}", param="messages"
            ) from error
        if rendering.continue_final:
            text = _up_to_end(text, last, end)
        return ChatPrompt(text, mark)

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
