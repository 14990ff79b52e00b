"""The shape of the house: rooms, imports, sizes, in one or more checkouts side by side.

    python -m lab.house [CHECKOUT ...] [--json] [--where]

What the limits are is said by `tests/test_house.py`.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections import deque
from pathlib import Path
from typing import Any

from tests.support.house import House

REPLY_CLASSES = {
    "Generation", "KvTraffic", "Reply", "ReplyStats", "ReplyStream", "Request", "Run", "Session",
    "Slot", "Stats", "Stream", "Writer", "Writing",
}  # fmt: skip
"""What has held one reply, or a part of it, since the beginning."""
LOOPS = {"decode", "decode_together"}
"""The generators whose verbs are draft, verify, commit."""
SCRIPTS = ("lab", "benchmarks")


def shape(checkout: Path) -> dict[str, Any]:
    """Every figure of one checkout."""
    house = House.read(checkout / "edgespec")
    widest = max(house.functions, key=lambda one: one.num_parameters)
    longest = max(house.functions, key=lambda one: one.num_lines)
    file = max(house.modules.values(), key=lambda module: module.num_lines)
    scripts = [checkout / name for name in SCRIPTS if (checkout / name).is_dir()]
    return {
        "modules": len(house.modules),
        "modules at the root": len(house.root_modules),
        "rooms": len(house.rooms),
        "arrows between rooms": len(house.arrows),
        "imports against the order": _upward(house),
        "circles of imports": len(house.circles),
        "names used twice": len(house.same_names),
        "most parameters": widest.num_parameters,
        "functions with more than 12": sum(one.num_parameters > 12 for one in house.functions),
        "longest function": longest.num_lines,
        "longest file": file.num_lines,
        "classes of one reply": sum(
            name in REPLY_CLASSES and module.split(".")[1] != "tools"
            for module, name in ((module, node.name) for module, node in house.classes())
        ),
        "places that assign finish_reason": _assigned(house, "finish_reason"),
        "calls from generate to the loop": hops(house, "generate", LOOPS),
        "lines of the package": house.num_lines,
        "lines of tests": _lines(checkout / "tests"),
        "lines of scripts": sum(map(_lines, scripts)),
        "scripts": sum(1 for folder in scripts for _ in folder.glob("*.py")),
        "bytes of docs": sum(p.stat().st_size for p in (checkout / "docs").rglob("*.md")),
    }


def where(checkout: Path) -> dict[str, list[str]]:
    """What the worst figures are about."""
    house = House.read(checkout / "edgespec")
    wide = sorted(house.functions, key=lambda one: -one.num_parameters)
    long = sorted(house.functions, key=lambda one: -one.num_lines)
    files = sorted(house.modules.values(), key=lambda module: -module.num_lines)
    return {
        "circles": [", ".join(group) for group in house.circles],
        "names twice": [f"{name} x{count}" for name, count in house.same_names.items()],
        "parameters": [f"{f.num_parameters} {f.where}" for f in wide if f.num_parameters > 12],
        "functions": [f"{f.num_lines} {f.where}" for f in long[:8]],
        "files": [f"{module.num_lines} {module.name}" for module in files[:8]],
    }


def hops(house: House, start: str, goals: set[str]) -> int | None:
    """Calls from one function to any of others: the shortest way by names inside their rooms.

    A name stands for every function of that name, so this is the least it can be.
    """
    calls: dict[str, set[str]] = {}
    rooms = {"engine", "control", *house.root_modules}
    for module in house.modules.values():
        for node in ast.walk(module.tree) if module.room in rooms else ():
            if isinstance(node, ast.FunctionDef):
                calls.setdefault(node.name, set()).update(_called(node))
    ways, seen = deque([(start, 0)]), {start}
    while ways:
        name, length = ways.popleft()
        if name in goals:
            return length
        fresh = (calls.get(name, set()) & calls.keys()) - seen
        seen |= fresh
        ways += [(other, length + 1) for other in sorted(fresh)]
    return None


def _called(function: ast.FunctionDef) -> set[str]:
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            found.add(ast.unparse(node.func).rpartition(".")[2])
    return found


def _upward(house: House) -> int | None:
    """None where rooms have other names."""
    try:
        return len(house.upward)
    except ValueError:
        return None


def _assigned(house: House, name: str) -> int:
    """Assignments to an attribute of this name, and arguments that set it."""
    count = 0
    for module in house.modules.values():
        for node in ast.walk(module.tree):
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.Call):
                count += any(word.arg == name for word in node.keywords)
            count += sum(isinstance(one, ast.Attribute) and one.attr == name for one in targets)
    return count


def _lines(folder: Path) -> int:
    return sum(path.read_text("utf-8").count("\n") for path in folder.rglob("*.py"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", nargs="*", type=Path, default=[Path()], metavar="CHECKOUT")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--where", action="store_true", help="name the worst, too")
    asked = parser.parse_args()
    found = {str(path): shape(path) for path in asked.checkouts}
    if asked.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{'':<34}" + "".join(f"{name[-16:]:>18}" for name in found))
    for name in next(iter(found.values())):
        cells = (figures[name] for figures in found.values())
        print(f"{name:<34}" + "".join(f"{'-' if n is None else format(n, ','):>18}" for n in cells))
    for path in asked.checkouts if asked.where else ():
        for what, names in where(path).items():
            print(f"\n{path}: {what}", *names, sep="\n  ")


if __name__ == "__main__":
    main()
