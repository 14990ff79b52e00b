from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.errors import ModelFileError
from edgespec.models import registry
from edgespec.models.registry import resolve
from tests.support.gguf_models import write_gguf


@pytest.fixture
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bundled"
    folder.mkdir()
    file = folder / registry.BUNDLED[registry.DEFAULT]
    file.touch()
    monkeypatch.setattr(registry, "_FOLDER", folder)
    empty = tmp_path / "here"
    empty.mkdir()
    monkeypatch.chdir(empty)
    return file


def test_names_and_paths(bundled: Path) -> None:
    assert resolve() == resolve(None) == resolve("edgespec-tiny") == bundled
    assert resolve(bundled) == resolve(str(bundled)) == bundled


def test_an_existing_path_wins(bundled: Path) -> None:
    Path("edgespec-tiny").touch()
    assert resolve("edgespec-tiny") == Path("edgespec-tiny")


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("edgespec-tinny", "did you mean edgespec-tiny"),
        ("smolm-135m.gguf", "did you mean smollm-135m.gguf"),
        ("quite-another", "or a name that `edgespec list` shows"),
    ],
)
def test_did_you_mean(bundled: Path, asked: str, hint: str) -> None:
    write_gguf(Path("smollm-135m.gguf"))
    Path("smolm-135.gguf").touch()  # no model, so not suggested however near its name is
    with pytest.raises(ModelFileError, match=f"cannot find the model '{asked}'.*") as caught:
        resolve(asked)
    assert hint in str(caught.value)
    assert "smolm-135.gguf" not in str(caught.value)


def test_a_bundled_model_that_is_not_installed(bundled: Path) -> None:
    bundled.unlink()
    with pytest.raises(ModelFileError, match="is not in this installation"):
        resolve()
