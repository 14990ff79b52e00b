"""Does this build of llama.cpp run on this machine? Asked once, in a process that may crash.

Builds compiled for AMX die of an invalid instruction or a segmentation fault where a virtual
machine announces AMX but its system does not grant the tiles. Without the library's extra buffers
(weights repacked for the processor) no tile is used: that is tried next.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.backends.llamacpp.library import PACKAGE, library, package_folder, version
from edgespec.errors import BackendError
from edgespec.models.registry import resolve
from edgespec.system.child_process import Child, PeerError, can_have_children, serve
from edgespec.system.disk_cache import fact_path, keep_json, kept_json
from edgespec.system.hardware import hardware
from edgespec.system.records import dataclass

REBUILD = (
    'CMAKE_ARGS="-DGGML_NATIVE=ON" CFLAGS="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16" '
    'CXXFLAGS="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16" '
    f"pip install --force-reinstall --no-cache-dir --no-binary {PACKAGE} {PACKAGE}"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found; remembered by build and machine."""

    runs: bool
    extra_buffers: bool = True
    complaint: str = ""
    """How it ended with extra buffers."""

    def note(self) -> str:
        """What is slower here than it could be, and what to type, "" when nothing is."""
        if self.extra_buffers:
            return ""
        return (
            "llama.cpp's repacked weights are left out, because with them "
            f"{self.complaint}; it is faster built without AMX: {REBUILD}"
        )

    def require(self) -> None:
        """Raise BackendError for a build that does not run at all."""
        if not self.runs:
            raise BackendError(
                f"the llamacpp backend cannot be used: {PACKAGE} {version()} does not run on this "
                f"processor ({self.complaint}); build it without AMX: {REBUILD}"
            )


def probed() -> Verdict:
    """The verdict on this build and machine, from the cache folder or by trying it now."""
    place = _place()
    found = _read(place)
    if found is None:
        found = _try_out()
        if found.runs and "SIGKILL" not in found.complaint:  # that may have been for memory
            _write(place, found)
    return found


def _try_out() -> Verdict:
    if not can_have_children():  # a program frozen around us: nothing can be tried outside it
        return Verdict(runs=True)
    complaint = ""
    for extra in (True, False):
        try:
            with Child(__name__, {"extra_buffers": extra}, name="a trial", GGML_NO_BACKTRACE="1"):
                return Verdict(True, extra, complaint)
        except PeerError as error:
            complaint = complaint or str(error)
    return Verdict(False, False, complaint)


def _place() -> Path:
    """The key: the build's files and the machine."""
    folder = package_folder()
    files = sorted((folder / "lib").glob("*")) if folder is not None else []
    parts: list[Any] = [version(), str(folder)]
    parts += [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    cpu = hardware()
    parts += [cpu.cpu_name, cpu.isa]
    return fact_path("llamacpp", *parts)


def _read(place: Path) -> Verdict | None:
    values = kept_json(place)
    try:
        said = str(values["complaint"])
        return Verdict(bool(values["runs"]), bool(values["extra_buffers"]), said)
    except (KeyError, TypeError):
        return None


def _write(place: Path, verdict: Verdict) -> None:
    values = {
        "runs": verdict.runs,
        "extra_buffers": verdict.extra_buffers,
        "complaint": verdict.complaint,
    }
    keep_json(place, values)


def _start(request: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The child's side: one token and a batch of the bundled model, as the backend runs them."""
    from edgespec.backends.llamacpp.model import Context, ContextSettings, Model
    from edgespec.backends.llamacpp.pass_batch import Batch

    model = Model(library(), resolve(), extra_buffers=request["extra_buffers"])
    context = Context(model, ContextSettings(context=256, rows=64, nodes=1, threads=1))
    batch = Batch(context.api, rows=64, nodes=1)
    for start, count in ((0, 1), (1, 64)):
        batch.fill_chain(np.arange(1, count + 1, dtype=np.int32), start)
        if batch.run(context.handle):
            raise SystemExit("a pass over the bundled model failed")
    return {}, lambda question: question


if __name__ == "__main__":
    serve(_start)
