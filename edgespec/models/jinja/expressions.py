"""What a template's expressions are worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Undefined

from edgespec.models.jinja import values as v
from edgespec.models.jinja.filters import FILTERS
from edgespec.models.jinja.formats import percent
from edgespec.models.jinja.meter import ITEM, OBJECT, Meter
from edgespec.models.jinja.methods import attribute, item, look_up
from edgespec.models.jinja.scope import Loop, Scope
from edgespec.models.jinja.tests import TESTS

_ARITHMETIC: dict[type[nodes.Node], Callable[[Meter, Any, Any], Any]] = {
    nodes.Add: v.add,
    nodes.Sub: v.subtract,
    nodes.Mul: v.multiply,
    nodes.Div: v.divide,
    nodes.FloorDiv: v.floor_divide,
    nodes.Pow: v.power,
}
_SIGNS = {"gteq": "ge", "lteq": "le"}


class Expressions:
    """One rendering's values; the base of what carries out statements."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self._picking: dict[str, Callable[..., Any]] = {
            "map": self._map,
            "reject": self._pick(sign=False, by_attribute=False),
            "rejectattr": self._pick(sign=False, by_attribute=True),
            "select": self._pick(sign=True, by_attribute=False),
            "selectattr": self._pick(sign=True, by_attribute=True),
        }

    def globals(self) -> dict[str, Any]:
        """What templates may call besides filters."""
        return {
            name: v.Function(name, call)
            for name, call in (
                ("dict", self._dict),
                ("namespace", self._namespace),
                ("raise_exception", _raise_exception),
                ("range", self._range),
                ("strftime_now", self._strftime_now),
            )
        }

    def value(self, node: nodes.Node, scope: Scope) -> Any:
        """What an expression is worth."""
        self.meter.spend()
        work = _VALUES.get(type(node))
        if work is None:
            raise SecurityError(f"{type(node).__name__} is not available in chat templates")
        return work(self, node, scope)

    def _const(self, node: nodes.Const, scope: Scope) -> Any:
        return v.bounded(node.value)

    def _name(self, node: nodes.Name, scope: Scope) -> Any:
        return scope.find(node.name)

    def _tuple(self, node: nodes.Tuple, scope: Scope) -> Any:
        self.meter.make_list(len(node.items))
        return tuple([self.value(one, scope) for one in node.items])

    def _list(self, node: nodes.List, scope: Scope) -> Any:
        self.meter.make_list(len(node.items))
        return [self.value(one, scope) for one in node.items]

    def _mapping(self, node: nodes.Dict, scope: Scope) -> Any:
        self.meter.make((len(node.items) + 2) * OBJECT * 2)
        return {
            v.as_key(self.meter, self.value(pair.key, scope)): self.value(pair.value, scope)
            for pair in node.items
        }

    def _either(self, node: nodes.CondExpr, scope: Scope) -> Any:
        if v.is_true(self.value(node.test, scope)):
            return self.value(node.expr1, scope)
        if node.expr2 is None:
            return Undefined("the condition of an inline if without else was false")
        return self.value(node.expr2, scope)

    def _and(self, node: nodes.And, scope: Scope) -> Any:
        left = self.value(node.left, scope)
        return self.value(node.right, scope) if v.is_true(left) else left

    def _or(self, node: nodes.Or, scope: Scope) -> Any:
        left = self.value(node.left, scope)
        return left if v.is_true(left) else self.value(node.right, scope)

    def _not(self, node: nodes.Not, scope: Scope) -> Any:
        return not v.is_true(self.value(node.node, scope))

    def _binary(self, node: nodes.BinExpr, scope: Scope) -> Any:
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        return _ARITHMETIC[type(node)](self.meter, left, right)

    def _modulo(self, node: nodes.Mod, scope: Scope) -> Any:
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        work = percent if isinstance(left, str) else v.modulo
        return work(self.meter, left, right)

    def _sign(self, node: nodes.UnaryExpr, scope: Scope) -> Any:
        sign = -1 if isinstance(node, nodes.Neg) else 1
        return v.multiply(self.meter, self._number(node.node, scope), sign)

    def _number(self, node: nodes.Node, scope: Scope) -> Any:
        value = self.value(node, scope)
        return v.subtract(self.meter, value, 0)

    def _concat(self, node: nodes.Concat, scope: Scope) -> Any:
        parts = [v.text(self.meter, self.value(one, scope)) for one in node.nodes]
        return v.joined(self.meter, parts)

    def _compare(self, node: nodes.Compare, scope: Scope) -> Any:
        left = self.value(node.expr, scope)
        for operand in node.ops:
            right = self.value(operand.expr, scope)
            if not self._holds(operand.op, left, right):
                return False
            left = right
        return True

    def _holds(self, sign: str, left: Any, right: Any) -> bool:
        if sign == "notin":
            return not v.contains(self.meter, right, left)
        return TESTS[_SIGNS.get(sign, sign)](self.meter, left, right)

    def _attribute(self, node: nodes.Getattr, scope: Scope) -> Any:
        return self.attribute(self.value(node.node, scope), node.attr)

    def attribute(self, value: Any, name: str) -> Any:
        return value.tell(name) if isinstance(value, Loop) else attribute(self.meter, value, name)

    def _item(self, node: nodes.Getitem, scope: Scope) -> Any:
        value, key = self.value(node.node, scope), self.value(node.arg, scope)
        if isinstance(value, Loop):
            return value.tell(v.text(self.meter, key))
        return item(self.meter, value, key)

    def _slice(self, node: nodes.Slice, scope: Scope) -> Any:
        parts = (node.start, node.stop, node.step)
        values = [None if part is None else self.value(part, scope) for part in parts]
        return slice(*(None if one is None else v.whole(one, "an index") for one in values))

    def arguments(
        self, node: nodes.Call | nodes.Filter | nodes.Test, scope: Scope
    ) -> tuple[list[Any], dict[str, Any]]:
        """What something is called with."""
        args = [self.value(one, scope) for one in node.args]
        kwargs = {str(one.key): self.value(one.value, scope) for one in node.kwargs}
        if node.dyn_args is not None:
            args += v.listed(self.meter, self.value(node.dyn_args, scope))
        if node.dyn_kwargs is not None:
            kwargs |= self.value(node.dyn_kwargs, scope)
        return args, kwargs

    def _call(self, node: nodes.Call, scope: Scope) -> Any:
        called = self.value(node.node, scope)
        args, kwargs = self.arguments(node, scope)
        return self.call(called, args, kwargs)

    def call(self, called: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        self.meter.spend()
        if isinstance(called, Loop) and called.again is not None:
            return called.again(*args, **kwargs)
        if isinstance(called, Undefined):
            called._fail_with_undefined_error()
        if not isinstance(called, v.Function):
            raise TypeError(f"a {v.type_name(called)} cannot be called")
        return called.call(*args, **kwargs)

    def _filter(self, node: nodes.Filter, scope: Scope) -> Any:
        assert node.node is not None  # those of filter blocks are carried out by their statement
        value = self.value(node.node, scope)
        args, kwargs = self.arguments(node, scope)
        return self.filtered(node.name, value, args, kwargs)

    def filtered(self, name: str, value: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """`value | name(...)`."""
        self.meter.spend()
        picking = self._picking.get(name)
        if picking is not None:
            return v.Lazy(list(picking(value, *args, **kwargs)))
        if name not in FILTERS:
            raise TemplateError(f"there is no filter {name!r}")
        return FILTERS[name](self.meter, value, *args, **kwargs)

    def _test(self, node: nodes.Test, scope: Scope) -> Any:
        value = self.value(node.node, scope)
        args, kwargs = self.arguments(node, scope)
        return self.tested(node.name, value, *args, **kwargs)

    def tested(self, name: str, value: Any, *args: Any, **kwargs: Any) -> bool:
        """`value is name(...)`."""
        if name == "filter":
            return value in FILTERS or value in self._picking
        if name not in TESTS:
            raise TemplateError(f"there is no test {name!r}")
        return TESTS[name](self.meter, value, *args, **kwargs)

    def _map(
        self,
        value: Any,
        name: str | None = None,
        /,
        *args: Any,
        attribute: Any = None,
        default: Any = None,
        **kwargs: Any,
    ) -> Iterator[Any]:
        for one in self._paid(value):
            if name is not None:
                yield self.filtered(name, one, list(args), kwargs)
            elif attribute is None:
                raise TypeError("map needs a filter or an attribute")
            else:
                yield look_up(self.meter, one, attribute, default)

    def _pick(self, *, sign: bool, by_attribute: bool) -> Callable[..., Iterator[Any]]:
        def pick(value: Any, /, *args: Any, **kwargs: Any) -> Iterator[Any]:
            rest = list(args)
            path = rest.pop(0) if by_attribute else None
            name = rest.pop(0) if rest else None
            for one in self._paid(value):
                seen = look_up(self.meter, one, path) if by_attribute else one
                holds = v.is_true(seen) if name is None else self.tested(name, seen, *rest)
                if holds is sign:
                    yield one

        return pick

    def _paid(self, value: Any) -> Iterator[Any]:
        if not v.is_true(value):  # of what is false Jinja makes nothing, whatever it is
            return
        for one in v.stepped(self.meter, v.items_of(self.meter, value)):
            self.meter.make(ITEM)
            yield one

    def _dict(self, pairs: Any = (), /, **more: Any) -> dict[Any, Any]:
        found = dict(pairs) if isinstance(pairs, dict) else {}
        if not isinstance(pairs, dict):
            for pair in self._paid(pairs):
                key, one = v.listed(self.meter, pair)
                found[v.as_key(self.meter, key)] = one
        self.meter.make((len(found) + len(more) + 2) * 2 * OBJECT)
        return found | more

    def _namespace(self, values: Any = (), /, **more: Any) -> v.Namespace:
        return v.Namespace(self._dict(values, **more))

    def _range(self, *bounds: Any) -> range:
        found = range(*(v.whole(bound, "a bound") for bound in bounds))
        if len(found) > v.MAX_ITEMS:
            raise SecurityError(f"a range of more than {v.MAX_ITEMS} numbers")
        return found

    def _strftime_now(self, format: Any) -> str:
        return datetime.now().strftime(v.text(self.meter, format)[:256])


def _raise_exception(message: Any) -> NoReturn:
    raise TemplateError(message if isinstance(message, str) else "the template refuses")


_VALUES: dict[type[nodes.Node], Callable[[Expressions, Any, Scope], Any]] = {
    nodes.Add: Expressions._binary,
    nodes.And: Expressions._and,
    nodes.Call: Expressions._call,
    nodes.Compare: Expressions._compare,
    nodes.Concat: Expressions._concat,
    nodes.CondExpr: Expressions._either,
    nodes.Const: Expressions._const,
    nodes.Dict: Expressions._mapping,
    nodes.Div: Expressions._binary,
    nodes.Filter: Expressions._filter,
    nodes.FloorDiv: Expressions._binary,
    nodes.Getattr: Expressions._attribute,
    nodes.Getitem: Expressions._item,
    nodes.List: Expressions._list,
    nodes.Mod: Expressions._modulo,
    nodes.Mul: Expressions._binary,
    nodes.Name: Expressions._name,
    nodes.Neg: Expressions._sign,
    nodes.Not: Expressions._not,
    nodes.Or: Expressions._or,
    nodes.Pos: Expressions._sign,
    nodes.Pow: Expressions._binary,
    nodes.Slice: Expressions._slice,
    nodes.Sub: Expressions._binary,
    nodes.Test: Expressions._test,
    nodes.Tuple: Expressions._tuple,
}
