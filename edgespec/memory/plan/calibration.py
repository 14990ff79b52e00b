"""Measured costs of what arithmetic cannot know: the interpreter, its libraries, the compiler.

All on CPython 3.11, Linux x86-64, glibc, Numba 0.68 (LLVM 20), NumPy 2.4; resident set of a fresh
process, median of three. "Peak" is the growth while it happens, pages of shared libraries included;
"kept" is what is left of it after `release_free_memory` has given those back.
"""

from __future__ import annotations

import sys
from typing import Literal

from edgespec.system.library_pages import code_bytes
from edgespec.system.records import dataclass
from edgespec.system.size import KIB, MIB

KernelState = Literal["ready", "library", "cached", "cold"]
"""Compiled in this process already, with the package, by an earlier process, or not yet."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one step of starting up adds to the resident set, in bytes."""

    peak_bytes: int
    kept_bytes: int


LIBRARIES: dict[str, Cost] = {
    "numpy": Cost(12 * MIB, 4 * MIB),
    "numba": Cost(69 * MIB, 26 * MIB),
}
"""By module name, in the order they are imported before the weights are read; Numba's holds the
package's own modules that come with it.
"""

KERNELS: dict[KernelState, Cost] = {
    "ready": Cost(0, 0),
    "library": Cost(13 * MIB, 11 * MIB),
    "cached": Cost(47 * MIB, 16 * MIB),
    "cold": Cost(252 * MIB, 16 * MIB),
}
"""All kernels of a session: machine code, and what Numba and LLVM keep for good beside it; with the
library, the package's own modules that come after planning, which Numba's figure holds otherwise.

Loading from the cache wakes up LLVM's linker, but not what Numba compiles with. A cold start
compiles in child processes of 187 MiB (one type of weights) to 248 (compiled steps), imports
included, because compiling leaves 150 MiB behind that cannot be given back; then this process
starts from the cache.
"""

COMPILER_PAGES = 36 * MIB
"""What such a child holds besides where library pages cannot be given back."""

PART_KERNELS_BYTES = 5 * MIB
"""Kernels of experts, or of states, and what comes back of libraries beside them: peaks of chats
with models that are otherwise alike (docs/lab/2026-11-22-architectures.md).
"""

DRAFTER_KERNELS_BYTES = 5 * MIB // 2
"""Compiled kernels of one more drafter than the default one."""

THREAD_BYTES = 128 * KIB
"""Stack pages and thread-local heap one more worker thread touches."""

TOKENIZER_BYTES = 1 * MIB
TOKENIZER_BYTES_PER_TOKEN = 320
"""Texts, kinds, and the map from text to id with merges or scores (32,000 and 150,000 tokens)."""

SESSION_BYTES = 12 * MIB
"""Library pages that come back while working (5 to 8 MiB), modules imported late (`regex` 4.6,
`jinja2` 1.9 MiB), text, statistics: 5 MiB for plain text, 11 for a chat.
"""

SAMPLING_BYTES_PER_TOKEN = 24
"""What choosing a token holds at most: top-k's heap, 8 bytes each when it takes nearly all tokens,
and maxima of rows for a backend that has none.
"""

SLACK = 0.01
"""Allocator rounding and fragmentation, as a share of everything else that is not weights."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """How far this process has started up: what is resident, and what is still to come."""

    resident_bytes: int
    code_bytes: int = 0
    """Part of it that `release_free_memory` will give back (`code_bytes`)."""
    imported: frozenset[str] = frozenset()
    """Those of `LIBRARIES` that are imported already."""
    kernels: KernelState = "cold"
    releases: bool = True
    """Library pages can be given back after the start (Linux); elsewhere the peak stays."""

    def interpreter_bytes(self) -> int:
        """What this process holds already and will keep: the interpreter, and whatever else."""
        return self.resident_bytes - self.code_bytes

    def libraries_bytes(self) -> int:
        """What libraries that are still to be imported keep once unused pages are given back."""
        return sum(self._kept(cost) for cost in self._missing())

    def kernels_bytes(self) -> int:
        """What the compiled kernels and the compiler keep."""
        return self._kept(KERNELS[self.kernels])

    def peak_bytes(self) -> int:
        """Resident peak of starting up, children included, before any weight is read.

        Libraries are imported, their unused pages given back, then kernels compiled or loaded: each
        step adds its peak to what those before it keep.
        """
        importing = self.resident_bytes + sum(cost.peak_bytes for cost in self._missing())
        kernels = KERNELS[self.kernels].peak_bytes
        if not self.releases:
            return importing + kernels + (COMPILER_PAGES if self.kernels == "cold" else 0)
        return max(importing, self.interpreter_bytes() + self.libraries_bytes() + kernels)

    def _missing(self) -> list[Cost]:
        none = {"numba"} if self.kernels == "library" else set()
        here = self.imported | none
        return [cost for name, cost in LIBRARIES.items() if name not in here]

    def _kept(self, cost: Cost) -> int:
        return cost.kept_bytes if self.releases else cost.peak_bytes


def runtime(resident_bytes: int, kernels: KernelState = "cold") -> Runtime:
    """This process as it is now; `kernels` is for the backend to say, which owns their cache."""
    imported = frozenset(name for name in LIBRARIES if name in sys.modules)
    releases = sys.platform == "linux"
    return Runtime(resident_bytes, code_bytes(), imported, kernels, releases)
