from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.errors import BudgetError, OptionError
from edgespec.memory.plan.budget import Budget, reserve_bytes
from edgespec.system.hardware import MemorySnapshot
from tests.support.machines import BOARD, CI, CONTAINER, GIB, LAPTOP, MIB, memory


@pytest.mark.parametrize(
    ("text", "machine", "expected"),
    [
        ("2GiB", LAPTOP, 2 * GIB),
        (2**30, LAPTOP, GIB),
        ("50%", LAPTOP, 4 * GIB),
        ("50%", CONTAINER, 256 * MIB),
        ("auto", LAPTOP, 5 * GIB + 40 * MIB - 8 * GIB // 10),
        ("auto", BOARD, 1440 * MIB - 256 * MIB),
        ("auto", CONTAINER, 492 * MIB - 128 * MIB),
        ("auto", CI, 4 * GIB + 40 * MIB - 7 * GIB // 10),
    ],
)
def test_budgets(text: str | int, machine: MemorySnapshot, expected: int) -> None:
    assert Budget.parse(text, machine).size_bytes == expected


@pytest.mark.parametrize(
    ("text", "machine", "words"),
    [
        ("7GiB", LAPTOP, ["7.00 GiB", "5.00 GiB", "8.00 GiB", "--memory 5160MiB"]),
        ("100%", LAPTOP, ["8.00 GiB", "--memory 5160MiB"]),
        ("1GiB", CONTAINER, ["452.0 MiB", "control group", "--memory 492MiB"]),
        ("20MiB", LAPTOP, ["20.0 MiB", "40.0 MiB", "Python"]),
        ("auto", memory(8 * GIB, 300 * MIB), ["300.0 MiB", "reserve"]),
    ],
)
def test_refusals_carry_the_numbers(text: str, machine: MemorySnapshot, words: list[str]) -> None:
    with pytest.raises(BudgetError) as caught:
        Budget.parse(text, machine)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_nonsense_is_wrong_usage() -> None:
    with pytest.raises(OptionError):
        Budget.parse("plenty", LAPTOP)


@given(st.integers(64 * MIB, 2**45), st.floats(0, 1), st.none() | st.floats(0.01, 2))
def test_a_budget_is_always_within_reach(total: int, free: float, limit: float | None) -> None:
    machine = memory(
        total, int(total * free), limit=None if limit is None else int(total * limit), held=MIB
    )
    for text in ("auto", "30%"):
        try:
            budget = Budget.parse(text, machine)
        except BudgetError:
            continue
        assert machine.process_resident_bytes <= budget.size_bytes <= machine.reachable_bytes
    assert 0 < reserve_bytes(machine) <= machine.usable_bytes // 4 + 1


def test_the_source_of_the_number_is_told() -> None:
    assert "kept in reserve" in Budget.parse("auto", BOARD).describe()
    assert "as requested (1GiB)" in Budget.parse("1GiB", BOARD).describe()
