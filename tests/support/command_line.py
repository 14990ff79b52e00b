"""Running the command line as a user would: a process, its whole output, its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Finished:
    """What a run left."""

    code: int
    out: str
    err: str

    def assert_refused(self, code: int, *words: str) -> None:
        """One sentence on stderr that holds these words, nothing on stdout, this exit code."""
        assert self.code == code, self
        assert self.out == "", self
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("edgespec: "), self.err
        for word in words:
            assert word in lines[0], self.err


def edgespec(
    *arguments: object, stdin: bytes | None = None, cwd: Path | None = None, **env: str
) -> Finished:
    """Run `edgespec` with these arguments; `env` adds to the environment."""
    found = subprocess.run(
        [sys.executable, "-m", "edgespec", *map(str, arguments)],
        input=stdin if stdin is not None else b"",
        capture_output=True,
        cwd=cwd,
        env=environment() | env,
        timeout=300,
    )
    return Finished(found.returncode, found.stdout.decode(), found.stderr.decode())


def environment() -> dict[str, str]:
    """This process's variables and the checkout, without what changes EdgeSpec's words."""
    dropped = ("EDGESPEC_DEBUG", "EDGESPEC_ISA", "COLUMNS", "FORCE_COLOR")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    nowhere = str(ROOT / "no-config.toml")
    return kept | {
        "PYTHONPATH": str(ROOT), "EDGESPEC_PROGRESS": "0", "EDGESPEC_CONFIG": nowhere,
    }  # fmt: skip
