# ruff: noqa: E501
"""Templates render as in transformers' environment, and no template computes without bound."""

import json
import tracemalloc
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.sandbox
import pytest
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from tests.models.test_load_errors import rewritten
from tests.tiny import write_tiny_gguf

from transom.errors import BadRequest, ConfigError
from transom.text import sandbox
from transom.text.sandbox import TEMPLATE_ERRORS, BoundedTemplate, Budget, TooMuchWorkError
from transom.weights.tokenizer import load_text

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": " You are <terse> & kind.\n"},
    {"role": "user", "content": "What is 2 + 2?"},
    {
        "role": "assistant",
        "content": "<think>\neasy\n</think>\n\nLet me see.",
        "tool_calls": [
            {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": [2, None]}}}
        ],
    },
    {"role": "tool", "content": '{"sum": 4}'},
    {"role": "user", "content": "Ünïcödé \u2028 'quoted' \"twice\""},
]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"b": {}}}}]

# Written in the manner of the templates that published models have.
STYLES = {
    "chatml": """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] +
        '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
    "llama 3": """{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" + system_message }}
{%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("only single tool-calls") }}{%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}
    {%- elif message.content is mapping or message.content is iterable %}{{- message.content | tojson }}
    {%- endif %}
{%- endfor %}""",
    "qwen 3": """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and
        not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' ~ message.role ~ '\\n' ~ reasoning ~ '|' ~ content }}
        {%- for tool_call in message.tool_calls %}
            {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
            {{- '{"name": "' }}{{- tool_call.function.name }}{{- '", ' }}
            {{- tool_call.function.arguments | tojson(ensure_ascii=True) }}
        {%- endfor %}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- 'user' }}{%- endif %}
        {{- content }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- 'end' }}{%- endif %}
    {%- else %}{{- loop.index ~ '/' ~ loop.length ~ ':' ~ ns.last_query_index ~ content }}
    {%- endif %}
{%- endfor %}""",
    "macros and recursion": """{%- macro show(value, depth=0) -%}
    {%- if value is mapping -%}
        {%- for key, one in value|dictsort %}{{ '  ' * depth }}{{ key }}:{{ show(one, depth + 1) }}{% endfor -%}
    {%- elif value is sequence and value is not string -%}
        [{% for one in value %}{{ show(one, depth + 1) }}{{ ", " if not loop.last }}{% endfor %}]
    {%- else -%}{{ value|string|replace("'", '`') }}{%- endif -%}
{%- endmacro -%}
{{ show(tools) }}{{ show(messages) }}
{%- for one in [[1, [2, 3]], [4]] recursive %}<{{ loop.depth }}{{ loop(one) if one is iterable else one }}>{% endfor %}""",
    "generation and loop controls": """{% for m in messages %}
    {% if m.role == 'system' %}{% continue %}{% endif %}
    {% if m.role == 'tool' %}{% break %}{% endif %}
    {% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}
    {% else %}{{ m.content }}{% endif %}
{% endfor %}""",
    "filters and tests": """{{ messages | map(attribute='role') | unique | join(', ') }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | rejectattr('tool_calls') | first }}
{%- for role, group in messages | groupby('role') %}{{ role }}{{ group | length }}{% endfor %}
{{ "%s of %05d" | format('one', 7) }}{{ "%s|%s" % ('a', 2) }}{{ '{:>5}'.format(3) }}{{ [3, 1, 2] | sort | last }}
{{ messages[0].content | upper | indent(4) }}{{ 'abc'[1:] }}{{ none is none }}{{ 7 // 2 }}{{ 2 ** 10 }}{{ missing }}
{{ tools is defined and tools is not none and 'add' in (tools | tojson) }}{{ 'x' * 3 }}{{ range(4) | list }}
{% set long %}{% for m in messages %}{{ m.role }}{% endfor %}{% endset %}{{ long | trim | title | center(60) }}
{% filter upper %}{{ messages[1].content }}{% endfilter %}{{ dict(a=1) | items | list }}{{ [1, 2] + [3] }}""",
    "for with a condition and else": """{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ loop.last }}
{{- loop.previtem.role if loop.previtem is defined }}{{ loop.cycle('a', 'b') }}{{ loop.changed(m.role) }}{% else %}none{% endfor %}
{%- for x in [] %}{{ x }}{% else %}empty{% endfor %}
{%- macro twice(a) %}{{ caller(a) }}{{ caller(a) }}{% endmacro %}{% call(x) twice('q') %}<{{ x }}>{% endcall %}""",
}


class Marks(Extension):
    """As the extension of transformers: the block's text, unchanged."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller: Any) -> Any:
        return caller()


def as_transformers(source: str, variables: dict[str, Any]) -> str:
    """The environment of transformers' `chat_template_utils`, written again."""

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Marks, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    return environment.from_string(source).render(**variables)


def variables(**more: Any) -> dict[str, Any]:
    given = {"messages": MESSAGES, "tools": TOOLS, "add_generation_prompt": True}
    return {**given, "bos_token": "<s>", "eos_token": "</s>", **more}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("tools", [TOOLS, None])
def test_a_template_renders_as_with_transformers(style: str, tools: Any) -> None:
    given = variables(tools=tools)
    try:
        expected = as_transformers(STYLES[style], given)
    except TEMPLATE_ERRORS as error:
        with pytest.raises(type(error)):
            BoundedTemplate(STYLES[style]).render(given, 0)
    else:
        assert BoundedTemplate(STYLES[style]).render(given, 0) == expected


@pytest.mark.parametrize("style", STYLES)
def test_a_long_conversation_fits_in_the_budget(style: str) -> None:
    long = [{**message, "content": str(message["content"]) * 20} for message in MESSAGES] * 200
    given = variables(messages=long)
    text = BoundedTemplate(STYLES[style]).render(given, len(json.dumps(given)))
    assert text == as_transformers(STYLES[style], given)


LARGE = "{% set ns = namespace(x='abcdefgh') %}"
ENDLESS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}"
    "{% endfor %}{% endfor %}",
    "loops in a condition": "{% for a in range(99999) if range(99999)|list|sum %}{% endfor %}",
    "text in loops": "{% for a in range(99999) %}" + "x" * 9000 + "{% endfor %}",
    "text in a macro": "{% macro m() %}{% for a in range(99999) %}"
    + "x" * 9000
    + "{% endfor %}{% endmacro %}{{ m() }}",
    "a set block": "{% set t %}{% for a in range(99999) %}" + "x" * 9000 + "{% endfor %}{% endset %}",
    "macros that call macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "endless recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a recursive loop": "{% for a in [0] recursive %}{{ loop([a]) }}{% endfor %}",
    "a product": "{{ 'x' * 999999999 }}",
    "a product, reversed": "{{ 999999999 * [1] }}",
    "products in turn": "{{ ('x' * 9999 * 999) * 999 }}",
    "a power": "{{ 9 ** (9 ** 9) }}",
    "a product of numbers": LARGE
    + "{% set ns.x = 9 %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "doubling": LARGE + "{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "doubling by ~": LARGE + "{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubling by format": LARGE
    + "{% for i in range(60) %}{% set ns.x = '%s%s' % (ns.x, ns.x) %}{% endfor %}",
    "doubling by str.format": LARGE
    + "{% for i in range(60) %}{% set ns.x = '{0}{0}'.format(ns.x) %}{% endfor %}",
    "doubling by join": LARGE + "{% for i in range(60) %}{% set ns.x = [ns.x, ns.x]|join %}{% endfor %}",
    "doubling by replace": LARGE
    + "{% for i in range(60) %}{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
    "lists of lists in print": LARGE
    + "{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "lists of lists in JSON": LARGE
    + "{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{% set y = ns.x|tojson %}",
    "lists of lists compared": "{% set ns = namespace(x='a', y='a') %}{% for i in range(60) %}"
    "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
    "lists of lists as text": LARGE
    + "{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{% set y = ns.x|string|length %}",
    "a search in a loop": "{% set s = 'x' * 9999999 %}{% for i in range(99999) %}{% if 'y' in s %}{% endif %}{% endfor %}",
    "a search by select": "{% set s = 'x' * 9999999 %}{{ range(99999)|map('string')|select('in', s)|list|length }}",
    "slices": "{% set s = 'x' * 9999999 %}{% for i in range(99999) %}{% set t = s[1:] %}{% endfor %}",
    "methods": "{% set s = 'x' * 9999999 %}{% for i in range(99999) %}{% set t = s.upper() %}{% endfor %}",
    "sorting": "{% set s = ['x' * 999999] * 9999 %}{{ s|sort|length }}",
    "a width": "{{ 'x'.center(999999999) }}",
    "a width of a filter": "{{ 'x'|center(999999999) }}",
    "tabs": "{{ ('\t' * 99999).expandtabs(99999) }}",
    "an indentation": "{{ {'a': 1}|tojson(indent=999999999) }}",
    "an indented text": "{{ ('x\n' * 99999)|indent(99999) }}",
    "a format": "{{ '%999999999d' % 1 }}",
    "a format with a width as argument": "{{ '%*d' % (999999999, 1) }}",
    "a format filter": "{{ '%999999999d'|format(1) }}",
    "str.format": "{{ '{:999999999}'.format(1) }}",
    "str.format with an argument": "{{ '{:{}}'.format(1, 999999999) }}",
    "replace": "{{ ('x' * 99999)|replace('x', 'y' * 99999) }}",
    "join": "{{ (['a'] * 99999)|join('y' * 99999) }}",
    "str.join": "{{ ('y' * 99999).join(['a'] * 99999) }}",
    "batches": "{{ [1]|batch(999999999, 0)|list }}",
    "slices by filter": "{{ [1]|slice(999999999)|list }}",
    "a range": "{{ range(999999999)|list }}",
    "a date": "{{ strftime_now('%999999999d') }}",
    "random text": "{{ lipsum(n=999999999) }}",
}


