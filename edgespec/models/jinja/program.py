"""A chat template as a program: parsed by Jinja, carried out here, statement by statement.

Jinja compiles templates to Python, whose single calls can take any time and memory: its sandbox
bounds what is reached, not what is used. This interpreter has no operation that is not paid for
before it is carried out, so a rendering ends within `meter`'s limits whatever the template is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.environment import Environment
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from edgespec.models.jinja import values as v
from edgespec.models.jinja.expressions import Expressions
from edgespec.models.jinja.meter import MAX_DEPTH, OBJECT, Meter
from edgespec.models.jinja.scope import Loop, Scope

MAX_TOKENS = 1 << 15
"""Of the source; the longest published template has some 4,000."""


class Program:
    """One parsed template."""

    def __init__(self, source: str) -> None:
        """Parse; raises whatever Jinja raises, and SecurityError for a source that is too long."""
        environment = Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        for count, _ in enumerate(environment.lexer.tokeniter(source, None)):
            if count > MAX_TOKENS:
                raise SecurityError(f"more than {MAX_TOKENS} tokens of source")
        self._body = environment.parse(source).body

    def run(self, values: Mapping[str, Any]) -> str:
        """Render; raises whatever the template raises, and SecurityError at a limit."""
        rendering = _Rendering(Meter(values))
        scope = Scope(rendering.globals()).inner(dict(values)).inner()
        return rendering.written(self._body, scope)


class _Generation(Extension):
    """`{% generation %}`, with which training code marks replies: a scope and nothing else."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(lineno)


class _Break(Exception):
    """`{% break %}`."""


class _Continue(Exception):
    """`{% continue %}`."""


