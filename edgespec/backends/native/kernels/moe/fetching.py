"""Experts that are read from disk when rows go to them (`backends/native/streaming/`)."""

from __future__ import annotations

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels.codegen.atomics import call_lock
from edgespec.backends.native.kernels.codegen.intrinsics import load_long, store_long
from edgespec.backends.native.kernels.moe import words as w
from edgespec.system.addresses import word
from edgespec.system.jit import inner_kernel


@inner_kernel
def fetch(c, m):
    """Note which experts are used, and if one is not in memory ask for the layer and wait."""
    missing = 0
    for place in range(load_long(word(m, w.NUM_READ))):
        expert = word(word(m, w.READ), place)
        used = word(m, w.USED) + 8 * expert
        store_long(used, load_long(used) + 1)
        if word(word(m, w.HELD), w.HELD_WORDS * expert) == 0:
            missing += 1
    if missing > 0:
        store_long(word(m, w.ASKING), word(m, w.NUMBER))
        call_lock(c[t.RELEASE], word(word(m, w.LOCKS), 0), 0)
        call_lock(c[t.ACQUIRE], word(word(m, w.LOCKS), 1), 1)
