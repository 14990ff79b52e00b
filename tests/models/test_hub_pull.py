"""`edgespec pull`, `list`, `rm` and `plan` against a hub on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from edgespec.models.registry import resolve
from tests.support.hub_server import Faults, HubServer

REFERENCE = "hf:org/tiny-GGUF"


@dataclass
class Machine:
    """A machine with empty folders, a hub, and a command line."""

    hub: HubServer
    folder: Path

    def edgespec(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        own = {"HF_HOME": str(self.folder / "hf"), "EDGESPEC_DATA": str(self.folder / "data")}
        found = subprocess.run(
            [sys.executable, "-m", "edgespec", *arguments],
            env=os.environ | self.hub.environment() | own,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert found.returncode == code, found.stderr
        assert "Traceback" not in found.stderr
        return found

    def bytes_asked(self) -> list[str]:
        return [one.range for one in self.hub.asked if one.path.startswith("/bytes/")]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    repo = tmp_path / "hub" / "org" / "tiny-GGUF"
    repo.mkdir(parents=True)
    shutil.copyfile(resolve("edgespec-draft"), repo / "tiny-Q8_0.gguf")
    (repo / "README.md").write_text("a model")
    with HubServer(tmp_path / "hub", faults=Faults()).running() as hub:
        yield Machine(hub, tmp_path)


def test_from_pull_to_reply_to_rm(machine: Machine) -> None:
    """The plan is told first and fetches the header alone; other programs find the file."""
    plan = json.loads(machine.edgespec("plan", REFERENCE, "--json").stdout)
    size = resolve("edgespec-draft").stat().st_size
    assert plan["planned_bytes"] > 0
    assert machine.bytes_asked() and all(
        "-" in one and one[-1] != "-" for one in machine.bytes_asked()
    )

    refused = machine.edgespec("run", "-m", REFERENCE, "Hello", code=1)
    assert f"download it with `edgespec pull {REFERENCE}`" in refused.stderr

    pulled = machine.edgespec("pull", REFERENCE, "--yes", "--name", "mine")
    assert "fits in" in pulled.stderr and "tokens/s" in pulled.stderr
    path = Path(pulled.stdout.strip())
    assert path.read_bytes() == resolve("edgespec-draft").read_bytes()
    assert path.resolve().parent.name == "blobs" or not path.is_symlink()
    script = (
        "from huggingface_hub import try_to_load_from_cache as find\n"
        "print(find('org/tiny-GGUF', 'tiny-Q8_0.gguf'))"
    )
    seen = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"HF_HOME": str(machine.folder / "hf")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(seen.stdout.strip()) == path

    rows = json.loads(machine.edgespec("list", "--json").stdout)
    assert ("mine", size) in [(row["name"], row["size_bytes"]) for row in rows]
    for name in ("mine", REFERENCE, f"{REFERENCE}:Q8_0"):
        assert (
            json.loads(machine.edgespec("show", name, "--json").stdout)["architecture"] == "llama"
        )

    machine.edgespec("rm", "mine", code=2)
    assert "freed" in machine.edgespec("rm", "mine", "--yes").stdout
    assert not path.exists() and not path.resolve().exists()
    assert "mine" not in machine.edgespec("list").stdout


def test_a_cut_download_goes_on(machine: Machine) -> None:
    machine.hub.faults.cuts = 3
    path = machine.edgespec("pull", REFERENCE, "--yes", "--no-plan").stdout.strip()
    assert Path(path).read_bytes() == resolve("edgespec-draft").read_bytes()
    begins = [int(one.removeprefix("bytes=").rstrip("-") or 0) for one in machine.bytes_asked()]
    assert len(begins) == 4 and begins == sorted(begins)
    machine.hub.asked.clear()
    machine.edgespec("pull", REFERENCE, "--yes", "--no-plan")
    assert machine.bytes_asked() == [], "it is here"


def test_wrong_bytes_are_refused(machine: Machine) -> None:
    machine.hub.faults.damaged = "tiny"
    refused = machine.edgespec("pull", REFERENCE, "--yes", "--no-plan", code=1)
    assert "sent other bytes of tiny-Q8_0.gguf than it lists" in refused.stderr
    assert not [one for one in (machine.folder / "hf").rglob("*") if one.is_file()
                and one.stat().st_size > 1000]  # fmt: skip


def test_what_does_not_fit_is_told_before_the_download(machine: Machine) -> None:
    refused = machine.edgespec("pull", REFERENCE, "--yes", "--memory", "60MiB", code=1)
    assert "org/tiny-GGUF Q8_0" in refused.stderr
    assert not list((machine.folder / "hf").rglob("*.part"))


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("hf:org/nothing", 1, "cannot list org/nothing"),
        ("hf:org/tiny-GGUF:Q2_K", 1, "no model called Q2_K; choose with"),
        ("no-such-name", 2, "cannot pull 'no-such-name'"),
        ("hf:../tiny", 2, "cannot read the model name"),
    ],
)
def test_other_names_get_a_sentence(machine: Machine, name: str, code: int, words: str) -> None:
    said = machine.edgespec("pull", name, "--yes", code=code).stderr
    assert words in said and said.count("\n") == 1


def test_nobody_is_asked_without_a_terminal(machine: Machine) -> None:
    assert "add --yes" in machine.edgespec("pull", REFERENCE, "--no-plan", code=2).stderr


def test_recommended_models_are_listed(machine: Machine) -> None:
    shown = machine.edgespec("list", "--recommended").stdout
    assert "qwen3-4b" in shown and "Apache-2.0" in shown
    assert machine.hub.asked == []
