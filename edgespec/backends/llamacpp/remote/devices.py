"""What else computes here: GPUs that llama.cpp's build knows, and workers on other machines.

Drivers are foreign code, which may hang or end the process, so they are asked in another.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from edgespec.backends.llamacpp.ggml import Ggml, GgmlDevice
from edgespec.backends.llamacpp.library import PACKAGE, missing, missing_rpc, shared_folder
from edgespec.backends.llamacpp.remote.address import Address, parse_workers
from edgespec.backends.llamacpp.remote.asking import ask_worker
from edgespec.backends.llamacpp.remote.key import Key
from edgespec.errors import BackendError, OptionError
from edgespec.memory.plan.placement import Device
from edgespec.system.child_process import Child, PeerError, can_have_children, serve
from edgespec.system.size import MIB, format_size, is_auto, parse_size

RESERVE_BYTES, RESERVE_PART = 512 * MIB, 16
"""What "auto" leaves free of a GPU: so much, or one part of so many if that is more, for the screen
and for what others begin meanwhile. A worker has taken off its own reserve before it offers."""
LIMIT_S = 30.0
"""A first start of a GPU's driver may compile."""
_SOFTWARE = ("llvmpipe", "SwiftShader")
"""Drivers of Vulkan that compute on the processor, which say that they are GPUs."""
_PROCESSOR = ("ggml-base", "ggml-cpu", "ggml-rpc", "ggml-blas")
GPU_INSTALL = (
    f'CMAKE_ARGS="-DGGML_CUDA=ON" (or GGML_VULKAN, GGML_METAL) pip install --force-reinstall '
    f"--no-cache-dir --no-binary {PACKAGE} {PACKAGE}"
)


def knows_gpus() -> bool:
    """Whether the build that is installed has code for anything but processors."""
    names = {path.name.partition(".")[0].removeprefix("lib") for path in shared_folder().glob("*")}
    return any(name.startswith("ggml-") and not name.startswith(_PROCESSOR) for name in names)


@cache
def local_devices() -> tuple[GgmlDevice, ...]:
    """Every device of this machine that the build knows, the processor too; raises BackendError.

    Its free memory is that of the first call.
    """
    if not can_have_children():
        raise BackendError("devices are looked for in another process, which cannot be started")
    request = {"folder": str(shared_folder())}
    try:
        with Child(
            __name__, request, name="looking for devices", limit_s=LIMIT_S, GGML_NO_BACKTRACE="1"
        ) as child:
            return tuple(GgmlDevice(**found) for found in child.greeting)
    except PeerError as error:
        raise BackendError(f"llama.cpp's devices cannot be listed: {error}") from None


def gpus() -> tuple[GgmlDevice, ...]:
    """The GPUs among them; a build for processors alone is not asked."""
    if missing() or not knows_gpus():
        return ()
    return tuple(device for device in local_devices() if device.kind in ("gpu", "igpu"))


def own_memory(device: GgmlDevice) -> bool:
    """Whether what it holds is not part of this machine's memory, which has a budget already."""
    is_program = device.description.startswith(_SOFTWARE)
    return device.kind == "gpu" and sys.platform != "darwin" and not is_program


def devices_for(
    vram: str | int,
    workers: str | Sequence[str] | None,
    key_file: str | os.PathLike[str] | None = None,
) -> tuple[Device, ...]:
    """The devices a plan may use, in the order in which it fills them: GPUs, then workers as they
    were named, each with what it has now; together at most `vram` bytes. The key file is the
    workers'.

    "auto" takes what workers offer, and what is free but for a reserve of each GPU with memory of
    its own; where there is none and no worker, of those that share this machine's. Raises
    OptionError for what means nothing here, BackendError when a worker does not answer or the build
    has no RPC.
    """
    addresses = parse_workers(workers, Key(key_file) if workers and key_file else None)
    if not addresses and str(vram).strip() == "0":
        return ()
    found = _workers(addresses)
    if is_auto(vram):
        free = [_device(gpu, _without_reserve(gpu)) for gpu in _gpus_if_any()]
        able = [gpu for gpu in free if gpu.budget_bytes > 0]
        own = [gpu for gpu in able if not gpu.shared]
        return (*(own if own or found else able), *found)
    left = parse_size(vram, whole_bytes=_total_bytes(found)) if str(vram).strip() != "0" else 0
    if left:
        found = (*(_device(gpu, gpu.free_bytes) for gpu in gpus()), *found)
    if not found:
        raise OptionError(
            f"--vram {vram} was asked for, and {_no_gpu()}; leave --vram out, or install a build "
            f"for this machine's GPU: {GPU_INSTALL}"
        )
    capped = []
    for device in found:
        budget = min(device.budget_bytes, left)
        left -= budget
        capped.append(replace(device, budget_bytes=budget))
    return tuple(device for device in capped if device.budget_bytes)


def _device(gpu: GgmlDevice, budget_bytes: int) -> Device:
    shared = not own_memory(gpu)
    return Device(gpu.name, "gpu", budget_bytes, "", gpu.description, shared)


def _without_reserve(gpu: GgmlDevice) -> int:
    return gpu.free_bytes - max(RESERVE_BYTES, gpu.total_bytes // RESERVE_PART)


def unused_gpus(used: Collection[str]) -> str:
    """What a plan that uses these devices says of GPUs it leaves alone, "" where there are none."""
    left = [gpu for gpu in _gpus_if_any() if gpu.name not in used]
    told = ", ".join(f"{one.name} ({format_size(one.free_bytes)} free)" for one in left)
    return f"GPU {told} is not used: --vram takes some of it" if left else ""


def _gpus_if_any() -> tuple[GgmlDevice, ...]:
    try:
        return gpus()
    except BackendError:  # doctor tells
        return ()


def _total_bytes(workers: Sequence[Device]) -> int:
    """What a share is of."""
    return sum(gpu.total_bytes for gpu in gpus()) + sum(one.budget_bytes for one in workers) or 1


def _no_gpu() -> str:
    if missing():
        return "only llama.cpp uses GPUs, which is not installed"
    if not knows_gpus():
        return f"the {PACKAGE} that is installed was built for processors alone"
    return f"{PACKAGE} finds no GPU here"


def _workers(addresses: Sequence[Address]) -> tuple[Device, ...]:
    if not addresses:
        return ()
    why = missing() or missing_rpc()
    if why:
        raise BackendError(f"workers were named and {why}")
    return tuple(
        Device(
            str(address),
            "worker",
            ask_worker(address).free_bytes,
            str(address.key.path) if address.key else "",
        )
        for address in addresses
    )


def _start(request: Any) -> tuple[Any, Callable[[Any], Any]]:
    found = Ggml(Path(request["folder"])).devices()
    return [device._asdict() for device in found], lambda question: question


if __name__ == "__main__":
    serve(_start)
