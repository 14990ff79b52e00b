"""What a package's source says of its shape: rooms, imports between them, sizes of what is in them.

A room is a folder or a module right below the package. Imports are read from the source, those
inside functions and those for types too; nothing is imported to find out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ORDER = (
    {"__main__"},
    {"cli"},
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
"""Each room imports from itself and from what comes after it."""
BESIDE = ("__init__", "__main__")
"""Names that every folder may have."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function or method, nested ones too."""

    where: str
    """File, line and name."""
    num_parameters: int
    num_lines: int


@dataclass(frozen=True)
class Module:
    """One file, read."""

    name: str
    """As it is imported: the package's own name first."""
    path: Path
    tree: ast.Module
    num_lines: int
    functions: tuple[Function, ...]
    imports: frozenset[str] = field(default_factory=frozenset)
    """Names of the package's modules that it imports."""

    @property
    def room(self) -> str:
        """The folder or module below the package that it belongs to."""
        return (self.name.split(".") + ["__init__"])[1]

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


@dataclass(frozen=True)
class House:
    """A package's modules by name."""

    root: Path
    modules: dict[str, Module]

    @classmethod
    def read(cls, root: Path) -> House:
        """Read every file below a package's folder."""
        paths = sorted(root.rglob("*.py"))
        names = {path: _module_name(root, path) for path in paths}
        known = set(names.values())
        modules = {names[path]: _module(root, path, names[path], known) for path in paths}
        return cls(root, modules)

    @property
    def rooms(self) -> list[str]:
        """Folders below the package."""
        return sorted({m.room for m in self.modules.values() if (self.root / m.room).is_dir()})

    @property
    def root_modules(self) -> list[str]:
        """Files that lie in the package's own folder."""
        return sorted(path.stem for path in self.root.glob("*.py"))

    @cached_property
    def arrows(self) -> frozenset[tuple[str, str]]:
        """(room, room that it imports from)."""
        pairs = (
            (module.room, self.modules[name].room)
            for module in self.modules.values()
            for name in module.imports
        )
        return frozenset((one, other) for one, other in pairs if one != other)

    @cached_property
    def circles(self) -> list[list[str]]:
        """Groups of modules that import each other, directly or by way of others."""
        edges = {name: module.imports for name, module in self.modules.items()}
        return [sorted(group) for group in _strongly_connected(edges) if len(group) > 1]

    @cached_property
    def upward(self) -> list[str]:
        """Imports against the order of rooms, as "module imports module"."""
        return [
            f"{module.name} imports {name}"
            for module in self.modules.values()
            for name in sorted(module.imports)
            if place(self.modules[name].room) < place(module.room)
        ]

    @property
    def functions(self) -> list[Function]:
        return [one for module in self.modules.values() for one in module.functions]

    @cached_property
    def same_names(self) -> dict[str, int]:
        """Names of files that occur more than once, and how often."""
        counts: dict[str, int] = {}
        for module in self.modules.values():
            counts[module.path.stem] = counts.get(module.path.stem, 0) + 1
        return {name: n for name, n in sorted(counts.items()) if n > 1 and name not in BESIDE}

    @property
    def num_lines(self) -> int:
        return sum(module.num_lines for module in self.modules.values())

    def classes(self) -> Iterator[tuple[str, ast.ClassDef]]:
        """Every class with the name of its module."""
        for module in self.modules.values():
            for node in ast.walk(module.tree):
                if isinstance(node, ast.ClassDef):
                    yield module.name, node


def place(room: str) -> int:
    """Where a room stands in the order; raises ValueError for one that has no place yet."""
    for index, rooms in enumerate(ORDER):
        if room in rooms:
            return index
    raise ValueError(f"{room} has no place yet: give it one in ORDER")


def imported(tree: ast.AST, package: str) -> Iterator[tuple[str, list[str]]]:
    """(module, names) of every import in a module of this package; relative ones are resolved."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            yield module, [alias.name for alias in node.names]


def _module_name(root: Path, path: Path) -> str:
    parts = [root.name, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _module(root: Path, path: Path, name: str, known: set[str]) -> Module:
    text = path.read_text("utf-8")
    tree = ast.parse(text)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for module, names in imported(tree, package):
        parts = {f"{module}.{part}" for part in names}
        found |= parts & known or {module} & known
    found -= {name}
    where = path.relative_to(root.parent).as_posix()
    functions = tuple(
        Function(f"{where}:{node.lineno} {node.name}", _count(node.args), _length(node))
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return Module(name, path, tree, text.count("\n"), functions, frozenset(found))


def _count(arguments: ast.arguments) -> int:
    return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _strongly_connected(edges: dict[str, frozenset[str]]) -> list[list[str]]:
    """Kosaraju's algorithm, without recursion."""
    order: list[str] = []
    seen: set[str] = set()
    for start in edges:
        if start in seen:
            continue
        seen.add(start)
        stack = [(start, iter(edges[start]))]
        while stack:
            name, coming = stack[-1]
            child = next((other for other in coming if other not in seen), None)
            if child is None:
                order.append(name)
                stack.pop()
            else:
                seen.add(child)
                stack.append((child, iter(edges[child])))
    back: dict[str, list[str]] = {name: [] for name in edges}
    for name, targets in edges.items():
        for target in targets:
            back[target].append(name)
    groups: list[list[str]] = []
    grouped: set[str] = set()
    for name in reversed(order):
        if name in grouped:
            continue
        group, waiting = [], [name]
        grouped.add(name)
        while waiting:
            one = waiting.pop()
            group.append(one)
            fresh = [other for other in back[one] if other not in grouped]
            grouped.update(fresh)
            waiting += fresh
        groups.append(group)
    return groups
