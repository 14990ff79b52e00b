"""What passes over a large file cost, as its first layers foretell it and as they turn out.

    python -m lab.layer_trials MODEL... [--backends native,llamacpp] [--threads N]
        [--rounds 5] [--clock wall|processor]

The whole file is opened in this process, and must fit. With `--clock processor` and one thread, the
figures hold beside other work. `ratio` is foretold / found.
"""

from __future__ import annotations

import time

import edgespec
from edgespec.backends import measure_layers, pass_times
from edgespec.backends import registry as backends
from edgespec.backends.base import Target
from edgespec.backends.passes import Rows as LogitRows
from edgespec.backends.passes import TokenTree
from edgespec.loading.layer_trial import LayerTrial
from edgespec.memory.plan.plan import Plan
from edgespec.models.file import ModelFile
from edgespec.models.open_model import open_model
from lab.harness import MODELS, THREADS, Asked, Rows, Script, names, option, rounds

_SIZES = (1, 8)
script = Script(__doc__)


@script.command(
    MODELS,
    THREADS,
    rounds(5),
    option("--backends", type=names, default=["native", "llamacpp"]),
    option("--clock", choices=["wall", "processor"], default="wall"),
)
def compare(asked: Asked) -> Rows:
    """One row for each file, backend and number of nodes."""
    if asked.clock == "processor":
        pass_times.time_pass = _processor_time
    for model in asked.models:
        for name in asked.backends:
            made = edgespec.plan(model, backend=name, threads=asked.threads, context=512)
            with open_model(model) as file:
                start = time.perf_counter()
                layers, foretold = _foretold(file, made)
                took = time.perf_counter() - start
                found = _found(file, made, asked.rounds)
            for size, seconds in found.items():
                yield {
                    "file": model.stem,
                    "backend": name,
                    "nodes": size,
                    "layers": layers,
                    "foretold ms": round(1e3 * foretold[size], 1),
                    "found ms": round(1e3 * seconds, 1),
                    "ratio": round(foretold[size] / seconds, 3),
                    "trial s": round(took, 1),
                }


def _foretold(file: ModelFile, plan: Plan) -> tuple[int, dict[int, float]]:
    with LayerTrial(file) as trial:
        few, more = (measure_layers.model_times(path, plan) for path in trial.paths())
        return trial.layers, trial.whole(few, more)


def _found(file: ModelFile, plan: Plan, num_rounds: int) -> dict[int, float]:
    """The shortest passes over the whole file, the first of each not counted."""
    with backends.open_target(file, plan) as target:
        sizes = [size for size in _SIZES if size <= target.max_nodes]
        tried = [
            {size: pass_times.time_pass(target, size) for size in sizes}
            for _ in range(num_rounds + 1)
        ]
    return {size: min(one[size] for one in tried[1:]) for size in sizes}


def _processor_time(target: Target, num_nodes: int, rows: LogitRows = "all") -> float:
    """`time_pass` in seconds of the processor, all threads' together."""
    tree = TokenTree.chain([(7 * i) % target.spec.vocab_size for i in range(num_nodes)])
    start = time.process_time()
    target.own.forward(tree, rows=rows)
    seconds = time.process_time() - start
    target.own.expect(())
    return seconds


if __name__ == "__main__":
    script.run()
