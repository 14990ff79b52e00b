"""Instruction sets: the same bits from all, each within its own processor, and none calls out."""

from __future__ import annotations

import os
import re
import sys

import llvmlite.binding as llvm
import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec.backends.native.kernels.codegen import host, isa
from edgespec.backends.native.kernels.codegen.machine_code import (
    Processor,
    compile_function,
    optimised,
)
from edgespec.backends.native.kernels.matmul import tile
from edgespec.errors import BackendError, OptionError
from edgespec.system import precompiled
from tests.support import kernel_calls as calls
from tests.support.tiles import KINDS, name

HERE = [each for each in isa.available() if each != isa.PLAIN]
Recorded = tuple[calls.Calls, NDArray[np.uint8]]


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """All calls, and the memory as plain loops leave it."""
    made = calls.record()
    return made, calls.expected(made)


@pytest.mark.parametrize("used", HERE)
def test_bit_equal_to_plain_loops(used: str, recorded: Recorded) -> None:
    """Tiles, row operations, look-ups; what lies beside their results stays as it was."""
    made, expected = recorded
    functions, processor = calls.functions(used), isa.processor(used)
    ours = made.run({key: compile_function(*each, processor) for key, each in functions.items()})
    assert made.differences(ours, expected) == []
    np.testing.assert_array_equal(ours, expected)


NO_LIBRARY = precompiled.refusal()


@pytest.mark.skipif(bool(NO_LIBRARY), reason=f"no precompiled kernels: {NO_LIBRARY}")
@pytest.mark.parametrize("used", isa.available())
def test_precompiled_functions_give_the_same_bits(used: str, recorded: Recorded) -> None:
    made, expected = recorded
    library, addresses = precompiled.library(), {"point": calls.point_address()}
    for key in calls.functions(used) if used != isa.PLAIN else calls.plain_names():
        if key in ("lookup", "point"):
            continue
        name = f"tile_{key}" if key.split("_")[-1].isdigit() and key[0].isupper() else key
        place = f"{used}.{name}"
        if used == isa.PLAIN and name.startswith("tile_"):
            place = f"backends.native.kernels.matmul.plain.{name.rpartition('_')[0]}"
        addresses[key] = library.address(place)
    ours = made.run(addresses)
    skipped = {name for name, _ in made.made} - set(addresses)
    assert skipped <= {"lookup"}
    different = [one for one in made.differences(ours, expected) if one[0] not in skipped]
    assert different == []


def test_differences_are_seen(recorded: Recorded) -> None:
    made, expected = recorded
    which = made.made[-3]
    place = max(each for each in which[1] if isinstance(each, calls.Place))
    changed = expected.copy()
    changed[place.offset] ^= 1
    assert which in made.differences(changed, expected)


def test_sets_do_not_share_code() -> None:
    """Functions of two sets have one name and stay two."""
    addresses = {isa.tile_address(used, KINDS[0], 1) for used in isa.available()}
    assert len(addresses) == len(isa.available())


def _assembly(function: calls.Function, processor: Processor) -> str:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module, machine = optimised(function[0], processor)
    text: str = machine.emit_assembly(module)
    return text


@pytest.mark.parametrize("kind", KINDS, ids=name)
@pytest.mark.parametrize("used", [name for name in ("avx2", "avxvnni") if name in HERE])
def test_forced_sets_stay_within_their_processors(used: str, kind: tile.TensorType) -> None:
    """No wider registers, no more of them, no masks, though this processor may have them."""
    processor = isa.processor(used)
    forbidden = r"%zmm|%[xy]mm(1[6-9]|2\d|3[01])|%k[0-7]|\{evex\}"
    if used == "avx2":
        forbidden += "|vpdpbusd"
    functions = [isa.emit_tile(used, kind, size) for size in (1, tile.FORMATS[kind].sizes[-1])]
    if kind == KINDS[0]:
        functions += [*calls.ROW_FUNCTIONS.values(), *calls.attention(used).values()]
    for function in functions:
        assert re.findall(forbidden, _assembly(function, processor)) == []


TARGETS = {
    "avx512vnni": Processor("x86_64-pc-windows-msvc", "icelake-server", ""),
    "avxvnni": Processor("x86_64-pc-windows-msvc", "alderlake", ""),
    "avx2": Processor("x86_64-pc-windows-msvc", "haswell", ""),
    "neon-i8mm": Processor("arm64-apple-darwin", "apple-m2", ""),
    "neon-dotprod": Processor("arm64-apple-darwin", "apple-m1", ""),
}
"""Systems where a function's stack or registers are checked or saved by others."""


@pytest.mark.parametrize("kind", KINDS, ids=name)
@pytest.mark.parametrize("used", TARGETS)
def test_tiles_call_nothing(used: str, kind: tile.TensorType) -> None:
    """Neither the C library nor, on Windows, a check of large stacks: there is no linker."""
    for size in (1, tile.FORMATS[kind].sizes[-1]):
        text = _assembly(isa.emit_tile(used, kind, size), TARGETS[used])
        assert re.findall(r"\t(?:callq?|blr?)\s.*", text) == []


@pytest.mark.parametrize("used", TARGETS)
def test_row_operations_call_nothing(used: str) -> None:
    functions = calls.ROW_FUNCTIONS | calls.attention(used)
    for function in functions.values():
        assert re.findall(r"\t(?:callq?|blr?)\s.*", _assembly(function, TARGETS[used])) == []


def test_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGESPEC_ISA", raising=False)
    assert isa.chosen() == isa.available()[0]
    assert isa.available()[-1] == isa.PLAIN
    monkeypatch.setenv("EDGESPEC_ISA", "plain")
    assert isa.chosen() == "plain"
    monkeypatch.setenv("EDGESPEC_ISA", "sse9")
    with pytest.raises(OptionError, match="'sse9'.*plain"):
        isa.chosen()


V3 = frozenset({"avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt"})
WIDE = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})


@pytest.mark.parametrize(
    ("features", "first"),
    [
        (V3 | WIDE | {"avx512vnni", "avxvnni"}, "avx512vnni"),
        (V3 | WIDE, "avx2"),
        (V3 | {"avxvnni"}, "avxvnni"),
        (V3 - {"bmi2"}, "plain"),
        ({"avx", "fma", "f16c"}, "plain"),
        ({"neon", "dotprod", "i8mm", "sve"}, "neon-i8mm"),
        ({"neon", "dotprod"}, "neon-dotprod"),
        ({"neon"}, "plain"),
    ],
    ids=["server", "no VNNI", "desktop", "no BMI", "old", "new arm", "arm", "old arm"],
)
def test_the_best_a_processor_has(
    features: frozenset[str], first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = "arm64" if "neon" in features else "AMD64"
    monkeypatch.setattr(isa.platform, "machine", lambda: machine)
    monkeypatch.setattr(isa, "host_features", lambda: frozenset(features))
    monkeypatch.delenv("EDGESPEC_ISA", raising=False)
    assert isa.chosen() == first


def test_a_processor_without_the_basics_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isa.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(isa, "host_features", lambda: frozenset({"sse2"}))
    assert isa.available() == ()
    with pytest.raises(BackendError, match="FMA and F16C.*--backend reference"):
        isa.chosen()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems are asked in other ways")
def test_the_system_is_asked_for_features() -> None:
    """By a word of the auxiliary vector whose value is known: the size of a page."""
    page = 6
    bit = os.sysconf("SC_PAGESIZE").bit_length() - 1
    assert host._arm_has(host._Asked((page, bit), b"", 0))
    assert not host._arm_has(host._Asked((page, bit - 1), b"", 0))
