"""Two loops as LLVM text that find a processor's limits: reading memory, and multiplying.

Emitted like the kernels, so that they are compiled the same way for the same processor. The reading
loop adds up what it loads; the multiplying loop keeps independent sums in registers and does
nothing but the instruction that the instruction set's tiles are made of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from edgespec.backends.native.kernels.codegen.emit import F32, I8, I16, I32, V16I32, Emitter, Value
from edgespec.backends.native.kernels.codegen.host import host_features
from edgespec.system.records import dataclass

READ_STEP = 512
"""Bytes that one step of the reading loop loads."""
CHAINS = 12
"""Sums in flight: an instruction's latency times its rate is 10 or less, and 16 registers hold
these and the operands.
"""
UNROLL = 4
"""Times each sum is added to in one step of the multiplying loop."""
OPERAND_BYTES = 64 * (CHAINS + 2)
"""Room that the multiplying loop reads its operands from and writes its sums to."""


@dataclass(frozen=True, slots=True)
class Multiply:
    """An instruction (or the shortest run of them) that multiplies and adds."""

    name: str
    """What the report calls it."""
    sums: Any
    """LLVM type of the sums."""
    operands: Any
    """LLVM type of weights and activations."""
    per_call: int
    """Multiplications in one use."""
    emit: Callable[[Emitter, Value, Value, Value], Value]
    """(emitter, sums, weights, activations) -> sums."""


def emit_read() -> tuple[str, str]:
    """Text and name of a function (address, steps, passes, 512 bytes to write the sums to)."""
    emitter = Emitter("read", 4)
    address, steps, passes, output = emitter.arguments
    slots = _slots(emitter, V16I32, READ_STEP // 64)
    with emitter.loop(passes), emitter.loop(steps) as index:
        for place, slot in enumerate(slots):
            where = emitter.address(address, (index, READ_STEP), 64 * place)
            total = emitter.builder.add(emitter.builder.load(slot), emitter.load(where, V16I32, 64))
            emitter.builder.store(total, slot)
    _write(emitter, slots, output)
    return emitter.done()


def emit_multiply(kind: Multiply) -> tuple[str, str]:
    """Text and name of a function (operands, sums, steps); a step is CHAINS x UNROLL uses."""
    emitter = Emitter("multiply", 3)
    operands, output, steps = emitter.arguments
    weights = emitter.load(operands, kind.operands)
    activations = emitter.load(emitter.address(operands, 64), kind.operands)
    slots = _slots(emitter, kind.sums, CHAINS)
    with emitter.loop(steps):
        for slot in slots * UNROLL:
            sums = emitter.builder.load(slot)
            emitter.builder.store(kind.emit(emitter, sums, weights, activations), slot)
    _write(emitter, slots, output)
    return emitter.done()


def multiply_of(isa: str, *, floats: bool) -> Multiply:
    """What the tiles of an instruction set multiply with; `floats` for F32, F16 and BF16 weights.

    An instruction set this table does not know is held to plain 32-bit multiplications.
    """
    lanes = _lanes(isa)
    if floats:
        return _fused(lanes)
    known = {
        "avx512vnni": _vpdpbusd(16),
        "avxvnni": _vpdpbusd(8),
        "avx2": _PMADDUBSW,
        "dotprod": _neon("sdot", 16),
        "i8mm": _neon("smmla", 32),
    }
    return known.get(isa.removeprefix("neon-"), _plain(lanes))


def _lanes(isa: str) -> int:
    """32-bit lanes of an instruction set's vectors; this processor's for one that does not tell."""
    if isa in ("avx2", "avxvnni"):
        return 8
    features = host_features()
    return 16 if "avx512f" in features else 8 if "avx2" in features else 4


def _vector(kind: Any, lanes: int) -> Any:
    return ir.VectorType(kind, lanes)


def _fused(lanes: int) -> Multiply:
    kind = _vector(F32, lanes)
    name = f"32-bit float multiply-add, {32 * lanes} bits"
    return Multiply(
        name, kind, kind, lanes,
        lambda emitter, sums, weights, activations: emitter.call(
            f"llvm.fma.v{lanes}f32", kind, [weights, activations, sums]
        ),
    )  # fmt: skip


def _plain(lanes: int) -> Multiply:
    kind = _vector(I32, lanes)
    return Multiply(
        f"32-bit integer multiply and add, {32 * lanes} bits", kind, kind, lanes,
        # The sum is a factor too, or the product would be the same in every step.
        lambda emitter, sums, weights, activations: emitter.builder.add(
            emitter.builder.mul(sums, weights), activations
        ),
    )  # fmt: skip


def _vpdpbusd(lanes: int) -> Multiply:
    kind = _vector(I32, lanes)
    return Multiply(
        f"vpdpbusd, {32 * lanes} bits", kind, kind, 4 * lanes,
        lambda emitter, sums, weights, activations: emitter.call(
            f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", kind, [sums, weights, activations]
        ),
    )  # fmt: skip


def _neon(instruction: str, per_call: int) -> Multiply:
    sums, operands = _vector(I32, 4), _vector(I8, 16)
    return Multiply(
        f"{instruction}, 128 bits", sums, operands, per_call,
        lambda emitter, total, weights, activations: emitter.call(
            f"llvm.aarch64.neon.{instruction}.v4i32.v16i8", sums, [total, weights, activations]
        ),
    )  # fmt: skip


def _two_steps(emitter: Emitter, sums: Value, weights: Value, activations: Value) -> Value:
    """AVX2 without VNNI: bytes to pairs, pairs to fours, and an addition.

    The sums stand in for the weights, or the products would be the same in every step.
    """
    builder, bytes32, shorts = emitter.builder, _vector(I8, 32), _vector(I16, 16)
    pairs = emitter.call(
        "llvm.x86.avx2.pmadd.ub.sw", shorts, [builder.bitcast(sums, bytes32), activations]
    )
    ones = ir.Constant(shorts, [ir.Constant(I16, 1)] * 16)
    fours = emitter.call("llvm.x86.avx2.pmadd.wd", _vector(I32, 8), [pairs, ones])
    return builder.add(sums, fours)


_PMADDUBSW = Multiply(
    "vpmaddubsw and vpmaddwd, 256 bits", _vector(I32, 8), _vector(I8, 32), 32, _two_steps
)


def _slots(emitter: Emitter, kind: Any, count: int) -> list[Value]:
    """`count` sums at zero; registers once LLVM has promoted them."""
    with emitter.builder.goto_entry_block():
        slots = [emitter.builder.alloca(kind) for _ in range(count)]
    for slot in slots:
        emitter.builder.store(ir.Constant(kind, None), slot)
    return slots


def _write(emitter: Emitter, slots: list[Value], output: Value) -> None:
    """Store the sums, so that nothing of the loop can be left out."""
    for place, slot in enumerate(slots):
        emitter.store(emitter.builder.load(slot), emitter.address(output, 64 * place), 1)
