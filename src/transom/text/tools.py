"""Tool calls: the formats of model families, grammars that force a call, and the tools in a prompt.

The markers in a model's chat template tell its format. `text/tool_calls.py` reads calls from an output.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transom.errors import BadRequest
from transom.text.grammar import WHITESPACE, require_valid, schema_grammar

CALLS_MAX = 16
"""Calls of one output that a grammar allows. A model that does not stop would call until `max_tokens`."""

ControlId = Callable[[str], int | None]
"""The id of a control token by its literal; None if the vocabulary has no such control token."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `where` names its schema in error messages."""

    name: str
    parameters: Mapping[str, Any]
    where: str


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family writes calls.

    marker        precedes the calls; empty: an output that begins with an object is a call
    after_marker  texts that may stand between the marker and a call
    call          one call, with NAME and ARGUMENTS in their places
    closing       follows each call
    between       separates calls
    begin, end    around all calls
    openers       for a format without a marker, texts that may precede the first call
    is_described  the template knows no tools: `described` puts them into the messages
    """

    name: str
    marker: str = ""
    call: str = '{"name": NAME, "arguments": ARGUMENTS}'
    begin: str = ""
    closing: str = ""
    between: str = "\n"
    end: str = ""
    openers: tuple[str, ...] = ()
    id_characters: int = 24
    is_described: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """Literals that must be visible in the text, even if they are control tokens."""
        return tuple(one for one in (self.marker, ARGS if ARGS in self.call else "", *self.openers) if one)


ARGS = "[ARGS]"
HERMES = ToolFormat(
    "hermes",
    marker="<tool_call>",
    call='\n{"name": NAME, "arguments": ARGUMENTS}\n',
    closing="</tool_call>",
)
"""Also Qwen 2.5 and 3, which took it over."""
MISTRAL = ToolFormat("mistral", marker="[TOOL_CALLS]", begin="[", between=", ", end="]", id_characters=9)
"""Mistral's templates refuse ids of another length."""
MISTRAL_ARGS = ToolFormat(
    "mistral_args", marker="[TOOL_CALLS]", call="NAME[ARGS]ARGUMENTS", between="", id_characters=9
)
"""From the eleventh version of Mistral's tokenizer on: a marker for each call."""
LLAMA3 = ToolFormat(
    "llama3",
    call='{"name": NAME, "parameters": ARGUMENTS}',
    between="; ",
    openers=("<|python_tag|>",),
)
GEMMA = ToolFormat(
    "gemma",
    call='{"name": NAME, "parameters": ARGUMENTS}',
    openers=("```json", "```tool_code", "```"),
    is_described=True,
)
"""The format that Google's guide for Gemma proposes; also that of every template without tools."""


def format_of(template: str, *, has_tools: bool) -> ToolFormat:
    """The format of a chat template. `has_tools`: whether it uses the variable `tools`."""
    if not has_tools:
        return GEMMA
    if "[TOOL_CALLS]" in template:
        return MISTRAL_ARGS if ARGS in template else MISTRAL
    return HERMES if "<tool_call>" in template else LLAMA3


# ---------------------------------------------------------------- grammars


def call_grammar(form: ToolFormat, tools: Sequence[Tool], control_id: ControlId, *, parallel: bool) -> str:
    """The grammar of one call, or with `parallel` of up to CALLS_MAX. BadRequest names a schema at fault."""
    rules = [f"tool_{number}: {_call(form, tool, number, control_id)}" for number, tool in enumerate(tools)]
    schemas = [f"arguments_{number}: %json {_arguments(tool)}" for number, tool in enumerate(tools)]
    one = " | ".join(f"tool_{number}" for number in range(len(tools)))
    before, after = _literal(form.marker, control_id), _literal(form.closing, control_id)
    if form.begin:
        # The marker stands once, before a list.
        first, each = f"{before} {_literal(form.begin, control_id)}", "call"
    else:
        first, each = "", f"{before} call {after}"
    more = f"({_literal(form.between, control_id)} {each}){{0,{CALLS_MAX - 1}}}" if parallel else ""
    start = f"start: {first} {each} {more} {_literal(form.end, control_id)}"
    text = "\n".join([start, f"call: {one}", *rules, *schemas])
    return require_valid(text, "tools")


