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
import ctypes, json, os, platform, resource, signal, socket, subprocess, sys, threading
from pathlib import Path
from edgespec.system.wall import _CALLS, _OF_ITSELF, enclose
inside, outside, pid = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
_, calls = _CALLS.get(platform.machine(), (0, {}))
SHMGET, KEYCTL = calls.get("shmget", -1), calls.get("keyctl", -1)
_, TGKILL = _OF_ITSELF.get(platform.machine(), (-1, -1))
system = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    if system.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")
given, open_file = os.pidfd_open(pid), os.open(outside / "open", os.O_RDWR | os.O_CREAT)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
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
        "limit another": attempt(lambda: resource.prlimit(pid, resource.RLIMIT_AS, (1, 1))),
        "end a thread of another": attempt(lambda: call(TGKILL, pid, pid, 0)),
        "queue a signal": attempt(lambda: signal.pidfd_send_signal(given, 0)),
        "shared memory": attempt(lambda: call(SHMGET, 0, 4096, 0o1600)),
        "the user's keys": attempt(lambda: call(KEYCTL, 0, -4, 0)),
        "a large file": attempt(lambda: os.ftruncate(open_file, 1 << 30)),
    }
found = {"main": all_of_it()}
thread = threading.Thread(target=lambda: found.update(thread=all_of_it()))
thread.start()
thread.join()
import fractions, numpy  # what Python reads later is still there
found["allocated"] = float(numpy.ones(1 << 16).sum())
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # its own limits, and signals to itself
signal.pthread_kill(threading.get_ident(), 0)
found["ended"] = [attempt(lambda: call(TGKILL, os.getpid(), threading.get_native_id(), 0))]
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
    assert found["ended"] == ["done"]
    for thread in ("main", "thread"):
        tried = found[thread]
        assert tried.pop("read inside") == "done"
        assert "done" not in tried.values(), tried
    assert (inside / "a").read_bytes() == b"a"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no wall elsewhere yet")
def test_of_the_cache_all_can_be_read_but_texts(tmp_path: Path) -> None:
    code = (
        "from edgespec.system.disk_cache import cache_folder, cached_facts\n"
        "from edgespec.system.wall import enclose\n"
        "if not enclose(cached_facts()): print('no wall')\n"
        "for name in ('kernels', 'llamacpp', 'prompts', 'spill'):\n"
        "    try: print((cache_folder() / name / 'a').read_text())\n"
        "    except OSError as error: print(type(error).__name__)\n"
    )
    for name in ("kernels", "llamacpp", "prompts", "spill"):
        (tmp_path / name).mkdir(mode=0o700)
        (tmp_path / name / "a").write_text(name)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment() | {"EDGESPEC_CACHE": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = done.stdout.split("\n")[:-1]
    if "no wall" in found:
        pytest.skip("this kernel has no Landlock or no seccomp")
    assert found == ["kernels", "llamacpp", "PermissionError", "PermissionError"]


def test_elsewhere_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgespec.system import wall

    monkeypatch.setattr("sys.platform", "darwin")
    assert not wall.enclose([])
