"""What is written about EdgeSpec is checked, not remembered."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from edgespec.models.gguf.dequantise import SUPPORTED_TYPES
from edgespec.version import __version__
from tests.cli_runs import ROOT, edgespec, environment

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_changelog_begins_with_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+)", text, re.MULTILINE)
    assert newest is not None
    assert newest[1] == __version__


def test_the_package_has_one_version_and_one_licence() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" in project["dynamic"]
    assert project["license"] == "Apache-2.0"
    assert (ROOT / "edgespec" / "py.typed").is_file()
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in licence
    assert "END OF TERMS AND CONDITIONS" in licence


def test_the_readme_python_runs(bundled_model: Path) -> None:
    block = re.search(r"```python\n(.*?)```", readme(), re.DOTALL)
    assert block is not None
    program = block[1]
    assert len(program.strip().splitlines()) == 6
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment()
    )
    assert found.returncode == 0, found.stderr
    assert "budget" in found.stdout
    assert "tokens/s" in found.stdout


def test_the_readme_names_every_type() -> None:
    words = set(re.findall(r"\w+", readme()))
    assert words >= {kind.name for kind in SUPPORTED_TYPES}


def test_the_readme_commands_are_made() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\S+)", readme(), re.MULTILINE):
        assert f"\n{target}:" in makefile
    test_command = "make test"
    assert test_command in readme()
    assert f"\n{test_command} " in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_readme_shell_commands_exist() -> None:
    commands = set(re.findall(r"\bedgespec ([a-z]+)\b", readme()))
    listed = edgespec("--help").out
    for name in commands:
        assert f"\n  {name} " in listed, name


def test_the_command_line_page_is_up_to_date() -> None:
    place = ROOT / "docs" / "generate_cli.py"
    spec = importlib.util.spec_from_file_location("generate_cli", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PATH.read_text(encoding="utf-8") == module.render(), (
        "run: python docs/generate_cli.py"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_points_to_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    paths = re.findall(r"`((?:edgespec|tests|lab|docs)/[\w./-]+)`", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    missing += [path for path in paths if not (ROOT / path).exists()]
    assert missing == []


def test_the_model_card_is_in_the_package(bundled_model: Path) -> None:
    assert (bundled_model.parent / "MODEL_CARD.md").is_file()
    assert bundled_model.stat().st_size < 20 * 2**20