@pytest.mark.parametrize("case", ENDLESS)
def test_a_template_that_would_compute_for_ever_is_stopped_with_little_memory(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "STEPS_MAX", 50_000)  # traced memory makes everything slow
    template = BoundedTemplate(ENDLESS[case])
    tracemalloc.start()
    try:
        with pytest.raises(TEMPLATE_ERRORS):
            template.render(variables(), 0)
        assert tracemalloc.get_traced_memory()[1] < 128 << 20
    finally:
        tracemalloc.stop()


FOLDED = [
    "{{ 'x' * 999999999 }}",
    "{% set a = 'x' * 999999999 %}",
    "{% if 'x' * 999999999 %}{% endif %}",
    "{{ 'x'|center(999999999) }}",
    "{{ 9 ** 9 ** 9 }}",
    "{{ range(99999)|list|map('string')|join('y' * 9999) }}",
]


@pytest.mark.parametrize("source", FOLDED)
def test_a_template_computes_nothing_while_it_is_compiled(source: str) -> None:
    tracemalloc.start()
    try:
        BoundedTemplate(source)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


BROKEN = [
    "{% for",
    "{{ x|nosuchfilter }}",
    "{{" + "(" * 5000,
    "{{ " + "9" * 9999 + " }}",
    "x" * ((1 << 20) + 1),
]
BROKEN += [
    "{% if x %}" * 3000,
    "{{ a" + ".b" * 20000 + " }}",
    "{% include 'x' %}{% endif %}",
    "{% generation %}",
]


@pytest.mark.parametrize("source", BROKEN, ids=range(len(BROKEN)))
def test_a_template_that_does_not_compile_is_told_in_one_line(source: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BoundedTemplate(source)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_a_longer_conversation_has_a_larger_budget() -> None:
    template = BoundedTemplate("{% for i in range(20000) %}{{ messages[0].content }}{% endfor %}")
    given = {"messages": [{"content": "x" * 999}]}
    with pytest.raises(TooMuchWorkError):
        template.render(given, 0)
    assert len(template.render(given, 2_000_000)) == 20_000 * 999
    with pytest.raises(TooMuchWorkError):
        Budget(3).charge(4)


def test_a_model_whose_template_does_not_compile_is_told_at_the_start_and_completes_texts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = rewritten(
        write_tiny_gguf(tmp_path / "tiny.gguf"),
        tmp_path / "odd.gguf",
        lambda values, _: values.update({"tokenizer.chat_template": "{% for"}),
    )
    text = load_text(str(path))
    assert "chat requests will be refused, completions are served: the chat template does not" in caplog.text
    assert len(text.encode("abc"))
    with pytest.raises(BadRequest, match="this model cannot chat: the chat template does not compile"):
        text.encode_chat([{"role": "user", "content": "a"}])
