"""Where does the time of a pass go, stage by stage?

    python -m lab.stages MODEL [--context 256] [--nodes 1,8,16] [--threads N] [--rounds 15]

The stages of a native model's program (`backends/native/program.py`) run one by one in the order of
a pass, so that each finds its weights in memory, not in a cache; their milliseconds are added up by
kind. `cached` is the first layer run as often as the model has layers, whose weights the caches
keep if they have room, and the head: what a pass takes longer than that, it waits for memory. For
models without states whose layers are of one kind.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any
from unittest.mock import patch

from edgespec.backends.native import stage_maker
from edgespec.backends.native.kernels import forward, table
from edgespec.system.addresses import Entry, address_of
from edgespec.system.entries import name_of
from edgespec.tools.bench.curve import OpenModel
from lab.harness import MODEL, THREADS, Asked, Rows, Script, Spread, option, rounds

script = Script(__doc__)


@contextmanager
def _naming() -> Iterator[dict[int, str]]:
    """The names of the entries that stages are made of meanwhile, by address."""
    names: dict[int, str] = {}

    def noting(entry: Entry) -> int:
        address = address_of(entry)
        names[address] = name_of(entry).rpartition(".")[2]
        return address

    with patch.object(stage_maker, "address_of", noting):
        yield names


@script.command(
    MODEL,
    option("--context", type=int, default=256),
    option("--nodes", default="1,8,16", help="tokens in a pass, by commas"),
    THREADS,
    rounds(15),
)
def stages(asked: Asked) -> Rows:
    """Milliseconds of each kind of stage in a pass."""
    nodes = [int(count) for count in asked.nodes.split(",")]
    with (
        _naming() as names,
        OpenModel(
            asked.model,
            threads=asked.threads,
            context=asked.context,
            max_nodes=max(nodes),
            progress=lambda *_: None,
        ) as model,
    ):
        target: Any = model.target  # the native backend's, which stages are no part of from outside
        program, team, head = target._program, target._team, target._head
        threads, starts = model.plan.threads, program.starts

        def seconds(first: int, last: int, from_head: tuple[int, int], num_rows: int) -> float:
            start = time.perf_counter()
            forward.run(  # type: ignore[no-untyped-call]
                team.table, first, last, *from_head, num_rows, 0, threads
            )
            return time.perf_counter() - start

        for count in nodes:
            found: dict[str, list[float]] = defaultdict(list)
            for _ in range(asked.rounds + 1):
                found["pass"].append(min(model.seconds(count)))
                target._tiles_entered = 0
                target._choose_tiles(count)
                layer = starts[0], starts[1]
                again = sum(seconds(*layer, (0, 0), count) for _ in starts[1:])
                found["cached"].append(again + seconds(0, 0, head, count))
                kinds: dict[str, float] = defaultdict(float)
                for stage in range(starts[0], starts[-1]):
                    name = names[int(program.words[stage, table.ENTRY])]
                    kinds[name] += seconds(stage, stage + 1, (0, 0), count)
                kinds["head"] = seconds(0, 0, head, count)
                for name, taken in kinds.items():
                    found[name].append(taken)
            own = {name: [1e3 * each for each in taken[1:]] for name, taken in found.items()}
            yield {
                "nodes": count,
                "pass, ms": Spread.of(own.pop("pass")),
                "cached": Spread.of(own.pop("cached")),
                **{name: median(taken) for name, taken in own.items()},
            }


if __name__ == "__main__":
    script.run()
