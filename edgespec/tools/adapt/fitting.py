"""Reading texts through a model, and fitting some of its exits to what it made of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Target
from edgespec.models.adapter import Fit
from edgespec.tools.adapt.ridge import Sums, normalised

_PARTS, _CHOOSING, _JUDGING = 10, 8, 9
"""Of ten pieces of text, one is kept to choose the ridge by, and one to judge what came of it."""
_STRIDE = 3
"""Of kept pieces, every third token: neighbours say much the same."""
_LEAST_GAIN, _SIGMAS = 0.01, 2.0
"""An adapter pays when it is right this much more often, and by more than chance would make it."""


class Fitting:
    """Sums of some exits, and the rows that are kept."""

    def __init__(self, target: Target, layers: Sequence[int], num_held: int) -> None:
        self._target, self._layers = target, tuple(layers)
        spec = target.spec
        self._sums = {layer: Sums(spec.dim) for layer in layers}
        held = (len(layers) + 1, num_held, spec.dim)
        self._held = {part: np.zeros(held, np.float32) for part in (_CHOOSING, _JUDGING)}
        self._filled = dict.fromkeys(self._held, 0)
        self._streams = np.zeros((len(layers) + 1, target.prefill_chunk, spec.dim), np.float32)
        self._said: dict[int, NDArray[np.int64]] = {}
        """The model's best tokens for the rows of a part."""
        self.num_tokens = 0

    def read(self, tokens: NDArray[np.int32], number: int) -> None:
        """Compute a piece of text, no longer than the context, and count it or keep some of it."""
        part, target = number % _PARTS, self._target
        target.own.truncate(0)
        for first in range(0, len(tokens), target.prefill_chunk):
            ids = tokens[first : first + target.prefill_chunk]
            streams = self._streams[:, : len(ids)]
            target.own.trace(ids, self._layers, streams)
            skip = int(first == 0)  # the first token's stream is like no other's
            if part in self._held:
                self._keep(part, streams[:, skip::_STRIDE])
            else:
                self._count(streams[:, skip:])
        self.num_tokens += len(tokens)

    def _keep(self, part: int, streams: NDArray[np.float32]) -> None:
        done = self._filled[part]
        count = min(streams.shape[1], self._held[part].shape[1] - done)
        self._held[part][:, done : done + count] = streams[:, :count]
        self._filled[part] += count

    def _count(self, streams: NDArray[np.float32]) -> None:
        last = self._normalised(streams[-1])
        for place, layer in enumerate(self._layers):
            self._sums[layer].add(self._normalised(streams[place]), last)

    def _normalised(self, streams: NDArray[np.float32]) -> NDArray[np.float32]:
        return normalised(streams, self._target.spec.norm_epsilon)

    @property
    def num_kept(self) -> int:
        """Rows of the smaller part of those that are kept."""
        return min(self._filled.values())

    @property
    def num_judged(self) -> int:
        """Rows that agreement is counted on."""
        return self._filled[_JUDGING]

    def finish(self, layer: int) -> tuple[Fit, NDArray[np.float16]]:
        """Fit a layer's adapter, f16 [dim, dim], rows being outputs, and judge it.

        Of all strengths of the ridge the one is taken that is right most often on rows kept for
        that; other rows judge.
        """
        best, chosen, ridge = -1.0, np.zeros((0, 0), np.float16), 0.0
        limit = float(np.finfo(np.float16).max)
        for strength, matrix in self._sums.pop(layer).solutions():
            rows = np.ascontiguousarray(np.clip(matrix.T, -limit, limit), np.float16)
            self._target.adapt(layer, rows)
            right = float(self._right(_CHOOSING, layer, adapted=True).mean())
            if right > best:
                best, chosen, ridge = right, rows, strength
        self._target.adapt(layer, chosen)
        before, after = (self._right(_JUDGING, layer, adapted=way) for way in (False, True))
        return _judge(layer, before, after, ridge), chosen

    def _right(self, part: int, layer: int, *, adapted: bool) -> NDArray[np.bool_]:
        """For each kept row of a part, whether an exit's best token is the model's."""
        rows = self._held[part][:, : self._filled[part]]
        if part not in self._said:
            self._said[part] = self._best(rows[-1])
        streams = rows[self._layers.index(layer)]
        said = self._best(streams, layer if adapted else None)
        return np.equal(said, self._said[part])

    def _best(self, streams: NDArray[np.float32], adapted: int | None = None) -> NDArray[np.int64]:
        """The head's best tokens for streams [n, dim]."""
        target, step = self._target, self._target.max_nodes
        found = np.zeros(len(streams), np.int64)
        for first in range(0, len(streams), step):
            logits = target.head(streams[first : first + step], adapted)
            found[first : first + step] = logits.argmax(axis=1)
        return found


def _judge(layer: int, before: NDArray[np.bool_], after: NDArray[np.bool_], ridge: float) -> Fit:
    gains = after.astype(np.float64) - before
    gain = float(gains.mean())
    chance = _SIGMAS * float(gains.std()) / max(len(gains), 1) ** 0.5
    pays = gain > max(_LEAST_GAIN, chance)
    return Fit(layer, float(before.mean()), float(after.mean()), ridge, pays)
