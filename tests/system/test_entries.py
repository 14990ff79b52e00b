"""The list of what is called from outside machine code: whole, and true to what Numba compiles."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgespec.errors import EdgeSpecError
from edgespec.system.addresses import address_of
from edgespec.system.entries import Signature
from edgespec.system.jit import SOURCE

PACKAGE = Path(__file__).parents[2] / "edgespec"
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.parent.name != "system"]


def test_signatures_are_told_in_letters() -> None:
    made = Signature.of(("int64", ("float32[:,:]", "bool"), "int16[:]"), ("int64", "float64"))
    assert made.letters == "l(2f?)1h>ld"
    with pytest.raises(KeyError):
        Signature.of(("int8",), ())


def test_a_function_without_a_place_in_the_list_is_refused() -> None:
    def stage(table: int, one: int, other: int) -> int:
        return 0

    with pytest.raises(EdgeSpecError, match="no @entry"):
        address_of(stage)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_modules_with_kernels_import_no_compiler(path: Path) -> None:
    """Where they are imported: inside `if SOURCE == ...` and functions they may be."""
    text = path.read_text("utf-8")
    if "edgespec.system.jit import" not in text:
        return
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or node.names[0].name
            assert module.split(".")[0] not in ("numba", "llvmlite"), f"{path}:{node.lineno}"


_WARM = """
import numpy as np
from edgespec.system import jit
from edgespec.loading.warm_up import warm_up_drafter
from edgespec.system.entries import ENTRIES, scalar_and_axes
import edgespec
with edgespec.load(threads=2) as engine:
    engine.generate("Hello", max_tokens=12, temperature=0.7, top_p=0.9, seed=1)
def shown(kind):
    if isinstance(kind, tuple):
        return "(" + ", ".join(map(shown, kind)) + ")"
    name, axes = scalar_and_axes(kind)
    return f"array({name}, {axes}d, C)" if axes else name
def flat(kind):
    from numba import types
    if isinstance(kind, types.BaseTuple):
        return "(" + ", ".join(map(flat, kind)) + ")"
    if isinstance(kind, types.Array):
        return f"array({kind.dtype}, {kind.ndim}d, {kind.layout})"
    return str(kind).replace("boolean", "bool")
for name, entry in ENTRIES.items():
    if entry.signature is None:
        continue
    wanted = "(" + ", ".join(map(shown, entry.signature.arguments)) + ")"
    for own, compiled in entry.make().overloads.items():
        found = "(" + ", ".join(map(flat, own)) + ")"
        given = compiled.signature.return_type
        print(name, "|", wanted, "|", found, "|", ", ".join(entry.signature.results), "|", given)
"""


@pytest.mark.skipif(SOURCE != "numba", reason="Numba compiles nothing")
def test_what_is_declared_is_what_is_called() -> None:
    """In a process of its own, in which nothing but a reply has called kernels."""
    done = subprocess.run([sys.executable, "-c", _WARM], capture_output=True, text=True, check=True)
    rows = [[part.strip() for part in line.split("|")] for line in done.stdout.splitlines()]
    assert len(rows) > 10
    for name, declared, called, results, given in rows:
        assert called == declared, name
        assert (given == "none") == (results == ""), name


def test_arrays_are_checked_by_the_library() -> None:
    if SOURCE != "library":
        pytest.skip("needs precompiled kernels")
    from edgespec.verification.rejection.one_draft import draw

    weights = np.array([0.25, 0.75])
    assert draw(weights, np.uint64(3)) in (0, 1)
    for wrong in (weights.astype(np.float32), np.zeros(6)[::2], [0.5, 0.5], np.zeros((1, 2))):
        with pytest.raises(TypeError, match="array"):
            draw(wrong, np.uint64(3))


def test_every_kernel_of_the_package_says_its_types() -> None:
    for path in FILES:
        assert "@kernel\n" not in path.read_text("utf-8"), path
