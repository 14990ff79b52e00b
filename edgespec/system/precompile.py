"""`python -m edgespec.system.precompile`: build the library of precompiled functions.

From the same generators and the same kernels as at run time, for one platform and all of its
instruction sets. What Numba compiles is made once, for the oldest processors that the native
backend runs on. Needs Numba and a C compiler for the platform: `gcc`, `clang`, or for another kind
of processor one like `aarch64-linux-gnu-gcc`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from edgespec.system.records import dataclass
from edgespec.system.sources import source_hash

os.environ["EDGESPEC_KERNELS"] = "jit"  # before anything asks

PACKAGE = Path(__file__).parents[1]
MODULE_FILE = "_kernels.abi3.so"


@dataclass(frozen=True, slots=True)
class Platform:
    """What a library is made for."""

    triple: str
    compiler: str
    baseline: tuple[str, str]
    """LLVM's name of a processor and its features: for what Numba makes."""
    sets: dict[str, tuple[str, str]]
    """The same for each instruction set."""


PLATFORMS = {
    "linux-x86_64": Platform(
        "x86_64-unknown-linux-gnu",
        "gcc",
        ("x86-64-v2", "+fma,+f16c"),
        {
            "avx512vnni": ("cascadelake", ""),
            "avxvnni": ("x86-64-v3", "+avxvnni"),
            "avx2": ("x86-64-v3", ""),
            "plain": ("x86-64-v2", "+fma,+f16c"),
        },
    ),
    "linux-aarch64": Platform(
        "aarch64-unknown-linux-gnu",
        "aarch64-linux-gnu-gcc",
        ("generic", ""),
        {
            "neon-i8mm": ("neoverse-n2", "-sve,-sve2"),
            "neon-dotprod": ("cortex-a76", ""),
            "plain": ("generic", ""),
        },
    ),
}


def _codegen(module: str) -> Any:
    """A module of the generators; they belong to a part of the package that uses this one."""
    return importlib.import_module(f"edgespec.backends.native.kernels.codegen.{module}")