class _Rendering(Expressions):
    """Carries statements out, each adding to a list of texts."""

    def __init__(self, meter: Meter) -> None:
        super().__init__(meter)
        self._depth = 0

    def written(self, body: Sequence[nodes.Node], scope: Scope) -> str:
        """What statements write, as one text."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SecurityError(f"macros or blocks nested more than {MAX_DEPTH} deep")
        out: list[str] = []
        self._run(body, scope, out)
        self._depth -= 1
        return v.joined(self.meter, out)

    def _run(self, body: Sequence[nodes.Node], scope: Scope, out: list[str]) -> None:
        for node in body:
            self.meter.spend()
            work = _STATEMENTS.get(type(node))
            if work is None:
                raise SecurityError(f"{type(node).__name__} is not available in chat templates")
            work(self, node, scope, out)

    def _output(self, node: nodes.Output, scope: Scope, out: list[str]) -> None:
        for one in node.nodes:
            if isinstance(one, nodes.TemplateData):
                part = one.data
            else:
                part = v.text(self.meter, self.value(one, scope))
            self.meter.make_list(1)
            out.append(part)

    def _if(self, node: nodes.If, scope: Scope, out: list[str]) -> None:
        for branch in (node, *node.elif_):
            if v.is_true(self.value(branch.test, scope)):
                self._run(branch.body, scope, out)
                return
        self._run(node.else_, scope, out)

    def _for(self, node: nodes.For, scope: Scope, out: list[str]) -> None:
        self._loop(node, scope, out, self.value(node.iter, scope), 0)

    def _loop(self, node: nodes.For, scope: Scope, out: list[str], values: Any, depth: int) -> None:
        items: Sequence[Any] = v.listed(self.meter, values)
        if node.test is not None:
            items = [one for one in items if self._passes(node, one, scope)]
        again = partial(self._again, node, scope, depth) if node.recursive else None
        loop = Loop(items, depth, again)
        for place, one in enumerate(items):
            self.meter.spend()
            loop.place = place
            inner = scope.inner({"loop": loop})
            self.assign(node.target, one, inner)
            try:
                self._run(node.body, inner, out)
            except _Continue:
                continue
            except _Break:
                break
        if not items:
            self._run(node.else_, scope.inner(), out)

    def _passes(self, node: nodes.For, one: Any, scope: Scope) -> bool:
        assert node.test is not None
        inner = scope.inner()
        self.assign(node.target, one, inner)
        return v.is_true(self.value(node.test, inner))

    def _again(self, node: nodes.For, scope: Scope, depth: int, values: Any) -> str:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SecurityError(f"loops nested more than {MAX_DEPTH} deep")
        out: list[str] = []
        self._loop(node, scope, out, values, depth + 1)
        self._depth -= 1
        return v.joined(self.meter, out)

    def assign(self, target: nodes.Node, value: Any, scope: Scope) -> None:
        """Give a value to a name, several, or an attribute of a namespace."""
        if isinstance(target, nodes.Name):
            scope.names[target.name] = value
        elif isinstance(target, nodes.NSRef):
            space = scope.find(target.name)
            if not isinstance(space, v.Namespace):
                raise TemplateError("only namespaces can be given attributes")
            self.meter.make(2 * len(target.attr) + OBJECT)
            space.attributes[target.attr] = value
        elif isinstance(target, nodes.Tuple):
            parts = v.listed(self.meter, value)
            if len(parts) != len(target.items):
                raise ValueError(f"{len(parts)} values for {len(target.items)} names")
            for one, part in zip(target.items, parts, strict=True):
                self.assign(one, part, scope)

    def _assign(self, node: nodes.Assign, scope: Scope, out: list[str]) -> None:
        self.assign(node.target, self.value(node.node, scope), scope)

    def _assign_block(self, node: nodes.AssignBlock, scope: Scope, out: list[str]) -> None:
        value = self.written(node.body, scope.inner())
        if node.filter is not None:
            value = self._through(node.filter, value, scope)
        self.assign(node.target, value, scope)

    def _filter_block(self, node: nodes.FilterBlock, scope: Scope, out: list[str]) -> None:
        value = self._through(node.filter, self.written(node.body, scope.inner()), scope)
        out.append(v.text(self.meter, value))

    def _through(self, node: nodes.Filter, value: Any, scope: Scope) -> Any:
        """A text through a chain of filters, of which the innermost has no value of its own."""
        if node.node is not None:
            assert isinstance(node.node, nodes.Filter)
            value = self._through(node.node, value, scope)
        return self.filtered(node.name, value, *self.arguments(node, scope))

    def _with(self, node: nodes.With, scope: Scope, out: list[str]) -> None:
        values = [self.value(one, scope) for one in node.values]
        inner = scope.inner()
        for target, value in zip(node.targets, values, strict=True):
            self.assign(target, value, inner)
        self._run(node.body, inner, out)

    def _scoped(self, node: nodes.Scope | nodes.Block, scope: Scope, out: list[str]) -> None:
        self._run(node.body, scope.inner(), out)

    def _expression(self, node: nodes.ExprStmt, scope: Scope, out: list[str]) -> None:
        self.value(node.node, scope)

    def _break(self, node: nodes.Break, scope: Scope, out: list[str]) -> None:
        raise _Break

    def _continue(self, node: nodes.Continue, scope: Scope, out: list[str]) -> None:
        raise _Continue

    def _macro(self, node: nodes.Macro, scope: Scope, out: list[str]) -> None:
        scope.names[node.name] = v.Function(node.name, partial(self._expand, node, scope))

    def _call_block(self, node: nodes.CallBlock, scope: Scope, out: list[str]) -> None:
        caller = v.Function("caller", partial(self._expand, node, scope))
        args, kwargs = self.arguments(node.call, scope)
        called = self.value(node.call.node, scope)
        out.append(v.text(self.meter, self.call(called, args, kwargs | {"caller": caller})))

    def _expand(
        self, node: nodes.Macro | nodes.CallBlock, scope: Scope, /, *args: Any, **kwargs: Any
    ) -> str:
        """What a macro writes."""
        names = [one.name for one in node.args]
        inner = scope.inner(dict(zip(names, args, strict=False)))
        first_default = len(names) - len(node.defaults)
        for place, name in enumerate(names[len(args) :], len(args)):
            if name in kwargs:
                inner.names[name] = kwargs.pop(name)
            elif place >= first_default:
                default = node.defaults[place - first_default]
                inner.names[name] = self.value(default, inner)
            else:
                inner.names[name] = v.undefined(name)
        inner.names["caller"] = kwargs.pop("caller", v.undefined("caller"))
        inner.names["varargs"], inner.names["kwargs"] = args[len(names) :], kwargs
        return self.written(node.body, inner)


_STATEMENTS: dict[type[nodes.Node], Callable[[_Rendering, Any, Scope, list[str]], None]] = {
    nodes.Assign: _Rendering._assign,
    nodes.AssignBlock: _Rendering._assign_block,
    nodes.Block: _Rendering._scoped,
    nodes.Break: _Rendering._break,
    nodes.CallBlock: _Rendering._call_block,
    nodes.Continue: _Rendering._continue,
    nodes.ExprStmt: _Rendering._expression,
    nodes.FilterBlock: _Rendering._filter_block,
    nodes.For: _Rendering._for,
    nodes.If: _Rendering._if,
    nodes.Macro: _Rendering._macro,
    nodes.Output: _Rendering._output,
    nodes.Scope: _Rendering._scoped,
    nodes.With: _Rendering._with,
}
