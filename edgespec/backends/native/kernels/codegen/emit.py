"""A thin layer over llvmlite's builder: the vector operations tiles are made of.

Everything is in vectors of 16 lanes, or 8 where the processor has few registers; LLVM splits them
into what it has, so the same text serves AVX-512, AVX2 and NEON. Addresses are 64-bit integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

LANES = 16
I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
V16I8, V16I32, V16F32 = (ir.VectorType(kind, LANES) for kind in (I8, I32, F32))
VOID = ir.VoidType()

Function = tuple[str, str]
"""LLVM text of a module and the name of its function."""
Value = Any
"""An llvmlite value; the library ships without annotations."""


class Emitter:
    """One function in a module of its own, under construction; `arguments` are its 64-bit integers,
    `i8` to `f32` its types of vectors.
    """

    def __init__(self, name: str, num_arguments: int, lanes: int = LANES) -> None:
        self.lanes = lanes
        self.i8, self.i16, self.i32, self.f16, self.f32 = (
            ir.VectorType(element, lanes) for element in (I8, I16, I32, F16, F32)
        )
        kind = ir.FunctionType(VOID, [I64] * num_arguments)
        self.module = ir.Module(name)
        self.function = ir.Function(self.module, kind, name)
        self.arguments: tuple[Value, ...] = tuple(self.function.args)
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))

    def address(
        self, base: Value | int, *terms: Value | int | tuple[Value | int, Value | int]
    ) -> Value:
        """base + sum of terms; a pair is a product."""
        base = self.integer(base)
        for term in terms:
            if isinstance(term, tuple):
                term = self.builder.mul(self.integer(term[0]), self.integer(term[1]))
            base = self.builder.add(base, self.integer(term))
        return base

    def load(self, address: Value, kind: Any, align: int = 1) -> Value:
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=align)

    def prefetch(self, address: Value, num_bytes: int, level: int = 1) -> None:
        """Ask for the cache lines of `num_bytes` bytes, into the first or second cache; past the
        end of memory it does nothing.
        """
        for line in range(0, num_bytes, 64):
            pointer = self.builder.inttoptr(self.address(address, line), I8.as_pointer())
            hints = [ir.Constant(I32, value) for value in (0, 4 - level, 1)]  # read, data
            self.call("llvm.prefetch.p0", VOID, [pointer, *hints])

    def prefetch_share(self, base: Value, step: Value, num_bytes: int, share: Value) -> None:
        """Ask, for the second cache, for the next `num_bytes` at `base` in one of 2**share steps.

        Spread out, because what is asked for and what is needed now wait in the same few buffers.
        """
        builder = self.builder
        mask = builder.sub(builder.shl(self.integer(1), share), self.integer(1))
        due = builder.icmp_signed("==", builder.and_(step, mask), self.integer(0))
        with builder.if_then(due):
            there = self.address(base, (builder.lshr(step, share), num_bytes))
            self.prefetch(there, num_bytes, level=2)

    def store(self, value: Value, address: Value, align: int = 4) -> None:
        self.builder.store(
            value, self.builder.inttoptr(address, value.type.as_pointer()), align=align
        )

    def splat(self, scalar: Value) -> Value:
        """The scalar in all lanes."""
        kind = ir.VectorType(scalar.type, self.lanes)
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
        zeros = ir.Constant(self.i32, [ir.Constant(I32, 0)] * self.lanes)
        return self.builder.shuffle_vector(first, undefined, zeros)

    def splat_load(self, address: Value, kind: Any, align: int = 4) -> Value:
        return self.splat(self.load(address, kind, align))

    def constant(self, value: int) -> Value:
        """The integer in all lanes of a vector of int32."""
        return ir.Constant(self.i32, [ir.Constant(I32, value)] * self.lanes)

    def zero(self, hidden: Value | None = None) -> Value:
        """0.0 in all lanes; from a `hidden` number that is never negative, LLVM does not see it."""
        if hidden is not None:
            zero = self.builder.trunc(self.builder.lshr(hidden, self.integer(63)), I32)
            return self.builder.bitcast(self.splat(zero), self.f32)
        return ir.Constant(self.f32, [ir.Constant(F32, 0.0)] * self.lanes)

    def call(self, name: str, result: Any, arguments: list[Value]) -> Value:
        """Call an LLVM intrinsic (or any function) by name."""
        function = self.module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(result, [argument.type for argument in arguments])
            function = ir.Function(self.module, kind, name)
        return self.builder.call(function, arguments)

    def fma(self, left: Value, right: Value, addend: Value) -> Value:
        """left * right + addend, rounded once."""
        return self.call(f"llvm.fma.v{self.lanes}f32", self.f32, [left, right, addend])

    def half_vector(self, address: Value) -> Value:
        """f16 at an address, one for each lane, as f32."""
        return self.builder.fpext(self.load(address, self.f16, 2), self.f32)

    def running(self, count: int, start: Value | None = None) -> list[Value]:
        """`count` accumulators at `start` (float zeros); registers once LLVM has promoted them."""
        start = self.zero() if start is None else start
        with self.builder.goto_entry_block():  # an alloca inside a loop would grow the stack
            slots = [self.builder.alloca(start.type) for _ in range(count)]
        for slot in slots:
            self.builder.store(start, slot)
        return slots

    def stack_bytes(self, count: int) -> Value:
        """The address of this much memory that the function has for itself."""
        with self.builder.goto_entry_block():
            space = self.builder.alloca(ir.ArrayType(I8, count))
            space.align = 64
            return self.builder.ptrtoint(space, I64)

    def array(self, count: int, zero: Value, used: Value | None = None) -> Value:
        """As many accumulators for any index; registers too where all indices are constants. Set to
        zero are the first `used`, or all.
        """
        with self.builder.goto_entry_block():
            array = self.builder.alloca(ir.ArrayType(self.f32, count))
        if used is None:
            for index in range(count):
                self.builder.store(zero, self.slot(array, self.integer(index)))
        else:
            with self.loop(used) as index:
                self.builder.store(zero, self.slot(array, index))
        return array

    def slot(self, array: Value, index: Value) -> Value:
        """One of an array's accumulators."""
        return self.builder.gep(array, [self.integer(0), index])

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

    def groups(self, count: Value, size: int) -> Value:
        """How many groups of `size` hold `count`."""
        return self.builder.udiv(self.address(count, size - 1), self.integer(size))

    def in_steps(self, count: Value, width: int, body: Callable[[int, Value], None]) -> None:
        """Emit loops over `count` items: body(width, first) while as many are left, then one by
        one.
        """
        whole = self.builder.udiv(count, self.integer(width))
        with self.loop(whole) as step:
            body(width, self.builder.mul(step, self.integer(width)))
        if width > 1:
            done = self.builder.mul(whole, self.integer(width))
            with self.loop(self.builder.sub(count, done)) as index:
                body(1, self.builder.add(done, index))

    def done(self) -> Function:
        self.builder.ret_void()
        return str(self.module), self.function.name

    @staticmethod
    def integer(value: Value | int) -> Value:
        return ir.Constant(I64, value) if isinstance(value, int) else value
