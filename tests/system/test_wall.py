"""The wall around foreign code: what a process inside can still do, tried in one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import environment

TRIES = """
import json, os, socket, subprocess, sys, threading
from pathlib import Path
from edgespec.system.wall import enclose
inside, outside, pid = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
if not enclose([inside]):
    print("null")
    sys.exit()
def attempt(action):
    try:
        action()
        return "done"
    except OSError as error:
        return type(error).__name__
def all_of_it():
    return {
        "read inside": attempt(lambda: (inside / "a").read_bytes()),
        "read outside": attempt(lambda: (outside / "a").read_bytes()),
        "list outside": attempt(lambda: os.listdir(outside)),
        "read by a link": attempt(lambda: (inside / "link").read_bytes()),
        "write inside": attempt(lambda: (inside / "b").write_bytes(b"x")),
        "cut inside": attempt(lambda: os.truncate(inside / "a", 0)),
        "remove inside": attempt(lambda: (inside / "a").unlink()),
        "write in temporary": attempt(lambda: Path("/tmp/edgespec-wall-test").write_bytes(b"x")),
        "connect": attempt(lambda: socket.create_connection(("127.0.0.1", 9))),
        "ask names": attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
        "local socket": attempt(lambda: socket.socket(socket.AF_UNIX)),
        "begin a program": attempt(lambda: subprocess.run(["/bin/true"])),
        "end another": attempt(lambda: os.kill(pid, 0)),
        "look into another": attempt(lambda: Path(f"/proc/{pid}/environ").read_bytes()),
    }
found = {"main": all_of_it()}
thread = threading.Thread(target=lambda: found.update(thread=all_of_it()))
thread.start()
thread.join()
import fractions, numpy  # what Python reads later is still there
found["allocated"] = float(numpy.ones(1 << 16).sum())
print(json.dumps(found))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no wall elsewhere yet")
def test_inside_the_wall_nothing_can_be_reached_but_what_was_named(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "a").write_bytes(b"a")
    (inside / "link").symlink_to(outside / "a")
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        done = subprocess.run(
            [sys.executable, "-c", TRIES, str(inside), str(outside), str(other.pid)],
            capture_output=True, text=True, env=environment(), check=True,
        )  # fmt: skip
    finally:
        other.communicate(b"\n")
    found: dict[str, Any] | None = json.loads(done.stdout)
    if found is None:
        pytest.skip("this kernel has no Landlock or no seccomp")
    assert found["allocated"] == 1 << 16
    for thread in ("main", "thread"):
        tried = found[thread]
        assert tried.pop("read inside") == "done"
        assert "done" not in tried.values(), tried
    assert (inside / "a").read_bytes() == b"a"


def test_elsewhere_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgespec.system import wall

    monkeypatch.setattr("sys.platform", "darwin")
    assert not wall.enclose([])
