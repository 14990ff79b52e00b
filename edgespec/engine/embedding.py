"""What a text is about, as a vector: the model's last hidden states, pooled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from edgespec.engine.slot import Slot
from edgespec.errors import BackendError, OptionError
from edgespec.models.file import ModelFile

Pooling = Literal["mean", "last"]


def check_pooling(pooling: str) -> None:
    """Raise OptionError for a way of pooling that there is not."""
    if pooling not in get_args(Pooling):
        raise OptionError(f"pooling is {pooling!r}, and can be {' or '.join(get_args(Pooling))}")


def embedding(
    file: ModelFile, slot: Slot, ids: Sequence[int], pooling: Pooling
) -> NDArray[np.float32]:
    """The normed states [dim] f32 after the last layer, averaged over all tokens or of the last
    one, brought to length one; the slot is empty afterwards.

    Raises BackendError for a backend that does not give its states.
    """
    sequence, target = slot.sequence, slot.sequence.target
    if not target.capabilities.early_exit:
        raise BackendError(
            f"embeddings need the hidden states, which the {target.capabilities.name} backend does "
            "not give for this model; load a model without recurrent layers with backend native"
        )
    gain = file.matrix_f32(file.spec.last_norm).reshape(-1).astype(np.float64)
    tokens = np.asarray(ids, np.int32)
    total, last = np.zeros(len(gain)), np.zeros(len(gain))
    sequence.truncate(0)
    slot.ids.clear()
    try:
        for start in range(0, len(tokens), target.prefill_chunk):
            part = tokens[start : start + target.prefill_chunk]
            out = np.empty((1, len(part), len(gain)), np.float32)
            sequence.trace(part, (), out)
            states = out[0].astype(np.float64)
            squares = np.mean(np.square(states), axis=1, keepdims=True)
            normed = states / np.sqrt(squares + file.spec.norm_epsilon) * gain
            total += normed.sum(axis=0)
            last = normed[-1]
    finally:
        sequence.truncate(0)
    pooled = total if pooling == "mean" else last
    length = float(np.linalg.norm(pooled))
    return (pooled / (length or 1.0)).astype(np.float32)
