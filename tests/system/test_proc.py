"""What is read from /proc agrees with psutil, and says None where there is nothing to read."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from edgespec.system import proc, processor_load

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@linux
def test_as_psutil_reads_it() -> None:
    told, asked = proc.memory(), psutil.virtual_memory()
    assert told is not None
    assert told.total == asked.total
    assert abs(told.available - asked.available) < 0.2 * asked.total
    ours, theirs = proc.resident_bytes(os.getpid()), psutil.Process().memory_info().rss
    assert ours is not None and abs(ours - theirs) < 0.1 * theirs
    assert proc.physical_cores() in (None, psutil.cpu_count(logical=False))


@linux
def test_a_process_that_is_gone() -> None:
    with pytest.raises(ProcessLookupError):
        proc.resident_bytes(2**22 + 1)


@linux
def test_ticks_as_psutil_reads_them() -> None:
    told, asked = proc.idle_ticks(), psutil.cpu_times(percpu=True)
    assert told is not None and len(told) == len(asked)
    hertz = os.sysconf("SC_CLK_TCK")
    for (idle, all_), one in zip(told.values(), asked, strict=True):
        assert abs(idle / hertz - one.idle - one.iowait) < 2.0
        assert idle <= all_


def test_a_busy_processor_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor_load.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(processor_load.time, "sleep", lambda _: None)
    for idle, threads, busy in ((10, 2, False), (10, 1, False), (4, 2, True), (1, 1, False)):
        seen = iter([{0: (0, 0), 1: (0, 0), 2: (0, 0)}, {0: (10, 10), 1: (idle, 10), 2: (0, 10)}])
        monkeypatch.setattr(processor_load.proc, "idle_ticks", lambda seen=seen: next(seen))
        assert processor_load.is_busy(threads) is busy


def test_elsewhere_and_where_it_is_hidden(tmp_path: Path) -> None:
    assert proc.resident_bytes(proc=tmp_path) is None
    assert proc.memory(tmp_path) is None
    assert proc.physical_cores(tmp_path / "cpu") is None
    assert proc.idle_ticks(tmp_path) is None
    (tmp_path / "stat").write_text("intr 12\n", "ascii")
    assert proc.idle_ticks(tmp_path) is None
    (tmp_path / "stat").write_text("cpu  1 2\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 1\n", "ascii")
    assert proc.idle_ticks(tmp_path) == {0: (9, 36)}
    (tmp_path / "meminfo").write_text("MemTotal:       12 kB\n", "ascii")
    assert proc.memory(tmp_path) is None
    (tmp_path / "meminfo").write_text("MemTotal:  12 kB\nMemAvailable:  3 kB\n", "ascii")
    assert proc.memory(tmp_path) == (12 * 1024, 3 * 1024, 0)


def test_threads_of_a_core_count_once(tmp_path: Path) -> None:
    for name, core in (("cpu0", "0,2"), ("cpu1", "1,3"), ("cpu2", "0,2"), ("cpu3", "1,3")):
        place = tmp_path / name / "topology"
        place.mkdir(parents=True)
        (place / "core_cpus_list").write_text(core + "\n", "ascii")
    (tmp_path / "cpufreq").mkdir()
    assert proc.physical_cores(tmp_path) == 2
