"""A plain Llama in NumPy, many texts at once, whose keys and values anything may be done to.

What native kernels would store can be tried here before they exist: everything else is float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.reference.rotation import rope_frequencies
from edgespec.backends.reference.weights import Weights
from edgespec.models.file import ModelFile

Array = NDArray[np.float32]
Kept = tuple[Array, Array]
Form = Callable[[Array, Array, Array, Array], Kept]
"""(keys, values [texts, kv_heads, positions, head_dim], queries [texts, kv_heads, ...], what errors
of values weigh [kv_heads, head_dim, head_dim]) to the keys and values that are read back.
"""
Numbers = Callable[[Array], Array]
"""What is done to activations before they meet a matrix."""


class Oracle:
    """One model of Llama's shape: raises SystemExit for any other."""

    def __init__(self, file: ModelFile, weights: Numbers | None = None) -> None:
        """`weights` is done to every matrix first."""
        self.spec = file.spec
        kinds = {type(layer.mixer).__name__ for layer in self.spec.layers}
        parts = [layer.mixer for layer in self.spec.layers]
        if kinds != {"Attention"} or any(_is_special(part) for part in parts):
            raise SystemExit(f"{self.spec.name} is no plain Llama")
        self._weights = Weights(file, self.spec.context_length, None)
        change = weights or (lambda own: own)
        self._layers = [self._layer(layer, change) for layer in self.spec.layers]
        self._embedding = self._weights.table(self.spec.embedding)
        self._head = change(self._weights.table(self.spec.head))

    def _layer(self, layer: Any, change: Numbers) -> dict[str, Any]:
        part, ffn, own = layer.mixer, layer.ffn, self._weights
        names = {"query": part.query, "key": part.key, "value": part.value, "output": part.output}
        names |= {"gate": ffn.gate, "up": ffn.up, "down": ffn.down}
        found: dict[str, Any] = {name: change(own.matrix(one)) for name, one in names.items()}
        norms = {"first": layer.mixer_norm, "second": layer.ffn_norm}
        found |= {name: own.vector(norm.tensor) for name, norm in norms.items()}
        per = part.heads // part.kv_heads
        heads = found["output"].reshape(-1, part.kv_heads, per, part.head_dim)
        found["weigh"] = np.einsum("okpd,okpe->kde", heads, heads)
        return found | {"part": part, "angles": rope_frequencies(part.rope, None)}

    def logits(
        self,
        tokens: NDArray[np.int64],
        form: Form | None = None,
        *,
        cache: list[Kept] | None = None,
        recent: int = 0,
        activations: Numbers | None = None,
        wanted: int = 0,
    ) -> Array:
        """Logits [texts, last `wanted` positions, or all, vocab] of texts [texts, positions].

        `cache` holds what earlier calls kept, and takes these. The last `recent` positions that a
        row sees are read as they were computed.
        """
        act = activations or (lambda own: own)
        stream = self._embedding[tokens]
        for index, layer in enumerate(self._layers):
            normed = act(self._norm(stream, layer["first"]))
            stream = stream + self._attend(layer, normed, form, cache, index, recent, act)
            normed = act(self._norm(stream, layer["second"]))
            gate = normed @ layer["gate"].T
            gated = gate / (1 + np.exp(-gate)) * (normed @ layer["up"].T)
            stream = stream + act(gated) @ layer["down"].T
        stream = stream[:, -wanted:]
        result: Array = act(self._norm(stream, self._weights.vector(self.spec.last_norm))) @ (
            self._head.T
        )
        return result

    def _norm(self, values: Array, gain: Array) -> Array:
        mean = np.mean(np.square(values), axis=-1, keepdims=True)
        normed: Array = values / np.sqrt(mean + np.float32(self._weights.epsilon)) * gain
        return normed

    def _attend(
        self,
        layer: dict[str, Any],
        normed: Array,
        form: Form | None,
        cache: list[Kept] | None,
        index: int,
        recent: int,
        act: Numbers,
    ) -> Array:
        part = layer["part"]
        before = cache[index][0].shape[2] if cache and index < len(cache) else 0
        query = self._heads(layer, normed @ layer["query"].T, before)
        key = self._heads(layer, normed @ layer["key"].T, before)
        value = self._split(part, normed @ layer["value"].T)
        if cache is not None:
            if before:
                old = cache[index]
                key = np.concatenate([old[0], key], axis=2)
                value = np.concatenate([old[1], value], axis=2)
                cache[index] = key, value
            else:
                cache.append((key, value))
        texts, _, rows, dim = query.shape
        grouped = query.reshape(texts, part.kv_heads, -1, dim)
        read = form(key, value, grouped, layer["weigh"]) if form else (key, value)
        distance = before + np.arange(rows)[:, None] - np.arange(key.shape[2])
        mask = np.tile(distance, (part.heads // part.kv_heads, 1))
        near = mask < recent
        scores = grouped @ read[0].swapaxes(2, 3)
        if recent:
            scores = np.where(near, grouped @ key.swapaxes(2, 3), scores)
        scores = np.where(mask < 0, np.float32(-np.inf), scores * np.float32(part.scale))
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        if recent:
            mixed = np.where(near, shares, 0) @ value + np.where(near, 0, shares) @ read[1]
        else:
            mixed = shares @ read[1]
        heads = mixed.reshape(texts, part.heads, rows, dim).swapaxes(1, 2)
        flat = np.asarray(heads.reshape(texts, rows, -1), np.float32)
        result: Array = act(flat) @ layer["output"].T
        return result

    @staticmethod
    def _split(part: Any, flat: Array) -> Array:
        heads: Array = flat.reshape(*flat.shape[:2], -1, part.head_dim).swapaxes(1, 2)
        return heads

    def _heads(self, layer: dict[str, Any], flat: Array, before: int) -> Array:
        """Rotated heads [texts, heads, positions, head_dim]."""
        part, heads = layer["part"], self._split(layer["part"], flat)
        angles = np.arange(before, before + heads.shape[2])[:, None] * layer["angles"]
        cosine, sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        order = np.arange(2 * angles.shape[1])
        first, second = (
            order.reshape(-1, 2).T if part.rope.layout == "interleaved" else order.reshape(2, -1)
        )
        turned = heads.copy()
        turned[..., first] = heads[..., first] * cosine - heads[..., second] * sine
        turned[..., second] = heads[..., first] * sine + heads[..., second] * cosine
        return turned

    def replies(self, prompts: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Prompts [texts, positions] with greedy replies of so many tokens, past every end."""
        cache: list[Kept] = []
        texts, new = prompts, prompts
        for _ in range(length):
            best = self.logits(new, cache=cache, wanted=1)[:, -1].argmax(axis=-1)
            new = best[:, None]
            texts = np.concatenate([texts, new], axis=1)
        return texts


def _is_special(part: Any) -> bool:
    return bool(
        part.query_norm or part.key_norm or part.window or part.chunk or part.sinks
        or part.softcap or part.gate or part.rope is None
    )  # fmt: skip
