"""A phone's Python, as far as another machine can play it: no compiler, another name of the system,
little to be read in /proc, next to nothing that may be locked in memory, and few packages.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgespec.system import precompiled
from tests.support.command_line import environment

NO_LIBRARY = precompiled.refusal()
COMPILER = ("numba", "llvmlite")
APART = (*COMPILER, "huggingface_hub", "pydantic", "rich", "tokenizers", "typer")
"""What an app need not carry."""
_RUN = f"""
import builtins, io, json, sys
import numpy, psutil  # they know the system that they were built for
sys.platform = "android"
for name in {APART}:
    sys.modules[name] = None  # importing it fails
if sys.argv[1] == "library":
    import resource
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 * 1024, 64 * 1024))
hidden = ("/proc/cpuinfo", "/proc/self/smaps", "/proc/self/cgroup", "/proc/self/mountinfo",
          "/sys/devices", "/sys/fs", "/sys/class")
opened = io.open
def guarded(file, *arguments, **options):
    if str(file).startswith(hidden):
        raise PermissionError(13, "Permission denied", str(file))
    return opened(file, *arguments, **options)
builtins.open = io.open = guarded
import edgespec
with edgespec.load(backend=sys.argv[2], memory="400MiB", threads=2) as engine:
    made = engine.generate("Tell me something.", max_tokens=12, seed=3)
    print(json.dumps(made.token_ids))
    assert made.stats.peak_memory_bytes > 0
    print(engine.chat("Be brief.").send("Hello.", max_tokens=6, seed=4).token_ids)
    made = engine.generate_batch(["One", "Two"], max_tokens=6, seed=5)
    print([one.token_ids for one in made])
"""


def _tokens(program: str, kernels: str, backend: str) -> str:
    own = environment() | ({"EDGESPEC_KERNELS": kernels} if kernels else {})
    command = [sys.executable, "-c", program, kernels, backend]
    done = subprocess.run(command, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(bool(NO_LIBRARY), reason=f"no precompiled kernels: {NO_LIBRARY}")
def test_a_phone_writes_what_others_write() -> None:
    plain = _RUN.split("sys.platform", 1)[0] + "import edgespec" + _RUN.split("import edgespec")[1]
    assert _tokens(_RUN, "library", "native") == _tokens(plain, "library", "native")


@pytest.mark.skipif(bool(NO_LIBRARY), reason=f"no precompiled kernels: {NO_LIBRARY}")
def test_the_command_needs_no_typer_there() -> None:
    started = _RUN.split("import edgespec")[0] + (
        "sys.argv = ['edgespec', 'run', '--max-tokens', '4', '--seed', '1', 'Hello.']\n"
        "sys.stdin = opened('/dev/null')\n"
        "from edgespec.__main__ import main\n"
        "main()\n"
    )
    assert _tokens(started, "library", "native").strip()


def test_planning_needs_none_of_the_other_packages() -> None:
    """Where there may be no library, with the compiler: everything but the kernels."""
    planned = _RUN.replace(str(APART), str(APART[len(COMPILER) :])).split("with edgespec")[0]
    planned += "print(edgespec.plan(memory='400MiB').threads > 0)"
    assert _tokens(planned, "", "native") == "True\n"
