"""What do two workers say that read each other's keys and values while both write?

    python -m lab.hogwild [MODEL] --bench FOLDER [--prompts 20] [--tokens 64]

"Hogwild! Inference: Parallel LLM Generation via Concurrent Attention": each worker sees the prompt,
what the other has written so far, and its own text, in this order, a token of each in turn; keys
turn to the places that they have in each view. BENCH holds spec_bench.jsonl.gz, whose short
questions both workers answer, drawn at 0.8 with seeds of their own. `alone` are two samples that
see nothing of each other. `shared`: the part of the second's runs of four tokens that the first has
as well; `repeated`: of a text's own that came before in it; `nats`: the mean of the model's own
-log p of a text behind the prompt alone.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np

from edgespec.engine.prompts import encode
from edgespec.models.open_model import open_model
from edgespec.models.registry import resolve
from lab.harness import MODEL, Asked, Rows, Script, option, read_lines
from lab.plain_llama import Kept, PlainLlama
from lab.plain_llama import Rows as Matrix

TEMPERATURE = 0.8
MOST = 160
"""Tokens of a prompt."""
RUN = 4
script = Script(__doc__)


class Worker:
    """A text that grows beside another one."""

    def __init__(self, model: PlainLlama, prompt: list[Kept], row: Matrix, seed: int) -> None:
        self._model, self._prompt, self._row = model, prompt, row
        self._rng = np.random.default_rng(seed)
        self.own: list[Kept] = [kept.only(np.arange(0)) for kept in prompt]
        self.ids: list[int] = []

    def write(self, other: list[Kept] | None) -> None:
        """One more token, in sight of what another worker has written."""
        model = self._model
        noise = self._rng.gumbel(size=len(self._row))
        self.ids.append(int((self._row / TEMPERATURE + noise).argmax()))
        stream = model.embedded(self.ids[-1:])
        for number, prompt in enumerate(self._prompt):
            parts, first = [prompt], len(prompt.places)
            if other is not None:
                parts.append(other[number].at(first))
                first += len(other[number].places)
            places = np.array([first + len(self.ids) - 1])
            added = model.kept(number, stream, places)
            self.own[number] = Kept.joined([self.own[number], added])
            seen = Kept.joined([*parts, self.own[number].at(first)])
            stream, _ = model.layer(number, stream, places, seen)
        self._row = model.logits(stream)[0]


def read(model: PlainLlama, ids: list[int]) -> tuple[list[Kept], Matrix]:
    """What each layer keeps of a text, and the logits [n, vocab] after its tokens."""
    stream, places, kept = model.embedded(ids), np.arange(len(ids)), list[Kept]()
    for number in range(model.num_layers):
        kept.append(model.kept(number, stream, places))
        stream, _ = model.layer(number, stream, places, kept[number])
    return kept, model.logits(stream)


def nats(model: PlainLlama, prompt: list[int], ids: list[int]) -> float:
    """The mean of -log p of a text behind a prompt."""
    rows = read(model, [*prompt, *ids])[1][len(prompt) - 1 : -1].astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    told = rows[np.arange(len(ids)), ids] - np.log(np.exp(rows).sum(axis=1))
    return -float(told.mean())


def runs(ids: list[int]) -> list[tuple[int, ...]]:
    return [tuple(ids[place : place + RUN]) for place in range(len(ids) - RUN + 1)]


@script.command(
    MODEL,
    option("--bench", type=Path, required=True),
    option("--prompts", type=int, default=20),
    option("--tokens", type=int, default=64),
)
def workers(asked: Asked) -> Rows:
    """Questions spread over all categories."""
    file = open_model(resolve(asked.model))
    model = PlainLlama(file)
    short = [
        ids
        for question in read_lines(asked.bench / "spec_bench.jsonl.gz")
        if len(ids := encode(file, question["turns"][0], raw=False, prefix=None)) <= MOST
    ]
    prompts = short[:: max(len(short) // asked.prompts, 1)][: asked.prompts]
    for mode in ("alone", "in sight"):
        found: dict[str, list[float]] = {"shared": [], "repeated": [], "nats": []}
        for seed, ids in enumerate(prompts):
            kept, rows = read(model, ids)
            pair = [Worker(model, kept, rows[-1], 2 * seed + own) for own in range(2)]
            for _ in range(asked.tokens):
                before = [list(worker.own) for worker in pair]
                for own, worker in enumerate(pair):
                    worker.write(before[1 - own] if mode == "in sight" else None)
            first, second = (runs(worker.ids) for worker in pair)
            found["shared"].append(sum(run in set(first) for run in second) / len(second))
            for worker in pair:
                own_runs = runs(worker.ids)
                found["repeated"].append(1 - len(set(own_runs)) / len(own_runs))
                found["nats"].append(nats(model, ids, worker.ids))
        yield {"workers": mode, "prompts": len(prompts)} | {
            name: f"{statistics.mean(values):.3f}" for name, values in found.items()
        }


if __name__ == "__main__":
    script.run()
