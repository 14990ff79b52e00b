"""Compile the kernels, or load them from the cache, before any weight is in memory."""

from __future__ import annotations

import numpy as np

from edgespec.backends.native import session
from edgespec.backends.native.kernels import attention, forward, row_ops
from edgespec.backends.native.kernels.tile import FORMATS
from edgespec.memory.arena import BLOCK, KvArena
from edgespec.models.spec import ModelSpec

_TINY = ModelSpec(
    architecture="llama",
    name="warm-up",
    num_layers=1,
    dim=32,
    num_heads=1,
    num_kv_heads=1,
    head_dim=16,
    ffn_dim=32,
    vocab_size=16,
    context_length=16,
    norm_epsilon=1e-5,
    rope_base=10000.0,
    rope_dim=16,
    rope_layout="interleaved",
)


def warm_up() -> None:
    """Call every compiled function once on nothing: no rows, no weights."""
    integers = np.zeros(16, np.int32)
    parents = np.full(1, -1, np.int16)
    attention.describe_tree(parents, integers, integers, integers, integers)
    tree = forward.Tree(0, integers, integers, integers, integers)
    floats = np.zeros((1, 2, 0), np.float32)
    weights = forward.Weights(
        matrices=np.zeros((1, 7, 8), np.int64),
        head=np.zeros(8, np.int64),
        norms=np.zeros((1, 2, 32), np.float32),
        last_norm=np.zeros(32, np.float32),
        head_norms=floats,
        biases=np.zeros((1, 0), np.float32),
    )
    places = np.zeros(len(FORMATS), np.int64)
    kv = KvArena(1, 1, 16, BLOCK)
    arena = forward.Arena(kv.addresses, BLOCK, 1, kv.plane_bytes, kv.key_tile_bytes, kv.value_bytes)
    forward.run(
        session.shape_of(_TINY),
        weights,
        session.rope_frequencies(_TINY, None),
        np.array(row_ops.table(), dtype=np.int64),
        places,
        np.ones_like(places),
        arena,
        tree,
        *session.allocate(_TINY, 16, 1, 1, 1),
        0,
        0,
        0,
        1,
    )
    attention.move_kv(arena, 0, 16, 0, 0)
