"""Files that appear whole or not at all: what a killed writer leaves, and who clears it away."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from edgespec.system.whole_file import whole_file
from tests.support.command_line import environment

WRITE = """
import sys
from pathlib import Path
from edgespec.system.whole_file import whole_file
with whole_file(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    sys.stdin.read()
"""


def writing(path: Path) -> subprocess.Popen[str]:
    """A process that is in the middle of a file."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITE, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    assert writer.stdout is not None and writer.stdout.readline() == "writing\n"
    return writer


def test_the_next_writer_clears_away_what_a_killed_one_left(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    killed, alive = writing(path), writing(path)
    killed.kill()
    killed.communicate()
    assert path.read_bytes() == b"before" and len(list(tmp_path.iterdir())) == 3
    beside = tmp_path / "file.of-another.part"
    beside.touch()
    with whole_file(path) as file:
        file.write(b"after")
    assert path.read_bytes() == b"after"
    (left,) = {*tmp_path.iterdir()} - {path, beside}
    assert f".{alive.pid}-" in left.name, "a writer that lives keeps its file"
    alive.communicate("")
    assert path.read_bytes() == b"half" and {*tmp_path.iterdir()} == {path, beside}


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    with pytest.raises(RuntimeError), whole_file(path) as file:
        file.write(b"after")
        raise RuntimeError
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
@pytest.mark.parametrize("private", [True, False])
def test_only_what_is_private_is_its_owners_alone(private: bool, tmp_path: Path) -> None:
    path, before = tmp_path / "file", os.umask(0o022)
    try:
        with whole_file(path, private=private):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == (0o600 if private else 0o644)


def test_a_number_that_another_process_has_by_now_keeps_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    old = tmp_path / f"file.{os.getpid()}-0123.part"
    old.touch()
    os.utime(old, (1, 1))
    with whole_file(path):
        pass
    assert list(tmp_path.iterdir()) == [path]
