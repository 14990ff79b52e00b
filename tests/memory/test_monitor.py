from __future__ import annotations

import json
import subprocess
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import psutil
import pytest

from edgespec.system import library_pages, resident_memory

MIB = 1024**2
linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


def test_a_peak_outlives_what_caused_it() -> None:
    array = np.ones(32 * MIB // 8)
    held = resident_memory.resident_bytes()
    del array
    rounding = MIB  # the kernel counts resident pages per processor and sums them now and then
    assert resident_memory.peak_resident_bytes() >= held - rounding
    assert resident_memory.peak_resident_bytes() >= resident_memory.resident_bytes() - rounding


@linux
def test_the_peak_can_begin_anew() -> None:
    array = np.ones(64 * MIB // 8)
    del array
    high = resident_memory.peak_resident_bytes()
    if not resident_memory.reset_peak():
        pytest.skip("the system does not let a process reset its peak")
    assert resident_memory.peak_resident_bytes() <= high - 32 * MIB


def test_releasing_returns_what_it_gave_back() -> None:
    assert resident_memory.release_free_memory() >= 0


@linux
def test_a_process_lives_on_after_its_code_pages_are_dropped() -> None:
    program = (
        "import json, numpy, ssl\n"
        "from edgespec.system.resident_memory import release_free_memory, resident_bytes\n"
        "before = resident_bytes()\n"
        "given = sum(release_free_memory() for _ in range(3))\n"
        "product = numpy.ones((9, 9)) @ numpy.ones(9)\n"
        "print(json.dumps([given, before, product.sum()]))\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    given, before, total = json.loads(done.stdout)
    assert total == 81.0
    assert 2 * MIB < given < before


def mapping(span: str, mode: str, path: str, anonymous: int = 0, swap: int = 0) -> list[str]:
    return [
        f"{span} {mode} 00000000 fe:00 123    {path}",
        "Size:                 16 kB",
        "Rss:                   8 kB",
        f"Anonymous:            {anonymous} kB",
        f"Swap:                 {swap} kB",
        "VmFlags: rd mr mw me sd",
    ]


MAPPINGS = [
    mapping("1000-2000", "r-xp", "/lib/a.so"),
    mapping("2000-3000", "r--p", "/lib/a.so"),
    mapping("3000-4000", "r--p", "/lib/a.so", 4, 0),
    mapping("4000-5000", "r--p", "/lib/a.so", 0, 4),
    mapping("5000-6000", "rw-p", "/lib/a.so"),
    mapping("6000-7000", "r--p", "/data/only data"),
    mapping("7000-8000", "r-xp", "/lib/patched.so", 4, 0),
    mapping("8000-9000", "r-xp", "[vdso]"),
    mapping("9000-a000", "r-xp", ""),
    mapping("a000-b000", "r--s", "/models/model.gguf"),
]


def test_mappings_with_changed_pages_are_left_alone() -> None:
    found = library_pages.clean_code_mappings("\n".join(chain.from_iterable(MAPPINGS)))
    assert [(m.start, m.end) for m in found] == [(0x1000, 0x2000), (0x2000, 0x3000)]
    assert [m.resident_bytes for m in found] == [8192, 8192]


def test_a_mapping_is_looked_up_once_and_a_new_one_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The walk over all pages is taken when there is something new, and changed pages stay."""
    texts = {
        library_pages._MAPS: "\n".join(lines[0] for lines in MAPPINGS),
        library_pages._SMAPS: "\n".join(chain.from_iterable(MAPPINGS)),
    }
    read: list[str] = []
    dropped: list[list[int]] = []
    monkeypatch.setattr(library_pages, "_text", lambda path: read.append(path) or texts[path])
    monkeypatch.setattr(
        library_pages, "_drop", lambda found: dropped.append([one.start for one in found])
    )
    pages = library_pages.LibraryPages()
    for _ in range(3):
        pages.drop()
    assert dropped == [[0x1000, 0x2000]] * 3
    assert read.count(library_pages._SMAPS) == 1
    for new in (
        mapping("c000-d000", "r-xp", "/lib/b.so"),
        mapping("d000-e000", "r--p", "/lib/b.so", 4),
    ):
        texts[library_pages._MAPS] += f"\n{new[0]}"
        texts[library_pages._SMAPS] += "\n" + "\n".join(new)
        pages.drop()
    assert dropped[3:] == [[0x1000, 0x2000, 0xC000]] * 2
    assert read.count(library_pages._SMAPS) == 3
    texts[library_pages._MAPS] = MAPPINGS[0][0]
    pages.drop()
    assert dropped[-1] == [0x1000]
    assert read.count(library_pages._SMAPS) == 3


@linux
def test_mappings_are_told_in_the_same_words_twice() -> None:
    """By which those that were looked up are known again."""
    maps, smaps = (
        library_pages._text(path) for path in (library_pages._MAPS, library_pages._SMAPS)
    )
    first, second = ({one[0] for one in library_pages._code_lines(text)} for text in (maps, smaps))
    assert first
    assert len(first & second) > 0.9 * len(first)


def test_elsewhere_nothing_happens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in (resident_memory, library_pages):
        monkeypatch.setattr(module, "Path", lambda _: tmp_path / "absent")
    assert library_pages.code_bytes() == 0
    assert resident_memory.peak_resident_bytes() > 0
    assert resident_memory.release_free_memory() >= 0


@linux
def held_bytes(path: Path) -> int:
    """Resident bytes of a file's mappings."""
    maps = psutil.Process().memory_maps(grouped=True)
    return sum(each.rss for each in maps if each.path == str(path))


def test_pages_of_a_mapped_file_are_given_back(tmp_path: Path) -> None:
    """Clean ones: those of a mapping that was written to stay as they are."""
    kept, written = tmp_path / "kept.bin", tmp_path / "written.bin"
    for path in (kept, written):
        path.write_bytes(b"\1" * (8 * MIB))
    maps = [np.memmap(path, np.uint8, mode="c") for path in (kept, written)]
    assert [int(each.sum()) for each in maps] == [8 * MIB, 8 * MIB]
    maps[1][0] = 7
    library_pages.release_pages([tmp_path / "none.bin"])
    before = held_bytes(written)
    assert held_bytes(kept) == 8 * MIB
    library_pages.release_pages([kept, written])
    assert (held_bytes(kept), held_bytes(written)) == (0, before)
    assert maps[1][0] == 7
    assert int(maps[0].sum()) == 8 * MIB
