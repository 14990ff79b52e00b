"""The tables that kernels read: one for each shape of attention, the first of which is the base."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels import table
from edgespec.backends.native.scratch import Scratch
from edgespec.backends.native.shapes import Shape, float_bits
from edgespec.memory.kv.arena import KvArena
from edgespec.memory.plan.kv_sizes import shape_of
from edgespec.memory.plan.plan import Plan
from edgespec.models.layers import Attention
from edgespec.models.spec import ModelSpec


class ShapeTables:
    """All tables of a session, filled but for what a program, a team and a pass enter."""

    def __init__(
        self,
        spec: ModelSpec,
        shapes: Sequence[Shape],
        arenas: Sequence[KvArena],
        scratch: Scratch,
        plan: Plan,
    ) -> None:
        self._shapes = shapes
        self._angles = [shape.angle_arrays(len(scratch.stream)) for shape in shapes]
        self.words = [np.zeros(table.NUM_ENTRIES, np.int64) for _ in shapes]
        for c, shape, arena, (cosines, sines) in zip(
            self.words, shapes, arenas, self._angles, strict=True
        ):
            c[table.DIM], c[table.VOCAB_SIZE] = spec.dim, spec.vocab_size
            c[table.EPSILON_BITS] = float_bits(spec.norm_epsilon)
            scratch.fill(c)
            shape.fill(c, plan.max_nodes, plan.sequences)
            shape.fill_arena(c, arena)
            shape.fill_queries(c, scratch, plan.kv_type, plan.sequences)
            c[table.COSINES], c[table.SINES] = cosines.ctypes.data, sines.ctypes.data
            c[table.ANGLE_STRIDE] = cosines.strides[0]
        self._others = np.array([c.ctypes.data for c in self.words[1:]], np.int64)
        self.base[table.OTHERS] = self._others.ctypes.data
        self.base[table.NUM_OTHERS] = len(self._others)

    @property
    def base(self) -> NDArray[np.int64]:
        """The table of everything that is not attention of another shape."""
        return self.words[0]

    def of(self, attention: Attention) -> tuple[Shape, int]:
        """The shape of an attention, and the address of its table."""
        shape = shape_of(attention)
        for own, words in zip(self._shapes, self.words, strict=True):
            if own.attention == shape:
                return own, words.ctypes.data
        raise KeyError(shape)

    @property
    def rotating(self) -> list[int]:
        """Addresses of the tables of shapes whose heads are rotated."""
        pairs = zip(self._shapes, self.words, strict=True)
        return [c.ctypes.data for shape, c in pairs if shape.attention.rope is not None]

    @property
    def angle_bytes(self) -> int:
        """Bytes of all cosines and sines."""
        return sum(array.nbytes for pair in self._angles for array in pair)
