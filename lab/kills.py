"""Is anything lost that a command acknowledged, wherever it is killed?

    python -m lab.kills kill [--times 112] [--only batch,export] [--seed 1] [--out FILE]
    python -m lab.kills interrupt [--times 20] [--only ...]

`kill`: kill -9 for every command that writes, at moments of chance (tests/support/kills.py): nine
of them, so 112 kills each are more than 1,000. `interrupt`: Ctrl-C and SIGTERM, after which they
end soon and say no more than that. With --out finished commands are remembered.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from lab.harness import Asked, Option, Records, Rows, Script, names, option
from tests.support.killed_work import KINDS, write_model
from tests.support.kills import Killed, Work, interrupted, killed

script = Script(__doc__)


ONLY = option("--only", type=names, default=[], help="commands whose names begin so")
SEED = option("--seed", type=int, default=1)
OUT = option("--out", type=Path)


def times(count: int) -> Option:
    return option("--times", type=int, default=count, help="of each command")


@script.command(times(112), ONLY, SEED, OUT)
def kill(asked: Asked) -> Rows:
    """Kills of each command, and what was lost. Exit code 1: something was."""
    yield from _rows(asked, killed)


@script.command(times(20), ONLY, SEED, OUT)
def interrupt(asked: Asked) -> Rows:
    """Signals to each command, and what went wrong. Exit code 1: something did."""
    yield from _rows(asked, interrupted)


def _rows(asked: Asked, end: Callable[[Work, int, int], Killed]) -> Rows:
    records, lost, total = Records(asked.out), 0, 0
    for kind in KINDS:
        if asked.only and not kind.name.startswith(tuple(asked.only)):
            continue
        make = partial(_ended, end, kind, asked.times, asked.seed)
        found = records.get((end.__name__, kind.name, asked.times, asked.seed), make)
        lost, total = lost + len(found["lost"]), total + found["kills"]
        yield found | {"lost": len(found["lost"])}
        for why in found["lost"]:
            script.note(f"{kind.name}: {why}")
    script.check(not lost, f"{lost} faults in {total} runs that were ended")


def _ended(
    end: Callable[[Work, int, int], Killed], kind: type[Work], times: int, seed: int
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        work = kind(Path(folder) / "work", write_model(Path(folder) / "model"))
        try:
            return asdict(end(work, times, seed))
        finally:
            work.close()


if __name__ == "__main__":
    script.run()
