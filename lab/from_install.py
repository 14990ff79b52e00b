"""From `pip install` to the first streamed token of a downloaded model.

    python -m lab.from_install [WHEEL] [--model FILE]

Each step is what a person types, in an environment, a cache and a model folder of its own. The hub
is a server on this machine (`tests/support/hub_server.py`), so a download takes the disk's time
and not a network's. Packages come from the index that pip is set up for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from edgespec.models.registry import resolve
from lab.harness import ROOT, Asked, Rows, Script, option
from tests.support.hub_server import HubServer

NAME = "hf:somebody/a-model"
PROMPT = "Tell me a story."
Command = Sequence[str | Path]
script = Script(__doc__)


@script.command(
    option("wheel", nargs="?", default=str(ROOT), help="or a checkout, which is built first"),
    option("--model", type=Path, help="a GGUF file; the bundled one if left out"),
)
def install(asked: Asked) -> Rows:
    """Seconds of every step, and of all."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        served = root / "hub" / NAME.removeprefix("hf:")
        served.mkdir(parents=True)
        shutil.copy(asked.model or resolve(None), served)
        with HubServer(root / "hub").running() as hub:
            total = 0.0
            for step, seconds in _steps(root, asked.wheel, hub.environment()):
                total += seconds
                yield {"step": step, "s": seconds, "s, all": total}


def _steps(root: Path, wheel: str, hub: dict[str, str]) -> Iterator[tuple[str, float]]:
    """(what was typed, seconds until it ended, or until its first character)."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("EDGESPEC", "PY"))
    }
    environment |= hub | {
        "EDGESPEC_CACHE": str(root / "cache"),
        "EDGESPEC_DATA": str(root / "data"),
        "HF_HOME": str(root / "models"),
    }
    place = root / "venv"
    programs = place / ("Scripts" if os.name == "nt" else "bin")
    pull: Command = [programs / "edgespec", "pull", "--yes", NAME]
    run: Command = [programs / "edgespec", "run", "-m", NAME, "--seed", "1", "-n", "32", PROMPT]
    yield "python -m venv", _seconds([sys.executable, "-m", "venv", place], environment)
    install: Command = [programs / "python", "-m", "pip", "install", "--quiet", f"{wheel}[hub]"]
    yield "pip install", _seconds(install, environment)
    yield "edgespec pull", _seconds(pull, environment)
    for time_of in ("first", "second"):
        yield f"edgespec run, {time_of} start, to its first token", _seconds(run, environment, True)


def _seconds(command: Command, environment: dict[str, str], first: bool = False) -> float:
    """How long a command took to end, or to its first character; raises SystemExit if it fails."""
    start = time.perf_counter()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        found = process.stdout.read(1) if first else b""
        seconds = time.perf_counter() - start
        _, said = process.communicate()
    if process.returncode or (first and not found):
        raise SystemExit(f"{command[1]} failed: {said.decode(errors='replace')[-500:]}")
    return seconds if first else time.perf_counter() - start


if __name__ == "__main__":
    script.run()
