"""Cosines and sines of the nodes' positions, once a pass for each kind of rotation."""

from __future__ import annotations

import numpy as np

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.codegen.intrinsics import load_double, store_float
from edgespec.backends.native.kernels.kv.places import node_entry
from edgespec.system.addresses import int64s_at
from edgespec.system.jit import entry


@entry
def angles(table, stage, thread):
    """This thread's rows of cosines and sines, f32 [n, rope_dim / 2]."""
    c = int64s_at(table, t.NUM_ENTRIES)
    magnitude = load_double(table + 8 * t.MAGNITUDE)
    for node in range(thread, c[t.NUM_ROWS], c[t.THREADS]):
        position = np.float64(node_entry(c, node, t.POSITION) + c[t.AHEAD])
        for i in range(c[t.ROPE_HALF]):
            angle = position * load_double(c[t.FREQUENCIES] + 8 * i)
            place = node * c[t.ANGLE_STRIDE] + 4 * i
            store_float(c[t.COSINES] + place, np.float32(np.cos(angle) * magnitude))
            store_float(c[t.SINES] + place, np.float32(np.sin(angle) * magnitude))
    return 0
