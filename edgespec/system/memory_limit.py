"""A limit to what this process allocates."""

from __future__ import annotations

import sys
from contextlib import suppress

from edgespec.system.size import MIB

_STACKS_BYTES = 128 * MIB
"""Of threads: the system counts all that they may grow to."""


def limit_memory(size_bytes: int) -> None:
    """Past it allocations fail, where the system has such a limit; a lower one stays."""
    if sys.platform != "win32":
        import resource

        size = size_bytes + _STACKS_BYTES
        with suppress(ValueError, OSError):  # a lower limit is set, or macOS has none
            resource.setrlimit(resource.RLIMIT_DATA, (size, size))
