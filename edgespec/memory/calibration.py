"""Measured costs of what arithmetic cannot know: the interpreter, its libraries, the compiler.

All on CPython 3.11, Linux x86-64, glibc, Numba 0.68 (LLVM 20), NumPy 2.4; resident set of a fresh
process, file pages of shared libraries included, median of three. "Peak" is the growth while it
happens; "kept" is what is left of it after `monitor.release_free_memory`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

from edgespec.memory.size import KIB, MIB

KernelState = Literal["ready", "cached", "cold"]
"""Compiled in this process already, on disk from an earlier one, or still to be compiled."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one step of starting up adds to the resident set, in bytes."""

    peak_bytes: int
    kept_bytes: int


LIBRARIES: dict[str, Cost] = {
    "numpy": Cost(16 * MIB, 9 * MIB),
    "numba": Cost(64 * MIB, 26 * MIB),
    "tokenizers": Cost(7 * MIB, 3 * MIB),
    "jinja2": Cost(9 * MIB, 5 * MIB),
}
"""By module name, in the order they are imported; each as if those above it were there."""

JIT_START = Cost(46 * MIB, 17 * MIB)
"""The first kernel of a process, even from the cache: Numba's target and LLVM's linker wake up."""

KERNEL_CACHED = Cost(1 * MIB, 1 * MIB)
"""Each kernel loaded from the cache: its machine code, unwind tables and dispatcher."""

KERNEL_COLD = Cost(8 * MIB, 8 * MIB)
"""Each kernel compiled here: Numba and LLVM keep its typed tree and its module for good."""

NUM_KERNELS = 12
"""Kernels a session of the native backend uses at most."""

THREAD_BYTES = 128 * KIB
"""Stack pages and thread-local heap one more worker thread touches."""

TOKENIZER_BYTES = 4 * MIB
TOKENIZER_BYTES_PER_TOKEN = 700
"""Vocabulary as Rust maps both ways, as Python strings, and merges or scores."""

SESSION_BYTES = 6 * MIB
"""Python objects of a running session: modules imported late, text, statistics, templates."""

SAMPLING_BYTES_PER_TOKEN = 24
"""Sorting and masking one row of logits: two f32, one f64 and an index array of the vocabulary."""

SLACK = 0.01
"""Allocator rounding and fragmentation, as a share of everything else that is not weights."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """How far this process has started up: what is resident, and what is still to come."""

    resident_bytes: int
    imported: frozenset[str] = frozenset()
    """Those of `LIBRARIES` that are imported already."""
    kernels: KernelState = "cold"
    num_kernels: int = NUM_KERNELS
    releases: bool = True
    """Library pages can be given back after the start (Linux); elsewhere the peak stays."""

    def libraries_bytes(self) -> int:
        """Interpreter and libraries once all are imported."""
        missing = (cost for name, cost in LIBRARIES.items() if name not in self.imported)
        return self.resident_bytes + sum(map(self._kept, missing))

    def kernels_bytes(self) -> int:
        """What the compiled kernels and the compiler keep."""
        return sum(map(self._kept, self._kernel_steps()))

    def peak_bytes(self) -> int:
        """Resident peak of starting up, before any weight is read."""
        missing = [cost for name, cost in LIBRARIES.items() if name not in self.imported]
        steps = [*missing, *self._kernel_steps()]
        return self.resident_bytes + sum(step.peak_bytes for step in steps)

    def _kernel_steps(self) -> list[Cost]:
        if self.kernels == "ready":
            return []
        each = KERNEL_CACHED if self.kernels == "cached" else KERNEL_COLD
        return [JIT_START, *[each] * self.num_kernels]

    def _kept(self, cost: Cost) -> int:
        return cost.kept_bytes if self.releases else cost.peak_bytes


def runtime(resident_bytes: int, kernels: KernelState = "cold") -> Runtime:
    """This process as it is now; `kernels` is for the backend to say, which owns their cache."""
    imported = frozenset(name for name in LIBRARIES if name in sys.modules)
    return Runtime(resident_bytes, imported, kernels, releases=sys.platform == "linux")
