"""What the sources may say of compiling: JIT options in one place, constants that are hashed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgespec.system import sources
from tests.support.house import imported

PACKAGE = Path(__file__).parents[2] / "edgespec"
FILES = [str(path.relative_to(PACKAGE)) for path in sorted(PACKAGE.rglob("*.py"))]
OPTIONS = {"jit", "njit", "cfunc", "vectorize", "guvectorize", "stencil", "generated_jit"}
"""Numba's decorators that take compile options."""
KEYWORDS = {"parallel", "fastmath", "nogil", "boundscheck", "error_model", "cache"}


def _imports(tree: ast.Module, name: str) -> Iterator[tuple[str, list[str]]]:
    """(module, names) of every import of a file, those inside functions too."""
    return imported(tree, ".".join(["edgespec", *Path(name).parts[:-1]]))


def jit_offences(name: str, text: str) -> list[str]:
    """Where a file names JIT options."""
    tree, found = ast.parse(text), []
    for module, names in _imports(tree, name):
        if module.split(".")[0] == "numba" and OPTIONS & set(names):
            found.append(f"imports {OPTIONS & set(names)}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("numba", "nb"):
            found += [f"line {node.lineno}: {node.attr}"] * (node.attr in OPTIONS)
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func).split(".")[-1]
        words = {word.arg: ast.unparse(word.value) for word in node.keywords}
        if called.endswith("kernel") and KEYWORDS & words.keys():
            found.append(f"line {node.lineno}: {called} with {words}")
    return found


def _is_part(name: str) -> bool:
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists()


def foreign_constants(name: str, text: str) -> list[str]:
    """What a file with kernels imports that may be compiled in, from files that are not hashed for
    the cache (`edgespec.system.sources.is_compiled`): constants, and modules, which have
    constants.
    """
    found = []
    for module, names in _imports(ast.parse(text), name):
        parts = module.split(".")[1:]
        if not module.startswith("edgespec") or is_compiled_file(Path(*parts)):
            continue
        for part in names:
            is_module = _is_part("/".join([*parts, part]))
            hashed = is_module and is_compiled_file(Path(*parts, part))
            if (is_module or part.lstrip("_").isupper()) and not hashed:
                found.append(f"imports {part} from {module}")
    return found


def is_compiled_file(module: Path) -> bool:
    name = module.parent / f"{module.stem}.py"
    path = PACKAGE / name
    return path.exists() and sources.is_compiled(name, path.read_bytes())


@pytest.mark.parametrize("name", [name for name in FILES if is_compiled_file(Path(name))])
def test_compiled_constants_are_part_of_the_key(name: str) -> None:
    assert foreign_constants(name, (PACKAGE / name).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        "from edgespec.memory.plan.plan import _LIMIT",
        "from edgespec.memory import plan",
        "from edgespec import engine",
    ],
)
def test_foreign_constants_are_noticed(text: str) -> None:
    assert foreign_constants("backends/native/kernels/x.py", text)


@pytest.mark.parametrize("name", [name for name in FILES if name != "system/numba_compiler.py"])
def test_only_one_file_names_jit_options(name: str) -> None:
    assert jit_offences(name, (PACKAGE / name).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        "from numba import njit",
        "import numba\n@numba.jit\ndef f(): pass",
        "from numba import cfunc",
        "kernel(fastmath=True)(f)",
    ],
)
def test_jit_offences_are_noticed(text: str) -> None:
    assert jit_offences("backends/x.py", text)
