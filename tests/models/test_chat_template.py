from __future__ import annotations

import json
import re
import time
import tracemalloc
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Template, nodes
from jinja2 import TemplateError as JinjaError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgespec.errors import TemplateError
from edgespec.models import plain_templates
from edgespec.models.jinja.program import Program
from edgespec.models.open_model import open_model
from edgespec.models.template import MAX_SOURCE_CHARACTERS, ChatTemplate
from tests.support.gguf_models import CHATML

TURNS = [
    {"role": "system", "content": "Be brief. <b>&amp;</b> ü"},
    {"role": "user", "content": "Hi, what's 2 < 3?"},
    {"role": "assistant", "content": "True."},
    {"role": "user", "content": "  Why?  "},
]
TOOLS = [{"type": "function", "function": {"name": "größe", "parameters": {"a": [1, None, True]}}}]

LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}\
{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}\
{% set system_message = false %}{% endif %}{% for message in loop_messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}\
{% endif %}{% if loop.index0 == 0 and system_message != false %}\
{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}\
{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}\
{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}\
{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}\
{% endfor %}"""
LLAMA3 = """{% set loop_messages = messages %}{% for message in loop_messages %}\
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'\
+ message['content'] | trim + '<|eot_id|>' %}\
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}\
{% endfor %}{% if add_generation_prompt %}\
{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not\
(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
MISC = """{%- macro show(x, y='-') -%}[{{ x }}{{ y }}]{%- endmacro -%}
{% for m in messages if m.role != 'system' %}
    {% if loop.index > 2 %}{% break %}{% endif %}
  {{ show(m.content | upper, y=loop.index) ~ "|" ~ loop.length }}
{% endfor %}
{{ messages | map(attribute='role') | unique | join(', ') }}
{{ tools | tojson(indent=2) }}
{{ "%s-%d" | default('x') }} {{ "%s and %s" % ("a", 3) }} {{ 'x' * 3 }} {{ [1, 2] + [3] }}
{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}={{ v }};{% endfor %}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ range(3) | list }}
{{ 'a\\nb' | indent(2) }} {{ 'abc'.replace('b', 'X') | replace('c', 'Y') }}
{{ ','.join(['p', 'q']) }}
{{ "{}:{}".format(1, 'z') }} {{ 7 // 2 }} {{ 2 ** 8 }} {{ nothing is defined }} {{ nothing }}"""

REAL = {"chatml": CHATML, "llama2": LLAMA2, "llama3": LLAMA3, "qwen": QWEN, "misc": MISC}


class Generation(Extension):
    """`{% generation %}` as Hugging Face's environment has it: a call of its own, hence a scope."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(lineno)

    def _written(self, caller: Any) -> str:
        return str(caller())


def plain(source: str, **values: Any) -> str:
    """What Hugging Face's environment renders, without our limits."""
    rendered: str = _compiled(source).render(bos_token="<s>", eos_token="</s>", **values)
    return rendered


