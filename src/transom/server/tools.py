"""Tools of a chat request: their checks, the grammar of a forced call, and calls in the answer."""

import json
import re
import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from transom.limits import LIMITS
from transom.server.errors import bad_request
from transom.server.grammars import grammar_of
from transom.server.protocol import ChatRequest, NamedChoice, ToolDefinition
from transom.text.grammar import require_valid
from transom.text.model_text import ModelText
from transom.text.tool_calls import Arguments, CallBegun, CallParser, Content, Piece
from transom.text.tools import Tool, ToolFormat, alternatives, call_grammar

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ALPHANUMERIC = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools that an answer may call. `definitions` are the client's, for the template."""

    form: ToolFormat
    tools: tuple[Tool, ...]
    definitions: tuple[dict[str, Any], ...]
    forced: tuple[Tool, ...]
    """The tools of which one must be called; empty: the model decides."""
    parallel: bool

    @property
    def visible(self) -> frozenset[str]:
        """Control tokens that the parser must see in the text."""
        return frozenset(self.form.markers)


def tool_use(request: ChatRequest, text: ModelText) -> ToolUse | None:
    """The tools of a request; None if it lists no tool or forbids calls. Refused, naming the field."""
    definitions = request.tools or []
    if len(definitions) > LIMITS.tools:
        raise bad_request(f"tools lists {len(definitions)}; at most {LIMITS.tools} are allowed", "tools")
    tools = tuple(_tool(one, f"tools[{number}]") for number, one in enumerate(definitions))
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise bad_request("two tools have the same name", "tools")
    forced = _forced(request.tool_choice, tools)
    if not tools or request.tool_choice == "none":
        return None
    return ToolUse(
        text.tool_format,
        tools,
        tuple(msgspec.to_builtins(one) for one in definitions),
        forced,
        # One function that the client names is called once: clients such as instructor expect one call.
        request.parallel_tool_calls is not False and not isinstance(request.tool_choice, NamedChoice),
    )


def _tool(definition: ToolDefinition, where: str) -> Tool:
    if definition.type != "function":
        raise bad_request(
            f"{where}.type is {definition.type[:40]!r}; only 'function' is supported",
            f"{where}.type",
            "unsupported_value",
        )
    function = definition.function
    if _NAME.fullmatch(function.name) is None:
        raise bad_request(
            f"{where}.function.name must have 1 to 64 letters, digits, underscores, dots or dashes",
            f"{where}.function.name",
        )
    parameters = {} if function.parameters is None else function.parameters
    return Tool(function.name, parameters, f"{where}.function.parameters")


def _forced(choice: str | NamedChoice | None, tools: Sequence[Tool]) -> tuple[Tool, ...]:
    match choice:
        case None | "none" | "auto":
            return ()
        case "required":
            if not tools:
                raise bad_request("tool_choice is 'required', and there are no tools", "tool_choice")
            return tuple(tools)
        case NamedChoice():
            name = choice.function.name
            if named := tuple(tool for tool in tools if tool.name == name):
                return named
            raise bad_request(f"there is no tool {name[:64]!r}", "tool_choice.function.name")
    known = "none, auto, required, or an object that names a function"
    raise bad_request(f"tool_choice is {choice[:40]!r}; it must be {known}", "tool_choice")


def chat_grammar(request: ChatRequest, use: ToolUse | None, text: ModelText) -> str:
    """The grammar of a chat's outputs; empty if they are free. BadRequest or Refused, naming the field.

    A forced call needs no other constraint. If the model decides, an output is a call or fits the schema.
    """
    grammar = "" if use is not None and use.forced else grammar_of(request)
    if use is None or not (use.forced or grammar):
        return grammar
    tools = use.forced or use.tools
    calls = call_grammar(use.form, tools, text.control_id, parallel=use.parallel)
    if not grammar:
        return calls
    combined = alternatives(calls, grammar)
    if combined is None:
        raise bad_request(
            "only a JSON Schema can constrain an output that may also call a tool; set tool_choice to none",
            "tool_choice",
            "unsupported_value",
        )
    return require_valid(combined, "tools")


# ---------------------------------------------------------------- calls in an answer


@dataclass(slots=True)
class _Calls:
    """The calls of one output. Mutable."""

    parser: CallParser
    ids: list[str] = field(default_factory=list)


class ToolChoices:
    """Turns the text of each choice into deltas and messages with calls. Mutable: owns their parsers."""

    def __init__(self, use: ToolUse) -> None:
        self._use = use
        self._choices: dict[int, _Calls] = {}

    def has_called(self, index: int) -> bool:
        return index in self._choices and self._choices[index].parser.calls > 0

    def delta(self, index: int, text: str, *, final: bool = False) -> dict[str, Any]:
        """OpenAI's `delta` for more text of a choice; empty if there is nothing to tell yet."""
        calls = self._of(index)
        pieces = calls.parser.feed(text)
        if final:
            pieces += calls.parser.finish()
        content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
        entries: dict[int, dict[str, Any]] = {}
        for piece in pieces:
            self._add(entries, calls, piece)
        delta: dict[str, Any] = {"content": content} if content else {}
        return {**delta, "tool_calls": list(entries.values())} if entries else delta

    def message(self, index: int, text: str) -> dict[str, Any]:
        """OpenAI's `content` and `tool_calls` of a whole choice."""
        delta = self.delta(index, text, final=True)
        found = delta.get("tool_calls", [])
        if not found:
            return {"content": delta.get("content", "")}
        calls = [{name: value for name, value in call.items() if name != "index"} for call in found]
        return {"content": delta.get("content"), "tool_calls": calls}

    def _of(self, index: int) -> _Calls:
        if index not in self._choices:
            names = frozenset(tool.name for tool in self._use.tools)
            parser = CallParser(self._use.form, names, parallel=self._use.parallel)
            self._choices[index] = _Calls(parser)
        return self._choices[index]

    def _add(self, entries: dict[int, dict[str, Any]], calls: _Calls, piece: Piece) -> None:
        """A call has one entry in each delta: clients add up the entries by their index."""
        match piece:
            case CallBegun(number, name):
                calls.ids.append(self._new_id())
                entries[number] = {
                    "index": number,
                    "id": calls.ids[number],
                    "type": "function",
                    "function": {"name": name, "arguments": ""},
                }
            case Arguments(number, text):
                entry = entries.setdefault(number, {"index": number, "function": {"arguments": ""}})
                entry["function"]["arguments"] += text
            case Content():
                pass

    def _new_id(self) -> str:
        length = self._use.form.id_characters
        prefix = "call_" if length > len("call_") + 8 else ""
        return prefix + "".join(secrets.choice(_ALPHANUMERIC) for _ in range(length))


def description_length(use: ToolUse | None) -> int:
    """Characters that the tools add to a prompt, nearly."""
    return 0 if use is None else len(json.dumps(use.definitions))
