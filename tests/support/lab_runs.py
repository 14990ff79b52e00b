"""Running a script of `lab/` as a user would: no test imports that folder."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.command_line import ROOT, environment
from tests.support.hub_server import HubServer
from tests.support.random_models import MODELS, write


@dataclass(frozen=True)
class RealModels:
    """A hub of random models, a list of them, and the folder that runs write to."""

    hub: HubServer
    out: Path

    def publish(self, name: str, *, type: str = "F16") -> Path:
        """A random model of this name, in `random/NAME-GGUF`; returns its file."""
        folder = self.hub.folder / "random" / f"{name}-GGUF"
        folder.mkdir(parents=True)
        return write(MODELS[name](), folder / f"{name}-{type}.gguf", type=type)

    def list(self, *models: dict[str, str]) -> None:
        """Write the list; a model's `repo` and `file` are `random/ITS NAME-GGUF` and `*.gguf`."""
        self.out.mkdir(parents=True, exist_ok=True)
        text = ""
        for model in models:
            name = model["name"]
            usual = {"architecture": name, "repo": f"random/{name}-GGUF", "file": "*.gguf"}
            usual |= {"size": "5MB", "licence": "none", "why": "a test"}
            fields = (f"{key} = {json.dumps(value)}\n" for key, value in (usual | model).items())
            text += f"[[model]]\n{''.join(fields)}\n"
        (self.out / "list.toml").write_text(text, "utf-8")

    def run(self, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
        """`lab.real_models run` on the list."""
        usual = ("run", "--list", self.out / "list.toml", "--out", self.out)
        return run("real_models", *usual, *arguments, env=self.hub.environment() | env)

    def downloads(self) -> Sequence[Path]:
        """Whole files and parts of files that are kept."""
        return [path for path in (self.out / "models").rglob("*") if path.is_file()]

    def models(self) -> Sequence[dict[str, Any]]:
        """What the last run wrote."""
        found = json.loads((self.out / "table.json").read_text("utf-8"))
        models: Sequence[dict[str, Any]] = found["models"]
        return models


def run(
    script: str, *arguments: object, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`python -m lab.SCRIPT` with these arguments."""
    return subprocess.run(
        [sys.executable, "-m", f"lab.{script}", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment() | (env or {}),
        timeout=1200,
        check=False,
    )
