"""Which layers go where, on invented models and devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.memory.plan.placement import (
    Device,
    DevicePart,
    ModelUnits,
    device_to_draft,
    place,
    place_best,
)
from edgespec.models.open_model import open_model
from tests.support.gguf_models import write_gguf

UNITS = ModelUnits(layers=(10, 10, 10, 10), head=5, rest=7)
MIXTURE = ModelUnits(layers=(10, 10, 10, 10), head=5, rest=7, experts=(8, 8, 8, 8), active=0.125)


def devices(*budgets: int) -> list[Device]:
    return [Device(f"d{number}", "worker", size) for number, size in enumerate(budgets)]


@pytest.mark.parametrize(
    ("budgets", "compute", "expected"),
    [
        ((1000,), (0,), {"d0": (0, 4, True)}),
        ((1000, 1000), (0, 0), {"d0": (0, 4, True)}),
        ((29,), (0,), {"d0": (2, 2, True)}),
        ((28,), (0,), {"d0": (3, 1, True)}),
        ((29,), (2,), {"d0": (3, 1, True)}),
        ((29, 12), (0, 0), {"d0": (2, 2, True), "d1": (1, 1, False)}),
        ((29, 11), (0, 0), {"d0": (2, 2, True)}),
        ((5, 36), (0, 0), {"d0": (4, 0, True), "d1": (1, 3, False)}),
        ((4, 29), (0, 0), {"d1": (2, 2, True)}),
        ((4,), (0,), {}),
        ((1000,), (1000,), {}),
        ((), (), {}),
    ],
)
def test_devices_are_filled_in_order_from_the_last_layer_on(
    budgets: tuple[int, ...], compute: tuple[int, ...], expected: dict[str, tuple[int, int, bool]]
) -> None:
    parts = place(UNITS, 2, devices(*budgets), compute)
    assert {one.name: (one.first_layer, one.num_layers, one.head) for one in parts} == expected


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=12),
    st.integers(1, 60),
    st.integers(0, 9),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 40)), max_size=5),
)
def test_no_budget_is_ever_passed_and_every_layer_has_one_place(
    layers: list[int], head: int, cache: int, given_devices: list[tuple[int, int]]
) -> None:
    units = ModelUnits(tuple(layers), head, 0)
    budgets, compute = [x for x, _ in given_devices], [y for _, y in given_devices]
    parts = place(units, cache, devices(*budgets), compute)
    end = len(layers)
    for part in parts:
        assert part.total_bytes <= part.budget_bytes
        assert part.first_layer + part.num_layers == end
        assert part.weights_bytes == sum(layers[part.first_layer : end]) + part.head * head
        assert part.cache_bytes == part.num_layers * cache
        end = part.first_layer
    assert sum(part.head for part in parts) == bool(parts)
    more = place(units, cache, devices(*(2 * size for size in budgets)), compute)
    assert sum(part.units for part in more) >= sum(part.units for part in parts)


@pytest.mark.parametrize(
    ("budget", "cpu_moe", "first", "bare", "weights"),
    [
        (100, 0, 0, 0, 45),
        (100, 1, 0, 1, 37),
        (100, 4, 0, 4, 13),
        (13, 4, 0, 4, 13),
        (12, 4, 1, 3, 11),
        (36, 1, 1, 0, 35),
        (20, 3, 1, 2, 19),
        (29, 3, 0, 3, 21),
    ],
)
def test_experts_of_the_first_layers_stay_here(
    budget: int, cpu_moe: int, first: int, bare: int, weights: int
) -> None:
    (part,) = place(MIXTURE, 0, devices(budget), (0,), cpu_moe)
    assert (part.first_layer, part.without_experts, part.weights_bytes) == (first, bare, weights)
    assert part.experts_bytes == 8 * bare
    assert part.read_bytes == 3 * part.num_layers - bare + 5


@pytest.mark.parametrize(
    ("budget", "first", "bare"),
    [
        (45, 0, 0),  # all of it fits
        (44, 0, 1),
        (37, 0, 1),
        (36, 0, 2),
        (13, 0, 4),
        (12, 1, 3),  # never all layers: as many as can be
        (7, 3, 1),
        (6, 4, 0),
    ],
)
def test_experts_leave_only_as_far_as_others_need_room(budget: int, first: int, bare: int) -> None:
    made = [Device("g", "gpu", budget)]
    (part,) = place_best(MIXTURE, 0, made, (0,))
    assert (part.first_layer, part.without_experts) == (first, bare)
    assert place_best(MIXTURE, 0, devices(budget), (0,)) == place(MIXTURE, 0, devices(budget), (0,))
    assert place_best(UNITS, 0, made, (0,)) == place(UNITS, 0, made, (0,))


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 300)), min_size=1, max_size=9),
    st.integers(1, 60),
    st.integers(0, 9),
    st.lists(st.tuples(st.integers(0, 900), st.integers(0, 40)), max_size=4),
)
def test_nothing_else_has_devices_read_more(
    layers: list[tuple[int, int]], head: int, cache: int, given_devices: list[tuple[int, int]]
) -> None:
    """Layers whose experts stay here are tried one by one."""
    whole = tuple(map(sum, layers))
    units = ModelUnits(whole, head, 0, tuple(experts for _, experts in layers), 0.1)
    made = [Device(f"g{place}", "gpu", size) for place, (size, _) in enumerate(given_devices)]
    compute = [scratch for _, scratch in given_devices]

    def read(parts: tuple[DevicePart, ...]) -> int:
        return sum(part.read_bytes + part.cache_bytes for part in parts)

    best = place_best(units, cache, made, compute)
    assert all(part.total_bytes <= part.budget_bytes for part in best)
    for count in range(len(layers) + 1):
        assert read(best) >= read(place(units, cache, made, compute, count))


@pytest.mark.parametrize("tied", [True, False])
def test_units_of_a_model_hold_every_tensor(tmp_path: object, tied: bool) -> None:
    with open_model(write_gguf(f"{tmp_path}/m.gguf", layers=3, tied=tied)) as file:
        units = ModelUnits.of(file.spec, file.tensors.values())
        sizes = {name: tensor.size_bytes for name, tensor in file.tensors.items()}
    embedding = sizes["token_embd.weight"]
    assert len(units.layers) == 3 and units.rest >= embedding
    whole = sum(sizes.values()) + tied * embedding
    padded = sum(units.layers) + units.head + units.rest
    assert whole <= padded <= whole + 1024 * (len(sizes) + 1)


@pytest.mark.parametrize(
    ("budgets", "draft", "expected"),
    [
        ((40,), 15, "d0"),  # read four times a step: 60, where layers would be read once: 40
        ((40,), 10, None),
        ((40,), 41, None),  # it does not fit
        ((100,), 30, None),  # the model fits
        ((60, 50), 20, None),  # on both together
        ((60, 30), 20, "d1"),  # the smaller one, and layers go to the other
        ((60, 30), 35, "d0"),
        ((), 1, None),
    ],
)
def test_small_devices_draft(budgets: tuple[int, ...], draft: int, expected: str | None) -> None:
    found = device_to_draft(devices(*budgets), 100, draft)
    assert (found.name if found else None) == expected
