"""What would leaving prompt tokens out of deeper layers spare, and what becomes of the reply?

    python -m lab.lazy_prefill [MODEL] --bench FOLDER [--prompts 12] [--tokens 32]

"LazyLLM: Dynamic Token Pruning for Efficient Long Context LLM Inference", section 3: after a layer
only the part of the prompt goes on that the prompt's last token attends to most there. BENCH holds
spec_bench.jsonl.gz, whose long prompts (summaries, answers from retrieved passages) are read whole
and in part, and answered greedily. `chance` leaves out the same number by chance, `first` the
oldest after the first four tokens. `spared` is the prefill's time against the whole one's, by rows
times layers, as long matmuls take it; what a choice costs is not in it, nor tokens that LazyLLM
brings back later. `same`: replies that stay as they are; `agree`: tokens until the first other one;
`nats`: what the whole prompt's reply loses in log-likelihood, a token.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np

from edgespec.engine.prompts import encode
from edgespec.models.open_model import open_model
from edgespec.models.registry import resolve
from lab.harness import MODEL, Asked, Rows, Script, numbers, option, read_lines
from lab.plain_llama import Kept, Places, PlainLlama, Text
from lab.plain_llama import Rows as Matrix

LEAST, MOST = 512, 960
"""Tokens of a prompt."""
SINKS = 4
script = Script(__doc__)


class Prompt:
    """A prompt after each of a model's layers, read whole."""

    def __init__(self, model: PlainLlama, ids: list[int]) -> None:
        self.model, self.ids = model, ids
        self.places: Places = np.arange(len(ids))
        self.streams, self.looks = [model.embedded(ids)], list[Matrix]()
        self.kept: list[Kept] = []
        for number in range(model.num_layers):
            self.kept.append(model.kept(number, self.streams[-1], self.places))
            stream, looks = model.layer(number, self.streams[-1], self.places, self.kept[-1])
            self.streams.append(stream)
            self.looks.append(looks)

    def read(self, layer: int, percent: int, rule: str) -> tuple[Text, Matrix]:
        """The text and its last logits, if only a part goes on after `layer` layers."""
        chosen = self.chosen(layer, percent, rule)
        stream, places, text = self.streams[layer][chosen], self.places[chosen], Text()
        text.layers += self.kept[:layer]
        for number in range(layer, self.model.num_layers):
            text.layers.append(self.model.kept(number, stream, places))
            stream, _ = self.model.layer(number, stream, places, text.layers[number])
        return text, self.model.logits(stream[-1:])[0]

    def chosen(self, layer: int, percent: int, rule: str) -> Places:
        """The places that go on, the last one always."""
        count = max(len(self.ids) * percent // 100, 1)
        if rule == "first":
            late = self.places[len(self.ids) - max(count - SINKS, 1) :]
            return np.union1d(self.places[:SINKS], late) if percent < 100 else self.places
        by_chance = np.random.default_rng(len(self.ids)).random(len(self.ids)).astype(np.float32)
        worth = (self.looks[layer - 1] if rule == "looks" else by_chance).copy()
        worth[-1] = np.inf
        return np.sort(np.argsort(-worth, kind="stable")[:count])


def replied(model: PlainLlama, text: Text, row: Matrix, place: int, count: int) -> list[int]:
    """The likeliest tokens, one after the other."""
    ids = [int(row.argmax())]
    for index in range(count - 1):
        ids.append(int(model.write(text, ids[-1:], place + index)[0].argmax()))
    return ids


def told(model: PlainLlama, text: Text, row: Matrix, place: int, ids: list[int]) -> Matrix:
    """The log-probabilities [n] of tokens that come to a text."""
    rows = np.vstack([row[None], model.write(text, ids[:-1], place)])
    rows -= rows.max(axis=1, keepdims=True)
    logs: Matrix = rows[np.arange(len(ids)), ids] - np.log(np.exp(rows).sum(axis=1))
    return logs


@script.command(
    MODEL,
    option("--bench", type=Path, required=True),
    option("--prompts", type=int, default=12),
    option("--tokens", type=int, default=32),
    option("--percents", type=numbers, default=[70, 50], help="of the prompt that go on"),
)
def lazy(asked: Asked) -> Rows:
    """Long questions, whole and in part."""
    file = open_model(resolve(asked.model))
    model, count = PlainLlama(file), asked.tokens
    prompts, wholes = list[Prompt](), list[tuple[list[int], Matrix]]()
    long = [
        ids
        for question in read_lines(asked.bench / "spec_bench.jsonl.gz")
        if LEAST <= len(ids := encode(file, question["turns"][0], raw=False, prefix=None)) <= MOST
    ]
    for ids in long[:: max(len(long) // asked.prompts, 1)][: asked.prompts]:
        prompts.append(Prompt(model, ids))
        text, row = prompts[-1].read(model.num_layers, 100, "looks")
        said = replied(model, Text([*text.layers]), row, len(ids), count)
        wholes.append((said, told(model, text, row, len(ids), said)))
    script.note(
        f"{len(prompts)} prompts of {statistics.mean(len(one.ids) for one in prompts):.0f} tokens"
    )
    for layer in range(1, model.num_layers - 1):
        for percent in asked.percents:
            for rule in ("looks", "chance", "first"):
                agree, lost = list[int](), list[float]()
                for prompt, (said, logs) in zip(prompts, wholes, strict=True):
                    text, row = prompt.read(layer, percent, rule)
                    own, length = Text([*text.layers]), len(prompt.ids)
                    found = replied(model, own, row, length, count)
                    same = [one == other for one, other in zip(said, found, strict=True)]
                    agree.append(same.index(False) if False in same else count)
                    lost.append(float((logs - told(model, text, row, length, said)).mean()))
                part = layer + (model.num_layers - layer) * percent / 100
                yield {
                    "after layer": layer,
                    "goes on, %": percent,
                    "by": rule,
                    "spared": f"{model.num_layers / part:.2f}x",
                    "same": f"{sum(one == count for one in agree)}/{len(agree)}",
                    "agree": f"{statistics.mean(agree):.1f}",
                    "nats": f"{statistics.mean(lost):.3f}",
                }


if __name__ == "__main__":
    script.run()
