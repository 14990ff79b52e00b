"""Devices on invented machines, and what happens when looking for them hangs."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from edgespec.backends.llamacpp import library
from edgespec.backends.llamacpp.ggml import GgmlDevice
from edgespec.backends.llamacpp.remote import devices
from edgespec.errors import BackendError, OptionError
from edgespec.memory.plan.placement import Device
from edgespec.system.child_process import Child, PeerError
from edgespec.system.size import GIB, MIB
from tests.support.targets import missing

WHY = missing("llamacpp")
TWO = (
    GgmlDevice("CUDA0", "a large one", "gpu", 6 * GIB, 8 * GIB),
    GgmlDevice("CUDA1", "a small one", "gpu", 2 * GIB, 4 * GIB),
)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(devices, "gpus", lambda: TWO)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("vram", "budgets"),
    [
        ("4GiB", [4]),
        ("7GiB", [6, 1]),
        ("100%", [6, 2]),
        ("50%", [6]),
        ("auto", [5.5, 1.5]),
        ("0", []),
    ],
)
def test_gpus_are_filled_in_order_up_to_the_budget(vram: str, budgets: list[float]) -> None:
    found = devices.devices_for(vram, None)
    assert found == tuple(
        Device(gpu.name, "gpu", int(size * GIB), description=gpu.description)
        for gpu, size in zip(TWO, budgets, strict=False)
    )


@pytest.mark.usefixtures("two_gpus")
def test_a_plan_names_the_gpus_it_leaves_alone() -> None:
    used = [device.name for device in devices.devices_for("4GiB", None)]
    assert devices.unused_gpus(()).startswith("GPU CUDA0 (6.00 GiB free), CUDA1 (2.00 GiB free) is")
    assert "CUDA0" not in devices.unused_gpus(used) and "CUDA1" in devices.unused_gpus(used)


@pytest.mark.parametrize(
    ("kind", "said", "free", "total", "budget", "shared"),
    [
        ("gpu", "a card", 20 * GIB, 32 * GIB, 18 * GIB, False),  # a sixteenth of a large one
        ("gpu", "a card", 512 * MIB, 4 * GIB, 0, False),
        ("igpu", "a part of it", 6 * GIB, 8 * GIB, 5.5 * GIB, True),
        ("gpu", "llvmpipe (LLVM 15.0.6, 256 bits)", 6 * GIB, 8 * GIB, 5.5 * GIB, True),
    ],
)
def test_auto_leaves_a_reserve_and_knows_shared_memory(
    monkeypatch: pytest.MonkeyPatch,
    kind: str, said: str, free: int, total: int, budget: int, shared: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "platform", "linux")
    gpu = GgmlDevice("Vulkan0", said, kind, free, total)
    monkeypatch.setattr(devices, "gpus", lambda: (gpu,))
    found = devices.devices_for("auto", None)
    assert [device.budget_bytes for device in found] == [budget] * bool(budget)
    (asked,) = devices.devices_for("300MiB", None)
    assert asked.budget_bytes == 300 * MIB
    assert {device.shared for device in (asked, *found)} == {shared}


def test_auto_takes_shared_memory_only_where_nothing_else_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    both = (GgmlDevice("Vulkan1", "a part of it", "igpu", 6 * GIB, 8 * GIB), *TWO)
    monkeypatch.setattr(devices, "gpus", lambda: both)
    assert [device.name for device in devices.devices_for("auto", None)] == ["CUDA0", "CUDA1"]
    monkeypatch.setattr(sys, "platform", "darwin")  # where all memory is one
    assert all(device.shared for device in devices.devices_for("auto", None))


def test_a_driver_that_fails_leaves_auto_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise BackendError("the driver hangs")

    monkeypatch.setattr(devices, "gpus", fail)
    assert devices.devices_for("auto", None) == ()
    with pytest.raises(BackendError, match="hangs"):
        devices.devices_for("4GiB", None)


def test_a_gpu_that_is_not_there_cannot_be_given_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: ())
    with pytest.raises(OptionError, match=r"--vram 4GiB was asked for, and .*GPU"):
        devices.devices_for("4GiB", None)
    with pytest.raises(OptionError, match="'GPU' is not a size"):
        devices.devices_for("GPU", None)


@pytest.mark.skipif(bool(WHY), reason=WHY)
def test_this_machine_has_a_processor() -> None:
    assert "cpu" in {device.kind for device in devices.local_devices()}


@pytest.mark.skipif(bool(library.missing()), reason=library.missing())
def test_a_driver_that_crashes_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "shared_folder", lambda: Path("/nowhere"))
    devices.local_devices.cache_clear()
    with pytest.raises(BackendError, match="devices cannot be listed"):
        devices.local_devices()
    devices.local_devices.cache_clear()


def test_a_child_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hanging_driver.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    begin = time.monotonic()
    with pytest.raises(PeerError, match="the driver took longer than 0.5 s"):
        Child("hanging_driver", {}, name="the driver", limit_s=0.5)
    assert time.monotonic() - begin < 20