def host() -> str:
    """This machine's name in `PLATFORMS`, if it is there."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}
    own = platform.machine().lower()
    return f"{sys.platform}-{machine.get(own, own)}"


@dataclass(frozen=True, slots=True)
class Object:
    """An object file and what its functions are called: symbol by name."""

    path: Path
    symbols: dict[str, str]


class Build:
    """One library under construction."""

    def __init__(self, target: Platform, folder: Path) -> None:
        self._target, self._folder = target, folder
        self._objects: list[Object] = []
        self._count = 0
        self._hash = source_hash()  # of what is imported, whatever is edited meanwhile

    def _symbol(self) -> str:
        self._count += 1
        return f"edgespec_{self._count}"

    def add_entries(self) -> None:
        """All that Numba compiles, in one object file."""
        import llvmlite.binding as llvm

        from edgespec.system.entries import ENTRIES
        from edgespec.system.numba_entries import entry_module

        codegen = _codegen("machine_code")
        whole, symbols = llvm.parse_assembly(""), {}
        for name, entry in sorted(ENTRIES.items()):
            symbols[name] = self._symbol()
            whole.link_in(entry_module(entry, symbols[name]))
        if self._target.triple.startswith("aarch64"):
            whole = llvm.parse_assembly(_for_arm(str(whole)))
        own = set(symbols.values())
        for each in (*whole.functions, *whole.global_variables):
            if not each.is_declaration and each.name not in own:
                each.linkage = "internal"
        processor = codegen.Processor(self._target.triple, *self._target.baseline)
        self._keep(codegen.object_of(whole, processor), symbols)

    def add_set(self, isa: str) -> None:
        """All emitted functions of one instruction set, an object file for each."""
        codegen, everything = _codegen("machine_code"), _codegen("emitters").everything
        processor = codegen.Processor(self._target.triple, *self._target.sets[isa])
        made: dict[str, str] = {}
        for name, emitted in everything(isa):
            if emitted.name not in made:
                text, own = emitted.emit()
                made[emitted.name] = symbol = self._symbol()
                renamed = text.replace(f'@"{own}"', f'@"{symbol}"')
                code = codegen.object_code(renamed, processor, linked=True)
                self._keep(code, {})
            self._objects[-1].symbols[f"{isa}.{name}"] = made[emitted.name]

    def _keep(self, code: bytes, symbols: dict[str, str]) -> None:
        path = self._folder / f"{len(self._objects)}.o"
        path.write_bytes(code)
        self._objects.append(Object(path, symbols))

    def link(self, output: Path) -> None:
        """Everything with the module that finds and calls it."""
        symbols = {name: own for each in self._objects for name, own in each.symbols.items()}
        names = sorted(symbols, key=str.encode)
        declared = "".join(f"extern void {own}(void);\n" for own in sorted(set(symbols.values())))
        rows = "".join(f'    {{"{name}", {symbols[name]}}},\n' for name in names)
        table = self._folder / "functions.c"
        table.write_text(
            "typedef struct { const char *name; void (*code)(void); } Function;\n"
            f"{declared}const Function edgespec_functions[] = {{\n{rows}}};\n"
            f"const long edgespec_num_functions = {len(names)};\n"
            f'const char edgespec_source_hash[] = "{self._hash}";\n'
        )
        listed = self._folder / "objects"
        listed.write_text("\n".join(str(each.path) for each in self._objects))
        output.parent.mkdir(parents=True, exist_ok=True)
        _run(
            *(self._target.compiler, "-shared", "-fPIC", "-O2", "-fvisibility=hidden"),
            *("-nostdlib", "-Wl,--gc-sections", "-Wl,--strip-all", "-Wl,-Bsymbolic"),
            *(f"-Wl,--version-script={_exports(self._folder)}", "-I", _python_headers()),
            *("-o", str(output), str(table), str(PACKAGE / "system" / "library.c")),
            f"@{listed}",
        )


def _for_arm(text: str) -> str:
    """What Numba made on x86: of its instructions, threads that wait use one."""
    pause, hint = "void @llvm.x86.sse2.pause()", "void @llvm.aarch64.hint"
    text = text.replace(f"declare {pause}", f"declare {hint}(i32)")
    return text.replace(pause, f"{hint}(i32 1)")


def _exports(folder: Path) -> Path:
    """What is visible of the library: all else must not meet symbols of others."""
    path = folder / "exports"
    path.write_text("{ global: PyInit__kernels; local: *; };\n")
    return path


def _python_headers() -> str:
    return sysconfig.get_path("include")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{done.stderr[-4000:]}")


def import_kernels() -> None:
    """Import every module of the package that has kernels, so that the list is whole."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if b"edgespec.system.jit import" in path.read_bytes():
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            importlib.import_module(".".join(parts))


def undefined(output: Path) -> Iterator[str]:
    """Symbols that the library leaves to the process it is loaded into."""
    told = subprocess.run(
        ["nm", "-D", "--undefined-only", str(output)], capture_output=True, text=True
    )
    for line in told.stdout.splitlines():
        yield line.split()[-1]


def build(name: str, output: Path, sets: Sequence[str] = ()) -> None:
    """Build the library of a platform."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = PLATFORMS[name]
    # Before Numba is imported: what it compiles must run on the oldest processor of a kind. Of
    # another kind, it optimises as for this one, without what only this one has.
    cpu, features = target.baseline if name == host() else PLATFORMS[host()].baseline
    os.environ["NUMBA_CPU_NAME"], os.environ["NUMBA_CPU_FEATURES"] = cpu, features
    import_kernels()
    with tempfile.TemporaryDirectory() as folder:
        started, made = time.perf_counter(), Build(target, Path(folder))

        def told(what: str) -> None:
            print(f"{time.perf_counter() - started:7.1f} s  {what}", file=sys.stderr, flush=True)

        made.add_entries()
        told("kernels")
        for isa in sets or target.sets:
            made.add_set(isa)
            told(isa)
        made.link(output)
        told(f"{output}, {output.stat().st_size / 2**20:.1f} MiB")


def main(arguments: Sequence[str] | None = None) -> None:
    """The program."""
    asked: Any = argparse.ArgumentParser(description="Build the library of precompiled functions.")
    asked.add_argument("--platform", default=host(), choices=sorted(PLATFORMS))
    asked.add_argument("--output", type=Path, default=PACKAGE / "system" / MODULE_FILE)
    asked.add_argument("--sets", nargs="*", default=(), help="instruction sets (default: all)")
    given = asked.parse_args(arguments)
    build(given.platform, given.output, given.sets)


if __name__ == "__main__":
    main()
