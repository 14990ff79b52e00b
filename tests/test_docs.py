"""What is written about EdgeSpec is checked, not remembered."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgespec as edgespec_package
from edgespec.models.gguf.dequantise import SUPPORTED_TYPES
from edgespec.version import __version__
from tests.support.command_line import ROOT, edgespec, environment

DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *sorted(DOCS.glob("*.md")),
    *sorted(DOCS.glob("decisions/*.md")),
    *sorted(DOCS.glob("reference/*.md")),
    DOCS / "lab" / "README.md",
    DOCS / "training" / "README.md",
]
"""What is said about the code as it is."""
RECORDS = sorted(DOCS.glob("lab/2*.md"))
"""What was measured on a day; the code that they name may be gone."""
LARGEST_BYTES = {"README.md": 7_168, "docs/performance.md": 15_360, "docs/cli.md": 22_528}
PAGE_BYTES = 10_240
LINE_COLUMNS = 120
GENERATED = [DOCS / "cli.md", *sorted(DOCS.glob("reference/*.md"))]
WIDE = [*GENERATED, DOCS / "README.md", DOCS / "comparison.md"]
"""Tables whose rows are longer."""


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def snippets(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(page: Path) -> Iterator[list[str]]:
    """Every command of a page's shell snippets, as words; parts of a pipe are commands too."""
    for block in snippets(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while "|" in words:
                place = words.index("|")
                yield words[:place]
                words = words[place + 1 :]
            if words:
                yield words


@functools.cache
def help_of(*command: str) -> str:
    found = edgespec(*command, "--help", COLUMNS="200")
    assert found.code == 0, (command, found.err)
    return found.out


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


def test_the_readme_says_how_to_run_the_tests() -> None:
    test_command = "make test"
    assert test_command in readme()
    assert f"\n{test_command} " in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_of_a_page_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for words in commands(page):
        program, *arguments = words
        if program == "make":
            assert f"\n{arguments[0]}:" in makefile, words
        elif program == "python" and arguments[0] == "-m":
            module = ROOT / arguments[1].replace(".", "/")
            assert (
                arguments[1] in ("pytest", "venv")
                or module.is_dir()
                or module.with_suffix(".py").exists()
            )
            paths = [word for word in arguments[2:] if word.startswith("tests/")]
            assert all((ROOT / path).exists() for path in paths), words
        elif program == "python":
            assert (ROOT / arguments[0]).is_file(), words


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_lab_commands_of_a_page_parse(page: Path) -> None:
    """Those in the text of a page too, but for a script that is only named."""
    text = page.read_text(encoding="utf-8")
    in_text = [
        shlex.split(" ".join(line.split())) for line in re.findall(r"`(python -m[^`]+)`", text)
    ]
    found = [
        words for words in [*commands(page), *in_text] if re.match(r"lab\.\w", " ".join(words[2:3]))
    ]
    for words in found:
        script = getattr(importlib.import_module(words[2]), "script", None)
        if script is not None and (words[3:] or words not in in_text):
            script.parser().parse_args(words[3:])


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_edgespec_commands_of_a_page_parse(page: Path) -> None:
    for words in commands(page):
        if words[0] != "edgespec":
            continue
        command = words[1:2]
        assert f"\n  {command[0]} " in help_of(), words
        if words[2:3] and re.search(rf"^  {re.escape(words[2])}  ", help_of(*command), re.M):
            command = words[1:3]  # a command of a group, such as `prefix save`
        known = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", help_of(*command)))
        options = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert options <= known, (words, options - known)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_named_in_the_text_of_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in set(re.findall(r"`edgespec ([a-z]+)\b", text)):
        assert f"\n  {name} " in help_of(), name


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_python_of_a_page_compiles_and_finds_what_it_imports(page: Path) -> None:
    for block in snippets(page, "python"):
        tree = ast.parse(block)
        imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        exec(compile(ast.Module(imports, []), str(page), "exec"), {})


@pytest.mark.parametrize("page", [*PAGES, *RECORDS], ids=page_name)
def test_links_of_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if heading:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {anchor(found) for found in headings}, link


def anchor(heading: str) -> str:
    """The name under which a heading can be linked to, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_paths_of_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    paths = re.findall(r"`((?:edgespec|examples|tests|lab|docs|training)/[\w./-]*)`", text)
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_a_page_is_short(page: Path) -> None:
    assert page.stat().st_size <= LARGEST_BYTES.get(page_name(page), PAGE_BYTES)


@pytest.mark.parametrize("page", [p for p in PAGES if p not in WIDE], ids=page_name)
def test_lines_of_a_page_are_short(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    long = [line for line in lines if len(line) > LINE_COLUMNS]
    assert long == []


def test_every_record_is_listed() -> None:
    listed = (DOCS / "lab" / "README.md").read_text(encoding="utf-8")
    assert [record.name for record in RECORDS if f"({record.name})" not in listed] == []


def test_every_page_is_listed() -> None:
    listed = (DOCS / "README.md").read_text(encoding="utf-8")
    pages = {page.relative_to(DOCS).as_posix() for page in PAGES if DOCS in page.parents}
    below = {name for name in pages if name.startswith("decisions/")} | {"README.md"}
    assert [name for name in sorted(pages - below) if f"({name})" not in listed] == []


def script_of_docs(name: str) -> Any:
    """A program in docs/ that writes pages."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_command_line_page_is_up_to_date() -> None:
    module = script_of_docs("generate_cli")
    assert module.PATH.read_text(encoding="utf-8") == module.render(), (
        "run: python docs/generate_cli.py"
    )


def test_the_reference_is_up_to_date() -> None:
    module = script_of_docs("generate_reference")
    pages = module.render()
    assert {path.name for path in pages} == {path.name for path in module.FOLDER.glob("*.md")}
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, "run: python docs/generate_reference.py"


def test_the_reference_names_all_that_is_exported() -> None:
    text = "".join(script_of_docs("generate_reference").render().values())
    names = set(edgespec_package.__all__) - {"__version__"}
    assert [name for name in sorted(names) if name not in text] == []


def test_the_model_card_is_in_the_package(bundled_model: Path) -> None:
    assert (bundled_model.parent / "MODEL_CARD.md").is_file()
    assert bundled_model.stat().st_size < 20 * 2**20


def test_every_feature_that_is_claimed_names_its_test() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (DOCS / "comparison.md").read_text("utf-8").splitlines()
        if line.startswith("| ")
    ]
    claimed = [row[0] for row in rows if row[1].startswith(("yes", "part"))]
    held = {row[0]: row[1:] for row in rows if row[1].endswith(".py`")}
    assert list(held) == claimed
    for file, test in held.values():
        text = (ROOT / file.strip("`")).read_text("utf-8")
        assert re.search(rf"^(async )?def {test.strip('`')}\(", text, re.MULTILINE), (file, test)