@lru_cache(maxsize=4)
def _compiled(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    def fail(message: str) -> None:
        raise JinjaError(message)

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = fail
    environment.globals["strftime_now"] = lambda text: datetime.now().strftime(text)
    return environment.from_string(source)


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("case", REAL)
def test_limits_change_no_text(case: str, tools: Any, add_generation_prompt: bool) -> None:
    source = REAL[case]
    values = {"tools": tools, "add_generation_prompt": add_generation_prompt}
    template = ChatTemplate(source, "<s>", "</s>")
    expected = plain(source, messages=TURNS, **values)
    assert template.render(TURNS, **values) == expected
    assert template.render(TURNS, **values) == expected
    assert len(expected) > 40


def test_extra_values_reach_the_template() -> None:
    ends = ChatTemplate(QWEN).render(TURNS, enable_thinking=False)
    assert ends.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_helpers() -> None:
    template = ChatTemplate("{{ strftime_now('%Y-%m') }} {% generation %}x{% endgeneration %}")
    assert re.fullmatch(r"\d{4}-\d\d x", template.render([]))


def test_a_long_conversation_is_within_the_limits() -> None:
    turns = [{"role": "user", "content": "word " * 100}, {"role": "assistant", "content": "x"}]
    text = ChatTemplate(QWEN).render(turns * 500)
    assert text.count("<|im_start|>") == 1001


def test_a_template_may_refuse() -> None:
    template = ChatTemplate(LLAMA2)
    with pytest.raises(TemplateError, match="roles must alternate .* use --raw"):
        template.render([{"role": "assistant", "content": "first"}])


ESCAPES = {
    "class": "{{ ''.__class__.__mro__ }}",
    "subclasses": "{{ ().__class__.__base__.__subclasses__() }}",
    "attr filter": "{{ '' | attr('__class__') }}",
    "item": "{{ ''['__class__']['__mro__'] }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "builtins": "{{ namespace.__init__.__globals__['os'].popen('id').read() }}",
    "dict class": "{{ dict.__base__.__subclasses__() }}",
    "format": "{{ '{0.__class__.__mro__}'.format(1) }}",
    "format map": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "map attribute": "{{ ['a'] | map(attribute='__class__') | map(attribute='__mro__') | list }}",
    "generator frame": "{{ (messages | map('upper')).gi_frame.f_globals }}",
    "self": "{{ self.__init__.__globals__ }}",
    "environment": "{{ self._TemplateReference__context.environment }}",
    "append": "{{ messages.append(1) }}",
    "update": "{{ {}.update({1: 2}) }}",
    "lipsum": "{{ lipsum.__globals__ }}",
    "cycler": "{{ cycler.__init__.__globals__ }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}{{ os }}",
    "open": "{{ open('/etc/passwd').read() }}",
    "bare exec": "{{ exec('1') }}",
}


@pytest.mark.parametrize("case", ESCAPES)
def test_escapes_are_template_errors(case: str) -> None:
    with pytest.raises(TemplateError, match=r"cannot (compile|render) the chat template") as caught:
        ChatTemplate(ESCAPES[case]).render(TURNS)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


HOSTILE = {
    "nested loops": "{% for a in range(4000) %}{% for b in range(4000) %}{% endfor %}{% endfor %}",
    "silent loops": "{% set n = namespace(x=0) %}"
    + "{% for a in range(4096) %}" * 3
    + "{% set n.x = n.x + 1 %}"
    + "{% endfor %}" * 3,
    "wide range": "{% for a in range(10**9) %}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "branching recursion": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}"
    "{% endmacro %}{{ f(60) }}",
    "doubling with ~": "{% set n = namespace(x='aa') %}{% for a in range(60) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "doubling with +": "{% set n = namespace(x='aa') %}{% for a in range(60) %}"
    "{% set n.x = n.x + n.x %}{% endfor %}{{ n.x }}",
    "doubling with join": "{% set n = namespace(x='aa') %}{% for a in range(60) %}"
    "{% set n.x = [n.x, n.x] | join %}{% endfor %}{{ n.x }}",
    "doubling with replace": "{% set n = namespace(x='aa') %}{% for a in range(60) %}"
    "{% set n.x = n.x | replace('a', 'aaaa') %}{% endfor %}{{ n.x }}",
    "str.replace": "{{ ('a' * 4000).replace('a', 'b' * 4000).replace('b', 'c' * 4000) }}",
    "str.join": "{{ ('a' * 4000).join(['x'] * 4000).join(['y'] * 4000) }}",
    "repeat": "{{ 'a' * 10**12 }}",
    "repeat twice": "{{ ('a' * 4096) * 4096 * 4096 }}",
    "repeat lists": "{{ ([[0] * 4096] * 4096 * 4096) | length }}",
    "laughs": "{% set a = ['ha'] * 4000 %}{% set b = [a] * 4000 %}{{ [b] * 4000 }}",
    "laughs in json": "{% set a = ['ha'] * 4000 %}{% set b = [a] * 4000 %}{{ b | tojson }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "center": "{{ 'a'.center(10**10) }}",
    "zfill": "{{ 'a'.zfill(10**10) }}",
    "center filter": "{{ 'a' | center(10**10) }}",
    "format width": "{{ '{:>10000000000}'.format(1) }}",
    "percent width": "{{ '%10000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (10**10, 1) }}",
    "json indent": "{{ [1] | tojson(indent=10**10) }}",
    "indent": "{{ 'a\\nb' | indent(10**10) }}",
    "output": "{% for a in range(4096) %}{{ 'a' * 4096 * 4 }}{% endfor %}",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_templates_stop_soon(case: str) -> None:
    begin = time.monotonic()
    with pytest.raises(TemplateError):
        ChatTemplate(HOSTILE[case]).render(TURNS)
    assert time.monotonic() - begin < 10


def _loop(body: str, after: str, times: int = 60) -> str:
    return f"{{% set n = namespace(a='x', b='x') %}}{{% for i in range({times}) %}}{body}" + (
        "{% endfor %}" + after
    )


SHARED = "{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}"
"""Values that share themselves: a walk over one takes 2^60 steps."""
HUNGRY = {
    "percent names": "{% set f = '%(a)s' * 3000 %}{% set s = 'y' * 1000000 %}"
    "{{ (f % {'a': s}) | length }}",
    "percent places": "{{ '%s%s' % ('y' * 4000000, 'y' * 4000000) }}",
    "format": "{% set s = 'y' * 1000000 %}{{ ('{0}' * 3000).format(s) | length }}",
    "shared, string": _loop(SHARED, "{{ n.a | string }}"),
    "shared, ~": _loop(SHARED, "{{ n.a ~ '' }}"),
    "shared, output": _loop(SHARED, "{{ n.a }}"),
    "shared, ==": _loop(SHARED, "{{ n.a == n.b }}"),
    "shared, <": _loop(SHARED, "{{ n.a < n.b }}"),
    "shared, in": _loop(SHARED, "{{ n.a in [n.b] }}"),
    "shared, sort": _loop(SHARED, "{{ [n.a, n.b] | sort }}"),
    "shared, max": _loop(SHARED, "{{ [n.a, n.b] | max }}"),
    "shared, upper": _loop(SHARED, "{{ n.a | upper }}"),
    "shared, wordcount": _loop(SHARED, "{{ n.a | wordcount }}"),
    "shared, join": _loop(SHARED, "{{ [n.a] | join }}"),
    "shared, json": _loop(SHARED, "{{ n.a | tojson }}"),
    "shared, replace": _loop(SHARED, "{{ n.a | replace('x', 'y') }}"),
    "shared, groups": _loop(SHARED, "{{ [{'k': n.a}, {'k': n.b}] | groupby('k') }}"),
    "shared, unique": _loop(SHARED.replace("[", "(").replace("]", ")"), "{{ [n.a] | unique }}"),
    "shared, key": _loop(SHARED.replace("[", "(").replace("]", ")"), "{{ {n.a: 1} }}"),
    "shared, dictionaries": _loop("{% set n.a = {'p': n.a, 'q': n.a} %}", "{{ n.a }}"),
    "a namespace in itself": "{% set n = namespace() %}{% set n.n = n %}{{ n }}",
    "digits of base 16": "{% set n = ('1' * 4000000) | int(0, 16) %}{{ n % 7 }}{{ n // 3 }}",
    "float of digits": "{{ ('1' * 4000000) | float }}" * 50,
    "many large texts": "{% set n = namespace(l=[]) %}{% for i in range(300) %}"
    "{% set n.l = n.l + ['y' * 8000000 ~ i] %}{% endfor %}{{ n.l | length }}",
    "large lists": "{% set n = namespace(l=[]) %}{% for i in range(300) %}"
    "{% set n.l = n.l + [[0] * 60000] %}{% endfor %}",
    "join by attribute": "{% set m = [{'a': 'y' * 1000000}] * 3000 %}"
    "{{ m | join(attribute='a') | length }}",
    "split": "{{ ('ab' * 4000000).split('b') | length }}",
    "lines": "{{ ('a\n' * 4000000).splitlines() | length }}",
    "characters": "{{ ('yz' * 1000000) | list | length }}",
    "text in a wide range": "{{ 'a' in range(10**9) }}",
    "recursive loop": "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "caller of itself": "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call f() %}" * 40
    + "x"
    + "{% endcall %}" * 40,
}
LONG = {f"shared, {what}" for what in ("==", "<", "in", "sort", "max", "groups")}
"""They make nothing, step by step, which takes long where memory is watched."""
MOST_TAKEN = 96 << 20


@pytest.mark.parametrize("case", HUNGRY)
def test_no_template_takes_much_memory_or_time(case: str) -> None:
    begin = time.monotonic()
    if case not in LONG:
        tracemalloc.start()
    try:
        with pytest.raises(TemplateError):
            ChatTemplate(HUNGRY[case]).render(TURNS)
        assert case in LONG or tracemalloc.get_traced_memory()[1] < MOST_TAKEN
    finally:
        tracemalloc.stop()
    assert time.monotonic() - begin < 20


def test_rounding_far_is_harmless() -> None:
    assert ChatTemplate("{{ 7 | round(-99999999) }}").render([]) == "0"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'it' | safe + '<b>' }}",
        "{{ messages | map(attribute='role') | list }}{{ none | selectattr('x') | list }}",
        "{% for a in range(3) recursive %}{{ loop.depth }}{{ loop.cycle('p', 'q') }}{% endfor %}",
        "{% for m in messages %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}"
        "{{ loop.changed(m.role) }}{{ loop.revindex }}{% else %}none{% endfor %}",
        "{% set x %}a{{ 1 }}b{% endset %}{{ x }}{% filter upper | trim %} ab {% endfilter %}",
        "{% macro f(x, y=2) %}{{ x }}{{ y }}{{ varargs }}{{ kwargs }}{% endmacro %}"
        "{{ f(1) }}{{ f(1, 3, 4, z=5) }}",
        "{% macro f() %}[{{ caller('k') }}]{% endmacro %}{% call(v) f() %}{{ v }}{% endcall %}",
        "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}",
        "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}",
        "{{ [3, 1, 2] | sort(reverse=true) }}{{ ['b', 'A'] | sort }}{{ [1, 2] | max }}",
        "{{ {'a': [1, {'b': none}]} }}{{ (1,) }}{{ [true, 1.5, 'x\n'] }}",
        "{{ '%05.1f|%-4s|%x' % (3.14159, 'ab', 255) }}{{ '{:>4}|{a}'.format('x', a=1) }}",
        "{{ 'abcdef'[1:4] }}{{ [1, 2, 3][::-1] }}{{ 'a,b'.split(',', 1) }}{{ (1, 2) < (1, 3) }}",
        "{{ 7 // 2 }}{{ -7 % 3 }}{{ 2 ** 0.5 }}{{ 1 / 4 }}{{ '3' | int + 1 }}{{ 'x' | int(9) }}",
        "{{ 2.567 | round(1) }}{{ 5 | round }}{{ 2.1 | round(0, 'ceil') }}{{ -3 | abs }}",
        "{{ 'a b' | title }}{{ 'x' | indent(2, true) }}{{ 'hello world' | wordcount }}",
        "{{ [{'k': 1, 'v': 2}, {'k': 1, 'v': 3}] | groupby('k') | length }}",
        "{{ messages[0]['role'] }}{{ messages[-1].nothing is defined }}{{ 'a' if false }}",
        "{{ {'items': 5}['items'] }}{{ {'a': 1}.items() | list }}{{ {'a': 1} | items | list }}",
        "{{ 1 < 2 < 3 }}{{ 1 in [1] }}{{ 'b' not in 'abc' }}{{ [1] + [2] == [1, 2] }}",
    ],
)
def test_the_interpreter_writes_what_jinja_does(source: str) -> None:
    assert ChatTemplate(source).render(TURNS) == plain(source, messages=TURNS)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for %}", "cannot compile .* TemplateSyntaxError"),
        ("{{ 1 / 0 }}", "cannot (compile|render) .* division"),
        ("{{ messages[0].content.nothing.more }}", "cannot render .* UndefinedError"),
        ("(" * 10, None),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "cannot compile"),
        ("x" * (MAX_SOURCE_CHARACTERS + 1), "characters and at most"),
    ],
    ids=["syntax", "division", "undefined", "plain text", "deep", "long"],
)
def test_broken_templates(source: str, message: str | None) -> None:
    if message is None:
        assert ChatTemplate(source).render([]) == source
        return
    with pytest.raises(TemplateError, match=message):
        ChatTemplate(source).render([{"role": "user", "content": "x"}])


@pytest.mark.parametrize("source", plain_templates._WRITERS)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "user", "content": "Hello"}],
        [{"role": "system", "content": " a\n\n"}, {"role": "x", "content": "{{ 1 }}", "more": 1}],
        [{"role": "user", "content": ""}, {"role": "assistant", "content": "é🦊"}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
    ],
)
def test_known_templates_write_what_they_say(
    source: str, messages: list[dict[str, Any]], add_generation_prompt: bool
) -> None:
    """With Jinja and without, also where Jinja has to be asked after all."""
    ours = ChatTemplate(source).render(messages, add_generation_prompt=add_generation_prompt)
    values = {"messages": messages, "add_generation_prompt": add_generation_prompt}
    assert ours == Program(source).run(values)


def test_the_bundled_model_needs_no_jinja(bundled_model: Path) -> None:
    with open_model(bundled_model) as file:
        assert plain_templates.is_plain(str(file.metadata["tokenizer.chat_template"]))