def alternatives(calls: str, schema: str) -> str | None:
    """The grammar of outputs that are calls, or JSON of the schema grammar; None if it is no such grammar."""
    if not schema.startswith("{"):
        return None
    (inner,) = json.loads(schema)["grammars"]
    if (answer := inner.get("json_schema")) is None:
        return None
    start, _, rest = calls.partition("\n")
    made_of = start.removeprefix("start:")
    return "\n".join(
        ["start: calls | answer", f"calls:{made_of}", f"answer: %json {json.dumps(answer)}", rest]
    )


def _arguments(tool: Tool) -> str:
    """The schema of the arguments, as Lark's directive takes it. Tools take objects only."""
    schema = {"type": "object", **tool.parameters}
    schema_grammar(schema, tool.where)
    return json.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}})


def _call(form: ToolFormat, tool: Tool, number: int, control_id: ControlId) -> str:
    before, _, rest = form.call.partition("NAME")
    middle, _, after = rest.partition("ARGUMENTS")
    if middle == ARGS:
        return f"{json.dumps(tool.name)} {_literal(ARGS, control_id)} arguments_{number}"
    head = json.dumps(f"{before}{json.dumps(tool.name)}{middle}")
    return f"{head} arguments_{number} {_literal(after, control_id)}"


def _literal(text: str, control_id: ControlId) -> str:
    """A text in Lark. A control token must be named by its id: its literal would be spelled in letters."""
    if not text:
        return ""
    token = control_id(text)
    return json.dumps(text) if token is None else f"<[{token}]>"


# ---------------------------------------------------------------- tools in a prompt

_PREFACE = """\
You can call functions. To call one, answer with nothing but a JSON object of its name and its parameters:
{"name": "function_name", "parameters": {"parameter_name": "value"}}
To call several, write one object per line. The functions, with their parameters as JSON Schemas, are:
"""

Message = Mapping[str, Any]


def described(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages for a template without tools: a system message lists the tools, and calls are texts.

    Results of tools become a turn of the user, joined with the turn that follows, because many templates
    insist on alternating turns.
    """
    turns: list[dict[str, Any]] = []
    names = {
        call.get("id"): call["function"]["name"]
        for message in messages
        for call in message.get("tool_calls") or ()
    }
    for message in messages:
        turn = _plain(message, names)
        follows_result = turns and turns[-1]["role"] == turn["role"] == "user"
        if follows_result and (message["role"] == "tool" or turns[-1].get("is_result")):
            turns[-1] = {**turns[-1], "content": f"{turns[-1]['content']}\n\n{turn['content']}"}
        else:
            turns.append(turn)
    if tools:
        functions = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
        preface = _PREFACE + "\n".join(functions)
        if turns and turns[0]["role"] in ("system", "developer"):
            turns[0] = {**turns[0], "content": f"{turns[0]['content']}\n\n{preface}"}
        else:
            turns.insert(0, {"role": "system", "content": preface})
    return [{name: value for name, value in turn.items() if name != "is_result"} for turn in turns]


def _plain(message: Message, names: Mapping[str | None, str]) -> dict[str, Any]:
    """A message without tool calls: they, and results, are part of the content."""
    content = _text(message.get("content"))
    if message["role"] == "tool":
        name = message.get("name") or names.get(message.get("tool_call_id")) or "the function"
        return {"role": "user", "content": f"Result of {name}:\n{content}", "is_result": True}
    if calls := message.get("tool_calls"):
        written = [_written(call["function"]) for call in calls]
        content = "\n".join([*([content] if content else []), *written])
    kept = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**kept, "content": content}


def _text(content: Any) -> str:
    if isinstance(content, list | tuple):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""


def _written(function: Mapping[str, Any]) -> str:
    return json.dumps({"name": function["name"], "parameters": function["arguments"]}, ensure_ascii=False)


def arguments_object(arguments: object, where: str) -> dict[str, Any]:
    """The arguments of a call in a message as an object, which templates expect. BadRequest."""
    found = arguments
    if isinstance(arguments, str):
        try:
            found = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"{where} is not valid JSON: {error}", param=where) from None
    if not isinstance(found, dict):
        raise BadRequest(f"{where} must be the JSON of an object", param=where)
    return found
