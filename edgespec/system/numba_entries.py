"""Entries of the list as LLVM modules, for the library of precompiled functions.

What Numba makes of a function takes room for its result and for an exception first. What the
library has calls that and looks at no exception, for kernels raise none:

    called by address   its own 64-bit integers, and gives one back
    called from Python  the address of words: room for results, then the arguments, a number in one
                        word each, an array as its address and its lengths
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from edgespec.system.entries import Entry, Signature, scalar_and_axes
from edgespec.system.numba_addresses import I64, make_view
from edgespec.system.numba_compiler import entry_signature, exported

_BOOL = types.boolean


def entry_module(entry: Entry, symbol: str) -> Any:
    """An optimised LLVM module with the entry, under this name, and all that it calls."""
    if entry.signature is None:
        function, signature = entry.make(), entry_signature(entry)
    else:
        function = _on_words(entry.make(), entry.signature)
        signature = types.int64(types.intp)
    text, inner = exported(function, signature)
    module = llvm.parse_assembly(text)
    gives = entry.gives or entry.signature is not None
    module.link_in(llvm.parse_assembly(_shell(symbol, inner, len(signature.args), gives)))
    return module


def _shell(symbol: str, inner: str, num_arguments: int, gives: bool) -> str:
    kinds = ", ".join(["ptr", "ptr", *["i64"] * num_arguments])
    own = ", ".join(f"i64 %a{i}" for i in range(num_arguments))
    handed = ", ".join(["ptr %result", "ptr %exception", own]).rstrip(", ")
    return f"""
        declare i32 @"{inner}"({kinds})
        define {"i64" if gives else "void"} @"{symbol}"({own}) {{
            %result = alloca i64
            %exception = alloca ptr
            store i64 0, ptr %result
            %status = call i32 @"{inner}"({handed})
            {"%value = load i64, ptr %result" if gives else ""}
            {"ret i64 %value" if gives else "ret void"}
        }}
    """


def _on_words(kernel: Callable[..., Any], signature: Signature) -> Callable[[int], int]:
    """A function that calls a kernel with what lies at an address."""
    read, write = _reader(signature), _writer(signature)

    def on_words(words: int) -> int:
        return write(words, kernel(*read(words)))  # type: ignore[no-any-return]

    return on_words


def _type(kind: Any) -> Any:
    if isinstance(kind, tuple):
        return types.BaseTuple.from_types([_type(each) for each in kind])
    name, axes = scalar_and_axes(kind)
    number = _BOOL if name == "bool" else getattr(types, name)
    return types.Array(number, axes, "C") if axes else number


def _reader(signature: Signature) -> Any:
    made = _type(signature.arguments)

    @intrinsic
    def read(typing: Any, words: Any) -> Any:
        def generate(context: Any, builder: Any, own: Any, arguments: Any) -> Any:
            words = builder.inttoptr(arguments[0], I64.as_pointer())
            first = len(signature.results)
            return _read(context, builder, signature.arguments, words, first)[0]

        return made(types.intp), generate

    return read


def _read(context: Any, builder: Any, kind: Any, words: Any, place: int) -> tuple[Any, int]:
    """What lies in words from a place on, and the place after it."""
    if isinstance(kind, tuple):
        values = []
        for each in kind:
            value, place = _read(context, builder, each, words, place)
            values.append(value)
        return context.make_tuple(builder, _type(kind), values), place
    _, axes = scalar_and_axes(kind)

    def word(index: int, pointed: Any = I64) -> Any:
        there = builder.gep(words, [I64(index)])
        return builder.load(builder.bitcast(there, pointed.as_pointer()))

    if axes:
        shape = [word(place + 1 + axis) for axis in range(axes)]
        return make_view(context, builder, _type(kind), word(place), shape), place + 1 + axes
    if kind == "bool":
        return builder.icmp_signed("!=", word(place), I64(0)), place + 1
    return word(place, context.get_value_type(_type(kind))), place + 1


def _writer(signature: Signature) -> Any:
    @intrinsic
    def write(typing: Any, words: Any, given: Any) -> Any:
        def generate(context: Any, builder: Any, own: Any, arguments: Any) -> Any:
            words = builder.inttoptr(arguments[0], I64.as_pointer())
            for place, name in enumerate(signature.results):
                value, kind = arguments[1], given
                if isinstance(given, types.BaseTuple):
                    value, kind = builder.extract_value(value, place), given[place]
                value = context.cast(builder, value, kind, _type(name))
                if name == "bool":
                    value = builder.zext(value, I64)
                there = builder.gep(words, [I64(place)])
                builder.store(value, builder.bitcast(there, value.type.as_pointer()))
            return ir.Constant(I64, 0)

        return types.int64(types.intp, given), generate

    return write
