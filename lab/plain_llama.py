"""A Llama in NumPy whose layers can be asked one by one, for what no backend of the package can be
asked: prompts of which deeper layers see a part, texts that read each other's keys.

Keys are kept as they are before rotation, so that one can stand at several positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.reference.rotation import rope_frequencies
from edgespec.backends.reference.weights import Weights
from edgespec.models.file import ModelFile
from edgespec.models.layers import Attention, Dense

Rows = NDArray[np.float32]
Places = NDArray[np.int64]


@dataclass
class Kept:
    """Keys and values [n, kv_heads, head_dim] of one layer, and where they stand."""

    keys: Rows
    values: Rows
    places: Places

    @classmethod
    def joined(cls, parts: Sequence[Kept]) -> Kept:
        return cls(
            np.concatenate([part.keys for part in parts]),
            np.concatenate([part.values for part in parts]),
            np.concatenate([part.places for part in parts]),
        )

    def at(self, first: int) -> Kept:
        """The same, one after the other from a position on."""
        return Kept(self.keys, self.values, np.arange(first, first + len(self.places)))

    def only(self, chosen: Places) -> Kept:
        return Kept(self.keys[chosen], self.values[chosen], self.places[chosen])


@dataclass
class Text:
    """What each layer keeps of one text."""

    layers: list[Kept] = field(default_factory=list)


class PlainLlama:
    """Dense layers with grouped attention and interleaved rotation, in float32."""

    def __init__(self, file: ModelFile) -> None:
        self.spec = file.spec
        self.num_layers = file.spec.num_layers
        self._weights = Weights(file, file.spec.context_length, None)
        rope = self._attention(0).rope
        assert rope is not None and rope.layout == "interleaved"
        frequencies = rope_frequencies(rope, None)
        angles = np.arange(2 * file.spec.context_length)[:, None] * frequencies[None]
        self._cosines = np.cos(angles).astype(np.float32)
        self._sines = np.sin(angles).astype(np.float32)

    def _attention(self, number: int) -> Attention:
        part = self.spec.layers[number].mixer
        assert isinstance(part, Attention)
        return part

    def embedded(self, ids: Sequence[int]) -> Rows:
        """[n, dim] before the first layer."""
        rows: Rows = self._weights.table(self.spec.embedding)[list(ids)]
        return rows * np.float32(self.spec.embedding_scale)

    def logits(self, stream: Rows) -> Rows:
        """[n, vocab] after the last layer."""
        gain = self._weights.vector(self.spec.last_norm)
        rows: Rows = self._normed(stream, gain) @ self._weights.table(self.spec.head).T
        return rows

    def kept(self, number: int, stream: Rows, places: Places) -> Kept:
        """What a layer keeps of rows that enter it."""
        part, weights = self._attention(number), self._weights
        normed = self._first_normed(number, stream)
        assert part.key is not None and part.value is not None
        heads = len(stream), part.kv_heads, part.head_dim
        keys = (normed @ weights.matrix(part.key).T).reshape(heads)
        values = (normed @ weights.matrix(part.value).T).reshape(heads)
        return Kept(keys, values, places)

    def layer(self, number: int, stream: Rows, places: Places, seen: Kept) -> tuple[Rows, Rows]:
        """Rows [n, dim] after a layer, each having seen what stands at its place or before; and the
        last row's attention [seen], the mean over its heads.
        """
        part, weights = self._attention(number), self._weights
        group = part.heads // part.kv_heads
        normed = self._first_normed(number, stream)
        query = (normed @ weights.matrix(part.query).T).reshape(-1, part.heads, part.head_dim)
        query = self._turned(query, places)
        keys = self._turned(seen.keys, seen.places)
        hidden = np.where(seen.places[None] > places[:, None], np.float32(-np.inf), np.float32(0))
        mixed = np.empty_like(query)
        looks = np.zeros(len(seen.places), np.float32)
        for head in range(part.heads):
            scores = query[:, head] @ keys[:, head // group].T * np.float32(part.scale) + hidden
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            shares = scores / scores.sum(axis=1, keepdims=True)
            looks += shares[-1] / part.heads
            mixed[:, head] = shares @ seen.values[:, head // group]
        added = stream + mixed.reshape(len(stream), -1) @ weights.matrix(part.output).T
        ffn, norm = self.spec.layers[number].ffn, self.spec.layers[number].ffn_norm
        assert isinstance(ffn, Dense) and ffn.gate is not None and norm is not None
        normed = self._normed(added, weights.vector(norm.tensor))
        gate = normed @ weights.matrix(ffn.gate).T
        gate = gate / (1 + np.exp(-gate)) * (normed @ weights.matrix(ffn.up).T)
        return added + gate @ weights.matrix(ffn.down).T, looks

    def write(self, text: Text, ids: Sequence[int], place: int) -> Rows:
        """Logits [n, vocab] after each of the tokens that come to a text."""
        stream, places = self.embedded(ids), np.arange(place, place + len(ids))
        for number in range(self.num_layers):
            own = self.kept(number, stream, places)
            text.layers[number] = Kept.joined([text.layers[number], own])
            stream, _ = self.layer(number, stream, places, text.layers[number])
        return self.logits(stream)

    def _first_normed(self, number: int, stream: Rows) -> Rows:
        norm = self.spec.layers[number].mixer_norm
        assert norm is not None
        return self._normed(stream, self._weights.vector(norm.tensor))

    def _normed(self, rows: Rows, gain: Rows) -> Rows:
        mean = np.mean(np.square(rows), axis=-1, keepdims=True)
        normed: Rows = rows / np.sqrt(mean + np.float32(self._weights.epsilon)) * gain
        return normed

    def _turned(self, rows: Rows, places: Places) -> Rows:
        """Rows [n, heads, head_dim] as their positions ask."""
        cosines, sines = self._cosines[places][:, None], self._sines[places][:, None]
        even, odd = rows[..., 0::2], rows[..., 1::2]
        turned = np.empty_like(rows)
        turned[..., 0::2] = even * cosines - odd * sines
        turned[..., 1::2] = even * sines + odd * cosines
        return turned
