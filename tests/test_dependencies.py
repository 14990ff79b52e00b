"""What EdgeSpec is made of: licences of what it depends on, hashes of what it is developed with,
and no format that runs code when it is read.
"""

from __future__ import annotations

import ast
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PERMISSIVE = re.compile(
    r"\b(MIT|BSD|Apache|ISC|PSF|Python Software Foundation|Zlib|HPND|0BSD|Unlicense|CC0|MPL|CNRI)\b"
    r"|Mozilla Public License 2",
    re.IGNORECASE,
)
"""MPL-2.0 covers its own files alone."""
COPYLEFT = re.compile(r"\b(A|L)?GPL", re.IGNORECASE)
LOADERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def _needed() -> dict[str, metadata.Distribution]:
    """Installed distributions that EdgeSpec needs, with or without extras, and what they need."""
    needs = re.findall(r'"([A-Za-z0-9_-]+)>=', (ROOT / "hatch_build.py").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    for extra in set(extras) - {"dev", "train"}:
        needs += [_NAME.match(text)[0] for text in extras[extra]]  # type: ignore[index]
    found: dict[str, metadata.Distribution] = {}
    waiting = [name for name in needs if name != "edgespec"]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # of an extra or a system that is not here
        for text in found[name].requires or ():
            if "extra ==" not in text:
                waiting.append(_NAME.match(text)[0])  # type: ignore[index]
    return found


def _licence(distribution: metadata.Distribution) -> str:
    about = distribution.metadata
    classified = [text for text in about.get_all("Classifier") or () if text.startswith("License")]
    told = [about.get("License-Expression"), *classified, about.get("License")]
    return "; ".join(text[:200] for text in told if text)


def test_all_licences_let_everybody_use_it() -> None:
    found = {name: _licence(one) for name, one in _needed().items()}
    assert {"numpy", "typer", "tokenizers", "numba", "psutil"} <= set(found)
    bad = {
        name: text
        for name, text in found.items()
        if not PERMISSIVE.search(text) or (COPYLEFT.search(text) and " OR " not in text)
    }
    assert not bad


def test_everything_that_is_developed_with_has_a_hash() -> None:
    """`make lock` writes the file."""
    lines = (ROOT / "requirements-dev.lock").read_text("utf-8").splitlines()
    packages = [line for line in lines if line and not line.startswith((" ", "#"))]
    locked = {_NAME.match(line)[0].lower() for line in packages}  # type: ignore[index]
    for line in packages:
        assert "==" in line and line.endswith("\\"), line
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", x) for x in lines if x.startswith(" "))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    direct = {
        _NAME.match(text)[0].lower()  # type: ignore[index]
        for text in project["optional-dependencies"]["dev"]
    }
    needs = re.findall(r'"([a-z0-9_]+)>=', (ROOT / "hatch_build.py").read_text("utf-8"))
    wanted = {name.replace("_", "-") for name in (direct | set(needs)) - {"edgespec"}}
    assert wanted <= {name.replace("_", "-") for name in locked}


@pytest.mark.parametrize("folder", ["edgespec", "training", "lab"])
def test_nothing_reads_a_format_that_runs_code(folder: str) -> None:
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not {name.partition(".")[0] for name in names} & LOADERS, path
            if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "weights_only"):
                value = getattr(node.value, "value", None)
                assert value is (node.arg == "weights_only"), path
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                assert "weights_only" in {one.arg for one in node.keywords}, path
