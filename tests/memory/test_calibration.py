"""The process a plan starts from, on invented processes and on this one."""

from __future__ import annotations

import sys

import pytest

from edgespec.memory.plan import calibration
from edgespec.memory.plan.calibration import KERNELS, LIBRARIES, KernelState, Runtime, runtime
from edgespec.system.resident_memory import resident_bytes
from tests.support.machines import MIB


def test_a_fresh_process_pays_for_everything() -> None:
    fresh = Runtime(20 * MIB, 6 * MIB)
    assert fresh.interpreter_bytes() == 14 * MIB
    assert fresh.libraries_bytes() == sum(c.kept_bytes for c in LIBRARIES.values())
    assert fresh.kernels_bytes() == KERNELS["cold"].kept_bytes
    held = fresh.interpreter_bytes() + fresh.libraries_bytes()
    assert fresh.peak_bytes() == held + KERNELS["cold"].peak_bytes


def test_the_peak_of_importing_counts_where_it_is_the_largest() -> None:
    importing = Runtime(300 * MIB, 280 * MIB, kernels="cached")
    expected = 300 * MIB + sum(c.peak_bytes for c in LIBRARIES.values())
    assert importing.peak_bytes() == expected


def test_a_started_process_pays_nothing_again() -> None:
    ready = Runtime(120 * MIB, 50 * MIB, frozenset(LIBRARIES), "ready")
    assert ready.interpreter_bytes() == 70 * MIB
    assert ready.libraries_bytes() == ready.kernels_bytes() == 0
    assert ready.peak_bytes() == 120 * MIB


@pytest.mark.parametrize("kernels", ["ready", "cached", "cold"])
def test_where_nothing_is_given_back_the_peak_stays(kernels: KernelState) -> None:
    stuck = Runtime(20 * MIB, 0, frozenset(), kernels, releases=False)
    kept = stuck.interpreter_bytes() + stuck.libraries_bytes() + stuck.kernels_bytes()
    child = calibration.COMPILER_PAGES if kernels == "cold" else 0
    assert stuck.peak_bytes() == kept + child


def test_costs_are_in_order() -> None:
    for cost in (*LIBRARIES.values(), *KERNELS.values()):
        assert 0 <= cost.kept_bytes <= cost.peak_bytes
    assert KERNELS["cached"].peak_bytes < KERNELS["cold"].peak_bytes


def test_this_process() -> None:
    now = runtime(resident_bytes(), "cached")
    assert now.kernels == "cached"
    assert now.imported == {name for name in LIBRARIES if name in sys.modules}
    assert 0 <= now.code_bytes < now.resident_bytes
    assert now.releases == (sys.platform == "linux")
    assert calibration.TOKENIZER_BYTES_PER_TOKEN > 0
