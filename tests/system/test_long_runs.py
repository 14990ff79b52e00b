"""What a program that goes on for long does not keep."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

COLLECTED = """
import gc
from edgespec.__main__ import THRESHOLDS
from edgespec.system.few_collections import usual_collections

class Cycle:
    def __init__(self):
        self.own = self

gc.set_threshold(*THRESHOLDS)
if {usual}:
    usual_collections()
for _ in range(60_000):
    Cycle()
print(sum(isinstance(one, Cycle) for one in gc.get_objects()))
"""

HEAPS = """
import ctypes, threading
from edgespec.system.resident_memory import keep_one_heap
if {one}:
    keep_one_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
places = []
def ask():
    places.append(libc.malloc(ctypes.c_size_t(1000)))
ask()
thread = threading.Thread(target=ask)
thread.start()
thread.join()
print(abs(places[0] - places[1]) >> 20)
"""


def printed(program: str) -> int:
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return int(found.stdout)


def test_garbage_of_requests_does_not_stay() -> None:
    assert printed(COLLECTED.format(usual=False)) > 30_000
    assert printed(COLLECTED.format(usual=True)) < 20_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="heaps are glibc's")
def test_threads_share_one_heap() -> None:
    assert printed(HEAPS.format(one=False)) > 64
    assert printed(HEAPS.format(one=True)) < 64
