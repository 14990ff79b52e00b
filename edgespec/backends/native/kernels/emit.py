"""A thin layer over llvmlite's builder: the vector operations tiles are made of.

Everything is in vectors of 16 lanes; LLVM splits them into what the processor has, so the same text
serves AVX-512, AVX2 and NEON. Addresses are 64-bit integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

LANES = 16
I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
V16I8, V16I16, V16I32 = (ir.VectorType(kind, LANES) for kind in (I8, I16, I32))
V16F16, V16F32 = ir.VectorType(F16, LANES), ir.VectorType(F32, LANES)
VOID = ir.VoidType()

Value = Any
"""An llvmlite value; the library ships without annotations."""


class Emitter:
    """One function under construction; `arguments` are its 64-bit integers."""

    def __init__(self, module: ir.Module, name: str, num_arguments: int) -> None:
        kind = ir.FunctionType(VOID, [I64] * num_arguments)
        self.module = module
        self.function = ir.Function(module, kind, name)
        self.arguments: tuple[Value, ...] = tuple(self.function.args)
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))

    def address(self, base: Value, *terms: Value | int | tuple[Value | int, Value | int]) -> Value:
        """base + sum of terms; a pair is a product."""
        for term in terms:
            if isinstance(term, tuple):
                term = self.builder.mul(self.integer(term[0]), self.integer(term[1]))
            base = self.builder.add(base, self.integer(term))
        return base

    def load(self, address: Value, kind: Any, align: int = 1) -> Value:
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=align)

    def prefetch(self, address: Value, num_bytes: int) -> None:
        """Ask for the cache lines of `num_bytes` bytes; past the end of memory it does nothing."""
        for line in range(0, num_bytes, 64):
            pointer = self.builder.inttoptr(self.address(address, line), I8.as_pointer())
            hints = [ir.Constant(I32, value) for value in (0, 3, 1)]  # read, keep, data
            self.call("llvm.prefetch.p0", VOID, [pointer, *hints])

    def store(self, value: Value, address: Value, align: int = 4) -> None:
        self.builder.store(
            value, self.builder.inttoptr(address, value.type.as_pointer()), align=align
        )

    def splat(self, scalar: Value) -> Value:
        """The scalar in all 16 lanes."""
        kind = ir.VectorType(scalar.type, LANES)
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
        zeros = ir.Constant(ir.VectorType(I32, LANES), [ir.Constant(I32, 0)] * LANES)
        return self.builder.shuffle_vector(first, undefined, zeros)

    def splat_load(self, address: Value, kind: Any, align: int = 4) -> Value:
        return self.splat(self.load(address, kind, align))

    def constant(self, value: int) -> Value:
        """The integer in all 16 lanes of a vector of int32."""
        return ir.Constant(V16I32, [ir.Constant(I32, value)] * LANES)

    def zero(self) -> Value:
        return ir.Constant(V16F32, [ir.Constant(F32, 0.0)] * LANES)

    def call(self, name: str, result: Any, arguments: list[Value]) -> Value:
        """Call an LLVM intrinsic (or any function) by name."""
        function = self.module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(result, [argument.type for argument in arguments])
            function = ir.Function(self.module, kind, name)
        return self.builder.call(function, arguments)

    def fma(self, left: Value, right: Value, addend: Value) -> Value:
        """left * right + addend, rounded once."""
        return self.call("llvm.fma.v16f32", V16F32, [left, right, addend])

    def half_vector(self, address: Value) -> Value:
        """16 f16 at an address, as f32."""
        return self.builder.fpext(self.load(address, V16F16, 2), V16F32)

    def running(self, count: int) -> list[Value]:
        """`count` float accumulators at zero; registers once LLVM has promoted them."""
        with self.builder.goto_entry_block():  # an alloca inside a loop would grow the stack
            slots = [self.builder.alloca(V16F32) for _ in range(count)]
        for slot in slots:
            self.builder.store(self.zero(), slot)
        return slots

    def stack_bytes(self, count: int) -> Value:
        """The address of this much memory that the function has for itself."""
        with self.builder.goto_entry_block():
            space = self.builder.alloca(ir.ArrayType(I8, count))
            space.align = 64
            return self.builder.ptrtoint(space, I64)

    @contextmanager
    def loop(self, count: Value) -> Iterator[Value]:
        """`for index in range(count)`: the body is what the `with` block emits."""
        builder = self.builder
        head, body, end = (
            self.function.append_basic_block(name) for name in ("head", "body", "end")
        )
        before = builder.block
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(I64)
        index.add_incoming(ir.Constant(I64, 0), before)
        builder.cbranch(builder.icmp_signed("<", index, count), body, end)
        builder.position_at_end(body)
        yield index
        index.add_incoming(builder.add(index, ir.Constant(I64, 1)), builder.block)
        builder.branch(head)
        builder.position_at_end(end)

    def done(self) -> None:
        self.builder.ret_void()

    @staticmethod
    def integer(value: Value | int) -> Value:
        return ir.Constant(I64, value) if isinstance(value, int) else value
