"""Mapped files that are cut while they are mapped.

Reading a page that its file no longer has ends the process (SIGBUS). Once `guard` was called, such
a page becomes one of zeros instead, and is counted: whoever reads mapped files asks afterwards
whether pages were lost, and throws away what it read. On Linux; elsewhere nothing is guarded.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import sys
import threading

_NUM_SIGNALS = 1024
_WITH_ADDRESS = 4
"""SA_SIGINFO."""
_ADDRESS_AT = 16
"""Bytes of siginfo_t before si_addr, with 64-bit pointers."""
_FIXED = 0x10
_ONCE = threading.Lock()
_num_lost = 0
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    """struct sigaction of glibc and musl."""

    _fields_ = (
        ("handler", _HANDLER),
        ("mask", ctypes.c_char * (_NUM_SIGNALS // 8)),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_kept: list[object] = []
"""What must live as long as the handler."""


def guard() -> None:
    """Survive reading mapped files that are cut, from now on."""
    with _ONCE:
        if _kept or not sys.platform.startswith("linux") or ctypes.sizeof(ctypes.c_void_p) != 8:
            return
        system = ctypes.CDLL(None)
        system.mmap.restype = ctypes.c_void_p
        system.mmap.argtypes = (
            *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
            ctypes.c_long,
        )
        page, failed = mmap.PAGESIZE, ctypes.c_void_p(-1).value
        access = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED

        def replace(number: int, info: int, _context: int) -> None:
            """In the thread that read the page, which holds no lock of ours while it reads."""
            global _num_lost
            address = ctypes.c_void_p.from_address(info + _ADDRESS_AT).value or 0
            place = address & -page
            if not place or system.mmap(place, page, access, flags, -1, 0) == failed:
                signal.signal(number, signal.SIG_DFL)  # it ends as it would have
            _num_lost += 1

        action = _Action(_HANDLER(replace), b"", _WITH_ADDRESS, None)
        if system.sigaction(int(signal.SIGBUS), ctypes.byref(action), None) == 0:
            _kept.append(action)


def num_lost_pages() -> int:
    """How many pages were read that were not there any more, since the process began."""
    return _num_lost
