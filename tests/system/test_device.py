"""Plans for machines that are not this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.errors import BudgetError, OptionError
from edgespec.loading.load import plan_for
from edgespec.loading.load_options import LoadOptions
from edgespec.system.device import device_named, devices
from edgespec.system.size import GIB
from tests.support.gguf_models import write_gguf


@pytest.mark.parametrize("name", devices())
def test_every_device_makes_sense(name: str) -> None:
    device = device_named(name)
    assert 0 <= device.little < device.cores
    assert 0 < device.app_bytes < device.memory_gib * GIB
    assert device.hardware.usable_threads() == device.cores - device.little
    assert device.memory(1).reachable_bytes == device.app_bytes
    assert device.title in device.describe()


def test_unknown_devices_are_told_what_is_known() -> None:
    with pytest.raises(OptionError, match="unknown device 'pixel'; choose pixel-8, .*pi-5"):
        device_named("pixel")


def test_the_plan_is_the_devices(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    made = plan_for(LoadOptions(path), "iphone-15")
    assert made.threads == 2 and made.budget_bytes <= 3 * GIB
    assert made.reasons[0].startswith("for Apple iPhone 15")
    fast, slow = (plan_for(LoadOptions(path), name).candidates[0] for name in ("pixel-8", "pi-4"))
    assert fast.tokens_per_second / slow.tokens_per_second == pytest.approx(68 / 12.8)
    assert fast.basis == "estimated"


def test_what_does_not_fit_is_refused_and_told_what_would(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    with pytest.raises(BudgetError, match="--memory"):
        plan_for(LoadOptions(path, memory="20MiB"), "pi-4")
    with pytest.raises(OptionError, match="native backend"):
        plan_for(LoadOptions(path, backend="llamacpp"), "pi-4")
