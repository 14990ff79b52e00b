"""A lock between a compiled pass, which knows its address, and threads of Python."""

from __future__ import annotations

import ctypes
import weakref

from edgespec.backends.native.team import held_lock

# Through a CDLL the GIL is released, and a thread that waits keeps nobody else from working.
_python = ctypes.CDLL(None, handle=ctypes.pythonapi._handle)
_acquire, _release, _free = (
    _python.PyThread_acquire_lock,
    _python.PyThread_release_lock,
    _python.PyThread_free_lock,
)
_acquire.argtypes, _acquire.restype = [ctypes.c_void_p, ctypes.c_int], ctypes.c_int
_release.argtypes = _free.argtypes = [ctypes.c_void_p]


class PassLock:
    """A lock that is closed at first; whoever passes it closes it again."""

    def __init__(self) -> None:
        self.address = held_lock()
        weakref.finalize(self, _give_back, self.address)

    def wait(self) -> None:
        """Until it is open."""
        _acquire(self.address, 1)

    def open(self) -> None:
        """Let one pass; it must be closed."""
        _release(self.address)

    def open_for_good(self) -> None:
        """Let whoever waits pass, whether it is open or closed."""
        _acquire(self.address, 0)
        _release(self.address)


def _give_back(address: int) -> None:
    _acquire(address, 0)
    _release(address)
    _free(address)
