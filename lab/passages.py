"""What does it cost a reply to join passages whose keys and values were computed apart?

    python -m lab.passages [MODEL] --bench FOLDER [--prompts 16] [--tokens 32]
    python -m lab.passages [MODEL] --corpus FILE [--prompts 16] [--tokens 32]

BENCH holds spec_bench.jsonl.gz, whose `rag` prompts are five passages and a question; CORPUS is
JSON lines with `prompt`s of a passage, an empty line and a question, and each of ours holds four
passages and the question about one of them.

An oracle in NumPy: float32 throughout, keys kept as they are before they are rotated. `exact`
computes the whole prompt. `alone` computes each passage without anything before it ("Prompt Cache:
Modular Attention Reuse for Low-Latency Inference"), `head` after the head that all prompts begin
with, `APE` also at the same positions as the others, with a temperature and a scale of what the
question and the reply see of passages ("APE: Faster and Longer Context-Augmented Generation via
Adaptive Parallel Encoding", whose best pair is looked for among the first half of the prompts and
told of the second). `first n` computes n tokens of each passage again with all before them, and
`15 %` those whose values differ most in the second layer ("CacheBlend: Fast Large Language Model
Serving for RAG with Cached Knowledge Fusion"). `int8` is exact with keys and values rounded to 8
bits a number, `shuffled` with the passages the other way round, `without` with none. Divergence is
KL in nats at the tokens of the exact greedy reply.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.reference.rotation import rope_frequencies
from edgespec.models.attention import Attention
from edgespec.models.file import ModelFile
from edgespec.models.layers import Dense
from edgespec.models.open_model import open_model
from edgespec.models.parts import Matrix, Norm
from edgespec.models.registry import resolve
from lab.harness import MODEL, Asked, Rows, Script, option, read_lines, tokens

Array = NDArray[np.float32]
Ids = list[int]
HEAD = "<|im_start|>user\nRead these passages and answer the question about them.\n\n"
TAIL = "<|im_end|>\n<|im_start|>assistant\n"
FIRST, BLEND = (4, 16, 32), 0.15
TEMPERATURES, SCALES = (1.0, 0.9, 0.8), (1.0, 0.9, 0.8, 0.7)
script = Script(__doc__)


@dataclass
class Text:
    """A prompt in its parts, and the room for its keys and values."""

    ids: Ids
    passages: list[range]
    positions: NDArray[np.int64]
    keys: Array
    """[layers, tokens, kv heads, head width], before they are rotated."""
    values: Array
    context: NDArray[np.bool_]
    """Whose scores a temperature and a scale change, for the rows after them."""
    temperature: float = 1.0
    scale: float = 1.0


class Oracle:
    """A Llama-shaped model; any row of a text at any position, seeing any others."""

    def __init__(self, file: ModelFile) -> None:
        self.spec, self.tokenizer = file.spec, file.tokenizer
        self._epsilon = file.spec.norm_epsilon
        self._tensors = {name: file.matrix_f32(name) for name in file.tensors}
        (self.shape,) = {replace(one, query=_N, key=_N, value=_N, output=_N) for one in _of(file)}
        assert self.shape.rope is not None and not self.shape.window
        self._frequencies = rope_frequencies(self.shape.rope, None)
        self._turned, self._known = np.zeros(0, np.int64), list[Array]()

    def text(self, parts: list[Ids], order: list[int], passages: int, more: int) -> Text:
        """Parts of which the first is the head, then passages in this order, then the rest."""
        head, question = parts[0], parts[-1]
        ids, places = [*head], []
        for number in order[:passages]:
            places.append(range(len(ids), len(ids) + len(parts[1 + number])))
            ids += parts[1 + number]
        context = np.zeros(len(ids) + len(question) + more, np.bool_)
        context[len(head) : len(ids)] = True
        ids = [*ids, *question]
        size = (self.spec.num_layers, len(context), self.shape.kv_heads, self.shape.head_dim)
        zeros = np.zeros(size, np.float32)
        return Text(ids, places, np.arange(len(context)), zeros, zeros.copy(), context)

    def run(self, text: Text, rows: NDArray[np.int64], sees: NDArray[np.bool_] | None = None,
            layers: int = 0) -> Array:  # fmt: skip
        """Compute rows, which see those before them, or what `sees` says; logits of the last 40."""
        end = int(rows[-1]) + 1
        if sees is None:
            sees = np.arange(end)[None] <= rows[:, None]
        stream = self._tensors[self.spec.embedding][np.array(text.ids)[rows]]
        for number, layer in enumerate(self.spec.layers[: layers or None]):
            part, ffn = layer.mixer, layer.ffn
            assert (
                isinstance(part, Attention) and isinstance(ffn, Dense) and part.key and part.value
            )
            normed = self._norm(layer.mixer_norm, stream)
            heads = len(rows), self.shape.kv_heads, self.shape.head_dim
            text.keys[number, rows] = self._project(part.key, normed).reshape(heads)
            text.values[number, rows] = self._project(part.value, normed).reshape(heads)
            query = self._project(part.query, normed).reshape(len(rows), -1, heads[-1])
            mixed = self._attend(text, number, query, rows, sees)
            stream = stream + self._project(part.output, mixed)
            normed = self._norm(layer.ffn_norm, stream)
            gate = self._project(ffn.gate, normed)
            gate = gate / (1 + np.exp(-gate)) * self._project(ffn.up, normed)
            stream = stream + self._project(ffn.down, gate)
        last = self._norm(Norm(self.spec.last_norm, self.spec.dim), stream[-40:])
        logits: Array = last @ self._tensors[self.spec.head].T
        return logits

    def _attend(self, text: Text, layer: int, query: Array, rows: NDArray[np.int64],
                sees: NDArray[np.bool_]) -> Array:  # fmt: skip
        end, count = sees.shape[1], len(rows)
        turns = self._turns(text.positions[:end])
        turned = self._turn(query, [turn[rows] for turn in turns])
        turned = turned.reshape(count, self.shape.kv_heads, -1, self.shape.head_dim)
        keys = self._turn(text.keys[layer, :end], turns).transpose(1, 2, 0)[:, None]
        scores = turned.transpose(1, 2, 0, 3) @ keys * np.float32(self.shape.scale)
        if (text.temperature, text.scale) != (1.0, 1.0):  # set once passages are there
            places = np.flatnonzero(text.context[:end])
            own = scores[..., places] / np.float32(text.temperature)
            top = own.max(-1, keepdims=True)
            total = top + np.log(np.exp(own - top).sum(-1, keepdims=True))
            scores[..., places] = own + np.float32(text.scale - 1) * total
        scores = np.where(sees, scores, np.float32(-1e30))
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = shares @ text.values[layer, :end].transpose(1, 0, 2)[:, None]
        mixed /= shares.sum(-1, keepdims=True)
        flat: Array = mixed.transpose(2, 0, 1, 3).reshape(count, -1)
        return flat

    def _turns(self, positions: NDArray[np.int64]) -> list[Array]:
        """Cosines and sines of positions, [positions, 1, pairs]."""
        if not np.array_equal(positions, self._turned):
            angles = positions[:, None, None] * self._frequencies
            self._known = [np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)]
            self._turned = positions.copy()
        return self._known

    def _turn(self, heads: Array, turns: list[Array]) -> Array:
        cosines, sines = turns
        assert self.shape.rope is not None and heads.shape[-1] == 2 * cosines.shape[-1]
        if self.shape.rope.layout == "interleaved":
            one, other = heads[..., 0::2], heads[..., 1::2]
        else:
            one, other = np.split(heads, 2, -1)
        return np.concatenate([one * cosines - other * sines, one * sines + other * cosines], -1)

    def _project(self, part: Matrix, rows: Array) -> Array:
        own = self._tensors[part.tensor].reshape(-1, part.columns)
        made: Array = rows @ own[part.first : part.first + part.rows].T
        return made

    def _norm(self, part: Norm | None, rows: Array) -> Array:
        assert part is not None
        scale = 1 / np.sqrt((rows * rows).mean(-1, keepdims=True) + self._epsilon)
        normed: Array = rows * scale * self._tensors[part.tensor].ravel()
        return normed


_N = Matrix("", 0, 0)


def _of(file: ModelFile) -> Iterator[Attention]:
    return (layer.mixer for layer in file.spec.layers if isinstance(layer.mixer, Attention))


def finish(oracle: Oracle, text: Text, num_tokens: int, forced: Ids) -> tuple[Ids, Array]:
    """The greedy reply to a text whose passages are computed, and the logits along `forced`."""
    start = text.passages[-1].stop if text.passages else 0
    prompt = len(text.ids)
    logits = oracle.run(text, np.arange(start, prompt))
    reply, ids = [int(logits[-1].argmax())], text.ids
    while len(reply) < num_tokens:
        text.ids = ids + reply
        place = np.array([len(text.ids) - 1])
        reply.append(int(oracle.run(text, place)[-1].argmax()))
    text.ids = ids + (forced or reply)[:-1]
    told = oracle.run(text, np.arange(prompt - 1, len(text.ids)))
    text.ids = ids
    return reply, told


def joined(oracle: Oracle, parts: list[Ids], how: str, more: int) -> Text:
    """A prompt whose passages were computed apart."""
    count = len(parts) - 2
    text = oracle.text(parts, list(range(count)), count, more)
    head = len(parts[0])
    oracle.run(text, np.arange(head))
    if how.startswith("APE"):
        longest = max(map(len, text.passages))
        for place in text.passages:
            text.positions[place] = np.arange(head, head + len(place))
        rest = text.passages[-1].stop
        text.positions[rest:] = np.arange(head + longest, head + longest + len(text.context) - rest)
    for place in text.passages:
        rows = np.arange(place.start, place.stop)
        seen = np.arange(place.stop)[None]
        own = (seen >= place.start) & (seen <= rows[:, None])
        oracle.run(text, rows, own if how.startswith("alone") else own | (seen < head))
    again = _again(oracle, parts, text, how, more)
    if len(again):
        oracle.run(text, again)
    return text


def _again(oracle: Oracle, parts: list[Ids], text: Text, how: str, more: int) -> NDArray[np.int64]:
    """The rows that are computed again."""
    if "first" in how:
        count = int(how.split()[-1])
        kept = [np.arange(one.start, min(one.start + count, one.stop)) for one in text.passages]
        return np.concatenate(kept)
    if "%" in how:
        whole = oracle.text(parts, list(range(len(parts) - 2)), len(parts) - 2, more)
        first, last = text.passages[0].start, text.passages[-1].stop
        oracle.run(whole, np.arange(last), layers=2)
        differs = np.square(whole.values[1] - text.values[1])[first:last].sum((1, 2))
        return first + np.sort(np.argsort(-differs)[: int(BLEND * (last - first))])
    return np.zeros(0, np.int64)


def prompts(asked: Asked, oracle: Oracle) -> list[list[Ids]]:
    """Head, passages and question of each prompt, in tokens."""
    found: list[list[str]] = []
    if asked.bench is not None:
        for line in read_lines(asked.bench / "spec_bench.jsonl.gz"):
            if line["category"] == "rag":
                *passages, question = line["turns"][0].strip().split("\n")
                found.append([*passages[:4], question])
    else:
        known: dict[str, str] = {}
        for line in read_lines(asked.corpus):
            passage, _, question = line.get("prompt", "").partition("\n\n")
            if 200 < len(passage) < 700 and question:
                known.setdefault(passage, question)
        rng, told = np.random.default_rng(0), list(known.items())
        for chosen in rng.permutation(len(told))[: 4 * asked.prompts].reshape(-1, 4):
            right = int(rng.integers(4))
            found.append([*(told[one][0] for one in chosen), told[chosen[right]][1]])
    made = []
    for *passages, question in found:
        texts = [HEAD, *(f"{one}\n\n" for one in passages), question + TAIL]
        parts = [oracle.tokenizer.encode(one, parse_special=True) for one in texts]
        if sum(map(len, parts)) + asked.tokens <= oracle.spec.context_length:
            made.append(parts)
    return made[: asked.prompts]


@script.command(
    MODEL,
    option("--bench", type=Path),
    option("--corpus", type=Path),
    option("--prompts", type=int, default=16),
    tokens(32),
)
def join(asked: Asked) -> Rows:
    """Divergence and replies of every join."""
    with open_model(resolve(asked.model or "edgespec-tiny")) as file:
        oracle = Oracle(file)
    texts, more = prompts(asked, oracle), asked.tokens
    sizes = [sum(map(len, parts)) for parts in texts]
    script.note(f"{len(texts)} prompts of {min(sizes)} to {max(sizes)} tokens")
    exact = []
    for parts in texts:
        text = oracle.text(parts, list(range(len(parts) - 2)), len(parts) - 2, more)
        oracle.run(text, np.arange(text.passages[-1].stop))
        exact.append(finish(oracle, text, more, []))
    ways = ["int8", "shuffled", "without", "alone", "head", *(f"head, first {n}" for n in FIRST)]
    ways += [f"alone, first {n}" for n in FIRST[1:]] + ["head, 15 %", "APE"]
    for how in ways:
        yield {"join": how} | _told([_one(oracle, texts[at], how, more, exact[at])
                                     for at in range(len(texts))])  # fmt: skip
    half = len(texts) // 2
    best, pair = np.inf, (1.0, 1.0)
    for temperature, scale in itertools.product(TEMPERATURES, SCALES):
        found = [_one(oracle, texts[at], "APE", more, exact[at], temperature, scale)[0]
                 for at in range(half)]  # fmt: skip
        if np.mean(found) < best:
            best, pair = float(np.mean(found)), (temperature, scale)
    for how, own in (("APE", (1.0, 1.0)), ("APE", pair), ("head", (1.0, 1.0)), ("head", pair)):
        told = [_one(oracle, texts[at], how, more, exact[at], *own)
                for at in range(half, len(texts))]  # fmt: skip
        yield {"join": f"{how}, T {own[0]}, S {own[1]}, second half"} | _told(told)


def _one(oracle: Oracle, parts: list[Ids], how: str, more: int, exact: tuple[Ids, Array],
         temperature: float = 1.0, scale: float = 1.0) -> tuple[float, float, int]:  # fmt: skip
    """KL, how often the likeliest is the same, and how many tokens of the reply are."""
    count = len(parts) - 2
    if how in ("int8", "shuffled", "without"):
        order = list(range(count))[:: 1 if how == "int8" else -1]
        text = oracle.text(parts, order, 0 if how == "without" else count, more)
        if text.passages:
            oracle.run(text, np.arange(text.passages[-1].stop))
        if how == "int8":
            for numbers in (text.keys, text.values):
                step = np.abs(numbers).max(-1, keepdims=True) / 127 + np.float32(1e-30)
                numbers[:] = np.rint(numbers / step) * step
    else:
        text = joined(oracle, parts, how, more)
        text.temperature, text.scale = temperature, scale
    reply, logits = finish(oracle, text, more, exact[0])
    one, other = _log_softmax(exact[1]), _log_softmax(logits)
    kl = float((np.exp(one) * (one - other)).sum(-1).mean())
    top = float((one.argmax(-1) == other.argmax(-1)).mean())
    same = next((at for at, (a, b) in enumerate(zip(reply, exact[0], strict=True)) if a != b), more)
    return kl, top, same


def _told(found: list[tuple[float, float, int]]) -> dict[str, str]:
    kl, top, same = np.array(found).T
    whole = int((same == same.max()).sum()) if same.max() >= 32 else 0
    return {
        "KL": f"{kl.mean():.3f} ({kl.min():.3f}-{kl.max():.3f})",
        "top-1": f"{100 * top.mean():.1f} %",
        "same tokens": f"{same.mean():.1f}",
        "same replies": f"{whole} of {len(found)}",
    }


def _log_softmax(logits: Array) -> Array:
    wide = logits - logits.max(-1, keepdims=True)
    made: Array = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    return made


if __name__ == "__main__":
    script.run()
