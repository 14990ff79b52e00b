"""The shape of the house: imports go one way and in no circle, and nothing grows without end."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.house import BESIDE, House, imported, place

ROOT = Path(__file__).parents[1]
MOST_LINES = 400
MOST_PARAMETERS = 12
ROOT_MODULES = {"__init__", "__main__", "cli", "errors", "version"}


@pytest.fixture(scope="module")
def house() -> House:
    return House.read(ROOT / "edgespec")


def test_imports_go_one_way(house: House) -> None:
    assert house.upward == []


def test_imports_make_no_circle(house: House) -> None:
    assert house.circles == []


def test_no_file_is_too_long(house: House) -> None:
    modules = house.modules.values()
    assert [module.name for module in modules if module.num_lines > MOST_LINES] == []


@pytest.mark.parametrize("folder", ["lab", "training", "tests/support"])
def test_no_file_beside_the_package_is_too_long(folder: str) -> None:
    files = (ROOT / folder).glob("*.py")
    assert [f.name for f in files if f.read_text("utf-8").count("\n") > MOST_LINES] == []


def test_no_function_takes_too_much(house: House) -> None:
    wide = [one.where for one in house.functions if one.num_parameters > MOST_PARAMETERS]
    assert wide == []


def test_few_modules_lie_at_the_root(house: House) -> None:
    assert set(house.root_modules) <= ROOT_MODULES


def test_tests_do_not_need_the_lab() -> None:
    """And the package needs neither."""
    for folder, strangers in (
        ("tests", {"lab"}),
        ("edgespec", {"lab", "tests", "training"}),
        ("training", {"lab", "tests"}),
    ):
        for path in (ROOT / folder).rglob("*.py"):
            found = {module.split(".")[0] for module in _imports(path)}
            assert not found & strangers, f"{path} imports {found & strangers}"


def _imports(path: Path) -> Iterator[str]:
    package = ".".join(path.relative_to(ROOT).parent.parts)
    for module, _ in imported(ast.parse(path.read_text("utf-8")), package):
        yield module


def test_a_circle_is_noticed(tmp_path: Path) -> None:
    """By way of a third module, and inside a function."""
    _write(
        tmp_path / "edgespec",
        {
            "engine/a.py": "from edgespec.engine.b import x",
            "engine/b.py": "def f():\n    from . import c",
            "engine/c.py": "import edgespec.engine.a",
            "engine/d.py": "from edgespec.engine import a",
        },
    )
    names = [f"edgespec.engine.{name}" for name in "abc"]
    assert House.read(tmp_path / "edgespec").circles == [names]


@pytest.mark.parametrize(
    "text",
    [
        "from edgespec.engine.a import Engine",
        "import edgespec.engine.a",
        "from edgespec.engine import a",
        "def f():\n    from ..engine import a",
        "from edgespec import cli",
        "from edgespec import load",
        "from ..engine.a import (\n    b,\n)",
    ],
)
def test_an_upward_import_is_noticed(text: str, tmp_path: Path) -> None:
    files = {"engine/a.py": "", "cli.py": "", "models/x.py": text}
    _write(tmp_path / "edgespec", files)
    assert len(House.read(tmp_path / "edgespec").upward) == 1


def test_a_downward_import_is_none(tmp_path: Path) -> None:
    _write(
        tmp_path / "edgespec", {"engine/a.py": "from edgespec.models import x", "models/x.py": ""}
    )
    found = House.read(tmp_path / "edgespec")
    assert (found.upward, found.circles, found.arrows) == ([], [], {("engine", "models")})


def test_rooms_have_places(house: House) -> None:
    for room in (*house.rooms, *house.root_modules):
        place(room)
    with pytest.raises(ValueError, match="attic has no place yet"):
        place("attic")
    assert "__init__" in BESIDE


def _write(root: Path, files: dict[str, str]) -> None:
    """A package of these files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for folder in {root, *(root / Path(name).parent for name in files)}:
        (folder / "__init__.py").touch()
