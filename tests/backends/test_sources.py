"""What the sources may say: JIT options in one place, imports in one direction."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgespec.system import disk_cache

PACKAGE = Path(__file__).parents[2] / "edgespec"
FILES = [str(path.relative_to(PACKAGE)) for path in sorted(PACKAGE.rglob("*.py"))]
OPTIONS = {"jit", "njit", "cfunc", "vectorize", "guvectorize", "stencil", "generated_jit"}
"""Numba's decorators that take compile options."""
KEYWORDS = {"parallel", "fastmath", "nogil", "boundscheck", "error_model", "cache"}
PLACES = (
    {"cli", "__main__"},
    {"terminal", "server"},
    {"tools"},
    {"loading", "__init__"},
    {"engine"},
    {"control"},
    {"drafting"},
    {"verification"},
    {"backends"},
    {"memory"},
    {"models"},
    {"system"},
    {"errors", "version"},
)
"""Each imports from itself and from what comes after it."""


def _imports(tree: ast.Module, name: str) -> Iterator[tuple[str, list[str]]]:
    """(module, names) of every import of a file, those inside functions too."""
    package = ["edgespec", *Path(name).parts[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            yield ".".join([*above, *filter(None, [node.module])]), [a.name for a in node.names]


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


def import_offences(name: str, text: str) -> list[str]:
    """Imports of a file that go up, from what stands further right to further left."""
    here, found = _place(Path(name).parts[0].removesuffix(".py")), []
    for module, names in _imports(ast.parse(text), name):
        parts = module.split(".")
        if parts[0] != "edgespec":
            continue
        below = parts[1:2] or [part for part in names if _is_part(part)] or ["__init__"]
        found += [f"imports {module}: {part}" for part in below if _place(part) < here]
    return found


def _is_part(name: str) -> bool:
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists()


def _place(part: str) -> int:
    for index, parts in enumerate(PLACES):
        if part in parts:
            return index
    raise AssertionError(f"edgespec.{part} has no place yet: give it one in PLACES")


def foreign_constants(name: str, text: str) -> list[str]:
    """What a file with kernels imports that may be compiled in, from files that are not hashed for
    the cache (`edgespec.system.disk_cache.is_compiled`): constants, and modules, which have
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
    return path.exists() and disk_cache.is_compiled(name, path.read_bytes())


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


@pytest.mark.parametrize("name", [name for name in FILES if name != "system/jit.py"])
def test_only_one_file_names_jit_options(name: str) -> None:
    assert jit_offences(name, (PACKAGE / name).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", FILES)
def test_imports_go_one_way(name: str) -> None:
    assert import_offences(name, (PACKAGE / name).read_text(encoding="utf-8")) == []


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


@pytest.mark.parametrize(
    "text",
    [
        "from edgespec.engine.engine import Engine",
        "import edgespec.cli",
        "from edgespec import control",
        "def f():\n    from ..backends import base",
    ],
)
def test_import_offences_are_noticed(text: str) -> None:
    assert import_offences("models/x.py", text)
