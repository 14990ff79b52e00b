"""The kernels for 64-bit ARM: made here, run by an emulator, bit-equal to this machine's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec.backends.native.kernels.codegen.machine_code import Processor, object_code
from tests.support import kernel_calls as calls
from tests.support.kernel_calls import Calls, Place

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"


def _missing() -> list[str]:
    """Debian's names for what is not installed here."""
    found = {"gcc-aarch64-linux-gnu": shutil.which(COMPILER), "qemu-user": shutil.which(EMULATOR)}
    if shutil.which(COMPILER):
        library = _run(COMPILER, "-print-file-name=libc.a").strip()
        found["libc6-dev-arm64-cross"] = library if "/" in library else None
    return [package for package, place in found.items() if place is None]


def _run(*command: object) -> str:
    found = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr or f"{command[0]} ended with {found.returncode}"
    return found.stdout


MISSING = _missing()
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"not installed (Debian packages): {', '.join(MISSING)}"
)
TRIPLE = "aarch64-unknown-linux-gnu"
PROCESSORS = {
    "neon-dotprod": (Processor(TRIPLE, "cortex-a76", ""), "cortex-a76"),
    "neon-i8mm": (Processor(TRIPLE, "neoverse-n2", "-sve,-sve2"), "max"),
}
"""For each set: a processor that has it, and the emulator's name for one like it."""


@pytest.fixture(scope="module")
def recorded() -> tuple[Calls, NDArray[np.uint8]]:
    """All calls, and the memory as plain loops here leave it."""
    made = calls.record()
    return made, calls.expected(made)


@pytest.mark.parametrize("isa", PROCESSORS)
def test_bit_equal_to_plain_loops_here(
    isa: str, recorded: tuple[Calls, NDArray[np.uint8]], tmp_path: Path
) -> None:
    made, expected = recorded
    processor, emulated = PROCESSORS[isa]
    functions = calls.functions(isa)
    binary = _build(functions, processor, tmp_path)
    (tmp_path / "calls").write_bytes(_file(made, list(functions)))
    _run(EMULATOR, "-cpu", emulated, binary, tmp_path / "calls", tmp_path / "memory")
    ours = np.fromfile(tmp_path / "memory", np.uint8)
    assert made.differences(ours, expected) == []
    np.testing.assert_array_equal(ours, expected)


def _build(functions: dict[str, calls.Function], processor: Processor, folder: Path) -> Path:
    """A program of all functions and the driver, with nothing to load when it starts."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    objects: dict[str, Path] = {}
    for text, name in functions.values():
        if name not in objects:
            objects[name] = folder / f"{name}.o"
            objects[name].write_bytes(object_code(text, processor))
    names = [name for _, name in functions.values()]
    table = "".join(f"void {name}();\n" for name in objects)
    table += f"void (*functions[])() = {{{', '.join(names)}}};\n"
    (folder / "table.c").write_text(table)
    driver = Path(__file__).with_name("arm_driver.c")
    output = folder / "kernels"
    sources = [driver, folder / "table.c", *objects.values()]
    _run(COMPILER, "-static", "-O1", "-o", output, *sources)
    return output


def _file(made: Calls, names: list[str]) -> bytes:
    """The calls as the driver reads them."""
    rows = [
        [
            names.index(name),
            sum(isinstance(each, Place) << place for place, each in enumerate(arguments)),
            *(each.offset if isinstance(each, Place) else each for each in arguments),
        ]
        for name, arguments in made.made
    ]
    sizes = np.array([len(made.memory), len(rows)], np.int64)
    return sizes.tobytes() + np.array(rows, np.int64).tobytes() + bytes(made.memory)
