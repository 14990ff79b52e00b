"""The two loops compute what they say, so their speed is that of the work and not of leaving it."""

from __future__ import annotations

import ctypes
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec.backends.native.kernels.codegen import isa
from edgespec.backends.native.kernels.codegen.machine_code import compile_function
from edgespec.tools.bench import loops
from edgespec.tools.bench.roofs import Roofs


def call(num_arguments: int, text: str, name: str, *arguments: int) -> None:
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * num_arguments)
    kind(compile_function(text, name, isa.processor(isa.PLAIN)))(*arguments)


def aligned(values: NDArray[Any]) -> NDArray[Any]:
    """A copy that starts on a cache line."""
    raw = np.zeros(values.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    copy = raw[start : start + values.nbytes].view(values.dtype)
    copy[:] = values
    return copy


def test_the_reading_loop_reads_everything_as_often_as_asked() -> None:
    steps, passes = 7, 3
    lanes = loops.READ_STEP // 4
    data = aligned(np.random.default_rng(0).integers(-1000, 1000, steps * lanes, dtype=np.int32))
    sums = aligned(np.zeros(lanes, np.int32))
    call(4, *loops.emit_read(), data.ctypes.data, steps, passes, sums.ctypes.data)
    assert (sums == passes * data.reshape(steps, lanes).sum(axis=0)).all()


def dot(weights: NDArray[np.uint8], activations: NDArray[np.int8]) -> NDArray[np.int64]:
    """Four products a lane."""
    return (weights.astype(np.int64) * activations).reshape(-1, 4).sum(axis=1)


@pytest.mark.parametrize("name", [name for name in isa.available() if name != isa.PLAIN])
def test_the_multiplying_loop_multiplies(name: str) -> None:
    kind = loops.multiply_of(name, floats=False)
    if "vpdpbusd" not in kind.name:
        pytest.skip(f"{kind.name} feeds its sums back, so that there is no simple product to see")
    rng, steps, width = np.random.default_rng(1), 5, kind.per_call
    operands = np.zeros(128, np.uint8)
    operands[:width] = rng.integers(0, 256, width)
    operands[64 : 64 + width] = rng.integers(0, 256, width)
    sums = np.zeros(16 * loops.CHAINS, np.int32)
    call(3, *loops.emit_multiply(kind), operands.ctypes.data, sums.ctypes.data, steps)
    expected = steps * loops.UNROLL * dot(operands[:width], operands[64 : 64 + width].view(np.int8))
    assert (sums.reshape(loops.CHAINS, 16)[:, : width // 4] == expected).all()


def test_the_floating_point_loop_multiplies() -> None:
    kind = loops.multiply_of("any", floats=True)
    operands = np.zeros(32, np.float32)
    operands[: kind.per_call], operands[16 : 16 + kind.per_call] = 3.0, 0.5
    sums = np.zeros((loops.CHAINS, 16), np.float32)
    call(3, *loops.emit_multiply(kind), operands.ctypes.data, sums.ctypes.data, 10)
    assert (sums[:, : kind.per_call] == 10 * loops.UNROLL * 1.5).all()


def test_the_plain_loop_multiplies() -> None:
    """sum * weight + activation with weight 1 counts."""
    kind = loops.multiply_of(isa.PLAIN, floats=False)
    operands = np.zeros(32, np.int32)
    operands[: kind.per_call], operands[16 : 16 + kind.per_call] = 1, 7
    sums = np.zeros((loops.CHAINS, 16), np.int32)
    call(3, *loops.emit_multiply(kind), operands.ctypes.data, sums.ctypes.data, 10)
    assert (sums[:, : kind.per_call] == 10 * loops.UNROLL * 7).all()


@pytest.mark.parametrize(
    ("name", "triple", "features", "instruction"),
    [
        ("avx512vnni", "x86_64-unknown-linux-gnu", "+avx512f,+avx512vnni", "vpdpbusd"),
        ("avxvnni", "x86_64-unknown-linux-gnu", "+avx2,+avxvnni", "vpdpbusd"),
        ("avx2", "x86_64-unknown-linux-gnu", "+avx2", "vpmaddubsw"),
        ("neon-dotprod", "aarch64-unknown-linux-gnu", "+dotprod", "sdot"),
        ("i8mm", "aarch64-unknown-linux-gnu", "+i8mm", "smmla"),
    ],
)
def test_each_instruction_set_gets_its_own_instruction(
    name: str, triple: str, features: str, instruction: str
) -> None:
    """The processor's own code, for processors this machine may not have."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(triple)
    machine = target.create_target_machine(features=features, opt=3)
    text, _ = loops.emit_multiply(loops.multiply_of(name, floats=False))
    module = llvm.parse_assembly(text)
    module.triple = triple
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    lines = [line.split() for line in machine.emit_assembly(module).splitlines()]
    uses = sum(
        words[:1] == [instruction] or f"{{vex}} {instruction}" in " ".join(words[:2])
        for words in lines
    )
    assert uses == loops.CHAINS * loops.UNROLL  # none was left out of the loop, or pulled out


def test_an_unknown_instruction_set_is_held_to_plain_multiplications() -> None:
    assert loops.multiply_of("riscv", floats=False).name.startswith("32-bit integer multiply")


@pytest.mark.parametrize("threads", [1, 2])
def test_roofs_are_measured(threads: int) -> None:
    kind = loops.multiply_of(isa.chosen(), floats=False)
    with Roofs(3_000_000, 1 << 30, threads, kind) as roofs:
        assert 2_900_000 < roofs.buffer_bytes <= 3_000_000
        for rates in (roofs.read(), roofs.copy(), roofs.multiply()):
            assert min(rates) > 0


def test_the_buffer_leaves_memory_to_others() -> None:
    kind = loops.multiply_of(isa.PLAIN, floats=False)
    with Roofs(10**9, 4_000_000, 1, kind) as roofs:
        assert roofs.buffer_bytes <= 1_000_000
