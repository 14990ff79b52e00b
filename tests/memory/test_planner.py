from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.errors import BudgetError, OptionError
from edgespec.memory.plan.budget import Budget
from edgespec.memory.plan.calibration import Runtime
from edgespec.memory.plan.plan import Plan
from edgespec.memory.plan.planner import make_plan, quantisation
from edgespec.memory.plan.sizing import LEAST_STORE_BYTES, WEIGHTS, Sizing
from edgespec.models.spec import TensorType
from edgespec.system.hardware import MemorySnapshot
from edgespec.system.size import parse_size
from tests.support.machines import CONTAINER, LAPTOP, MACHINES, MIB, READY, cores, model, tensor

SMALL = model()
BIG = model(dim=1024, layers=24, heads=16, kv_heads=4, ffn=2816, vocab=32000, context=32768)


def plan(budget: str, machine: MemorySnapshot = LAPTOP, which: Any = SMALL, **wishes: Any) -> Plan:
    runtime = wishes.pop("runtime", READY)
    spec, tensors = which
    size = Budget.parse(budget, machine)
    names = ("backend", "drafters", "draft_model")
    parts = {name: wishes.pop(name) for name in names if name in wishes}
    sizing = Sizing(spec, tuple(tensors), runtime, **parts)
    return make_plan(sizing, size, cores(4, logical=8), **wishes)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES.keys())
@pytest.mark.parametrize("which", [SMALL, BIG], ids=["small", "336M"])
def test_auto_plans_fit_every_machine(machine: MemorySnapshot, which: Any) -> None:
    made = plan("auto", machine, which)
    assert made.planned_bytes <= made.budget_bytes <= machine.reachable_bytes
    assert made.context_length >= 256


def test_with_room_nothing_is_given_up() -> None:
    made = plan("auto", which=BIG)
    assert (made.context_length, made.prefill_chunk, made.max_nodes) == (8192, 256, 16)
    assert (made.threads, made.gpu_layers, made.kv_type) == (4, 0, "f16")
    assert made.quantisation == "Q4_0"
    assert made.drafter_bytes == 2 * MIB


def test_less_memory_gives_up_comfort_before_speed() -> None:
    made = [plan(f"{size}MiB", which=BIG) for size in (700, 450, 400, 370, 350, 330)]
    assert all(m.planned_bytes <= m.budget_bytes for m in made)
    contexts = [m.context_length for m in made]
    assert contexts == sorted(contexts, reverse=True)
    assert contexts[0] == 8192 > contexts[1] > 2048 > contexts[-1] > 512
    assert [m.kv_type for m in made] == ["f16"] * 4 + ["int8"] * 2
    assert [m.max_nodes for m in made] == [16] * 6
    assert "--kv-type f16 avoids that" in made[-1].explain()


def test_the_floor_is_reached_and_then_refused() -> None:
    with pytest.raises(BudgetError) as caught:
        plan("200MiB", which=BIG)
    message = str(caught.value)
    for part in ("needs", "weights 180.5 MiB", "budget is 200.0 MiB", "context 256", "--memory"):
        assert part in message
    assert "\n" not in message
    suggested = message.split("--memory ")[1].split(",")[0]
    foot = plan(suggested, which=BIG)
    assert (foot.context_length, foot.max_nodes) == (256, 1)
    with pytest.raises(BudgetError):
        plan(f"{parse_size(suggested) - MIB}", which=BIG)


def test_what_is_asked_for_is_kept_or_refused() -> None:
    assert plan("1GiB", which=BIG, context=16384).context_length == 16384
    assert plan("1GiB", which=BIG, max_nodes=64).max_nodes == 64
    assert plan("350MiB", which=BIG, threads=4).threads == 4
    wishes = {"context": 16384, "threads": 4, "kv_type": "f16"}
    with pytest.raises(BudgetError) as caught:
        plan("450MiB", which=BIG, **wishes)
    assert "with context 16384, f16 KV" in str(caught.value)
    suggested = int(str(caught.value).split("--context ")[1].split()[0])
    made = plan("450MiB", which=BIG, **(wishes | {"context": suggested}))
    assert (made.context_length, made.threads, made.kv_type) == (suggested, 4, "f16")


def test_several_wishes_that_must_all_give_way_are_named_together() -> None:
    with pytest.raises(BudgetError, match=r"--context \d+ and max_nodes=\d+ fits this budget"):
        plan("320MiB", which=BIG, context=32768, max_nodes=256)


def test_a_wish_on_a_hopeless_budget_names_the_smallest_plan() -> None:
    with pytest.raises(BudgetError, match="the smallest plan that fits this model needs"):
        plan("200MiB", which=BIG, context=16384)


def test_more_than_the_machine_has_is_not_suggested() -> None:
    with pytest.raises(BudgetError, match="is the most this process can get now.*smaller"):
        plan("auto", CONTAINER, model(dim=2048, layers=24, heads=16, ffn=8192))


def test_a_cold_start_says_that_later_ones_need_less() -> None:
    cold = Runtime(40 * MIB)
    with pytest.raises(BudgetError, match="only the first start compiles kernels"):
        plan("185MiB", runtime=cold)
    assert plan("185MiB", runtime=replace(cold, kernels="cached")).planned_bytes <= 185 * MIB
    text = plan("400MiB", runtime=cold).explain()
    assert "compiling once, in a child" in text


@pytest.mark.parametrize(
    "wish",
    [
        {"context": 0},
        {"context": 5000},
        {"threads": 0},
        {"threads": 9},
        {"max_nodes": 0},
        {"max_nodes": 257},
        {"backend": "abacus"},
        {"kv_type": "int4"},
        {"kv_type": "int8", "backend": "reference"},
        {"kv_type": "q4", "backend": "reference"},
    ],
    ids=str,
)
def test_impossible_wishes_are_wrong_usage(wish: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        plan("1GiB", **wish)


def test_without_drafting_there_is_one_node_and_no_store() -> None:
    made = plan("1GiB", drafters=())
    assert (made.max_nodes, made.drafter_bytes) == (1, 0)
    assert plan("1GiB", drafters=(), max_nodes=4).drafter_bytes == 0


def test_a_short_model_bounds_everything() -> None:
    made = plan("1GiB", which=model(context=8))
    assert (made.context_length, made.prefill_chunk, made.max_nodes) == (8, 8, 8)


def test_quantisation_names_types_by_their_bytes() -> None:
    tensors = [
        tensor("a", (1024, 256), TensorType.Q4_K),
        tensor("b", (128, 256), TensorType.Q6_K),
        tensor("c", (1, 256), TensorType.F16),
        tensor("norm", (4096,), TensorType.F32),
    ]
    assert quantisation(tensors) == "Q4_K+Q6_K"


def test_the_plan_explains_itself() -> None:
    made = plan("400MiB", which=BIG)
    text = made.explain()
    for part in ("weights", "180.5 MiB", "of a budget of 400.0 MiB", "does not fit", "4 threads"):
        assert part in text
    assert all(len(line) <= 160 for line in text.splitlines())
    values = json.loads(json.dumps(made.as_dict()))
    assert values["planned_bytes"] == sum(values["footprint"].values())


WISHES = st.fixed_dictionaries(
    {},
    optional={
        "context": st.integers(1, 4096),
        "threads": st.integers(1, 8),
        "max_nodes": st.integers(1, 256),
        "kv_type": st.sampled_from(["auto", "f16", "int8", "q4"]),
        "drafters": st.sampled_from([(), ("suffix-automaton",), ("ngram", "trigram")]),
    },
)
"""What a user may ask for; every model here takes a context of 4096."""


@settings(deadline=None, max_examples=80)
@given(st.integers(110, 900), st.sampled_from([SMALL, BIG]), WISHES)
def test_any_budget_is_kept_or_refused(mebibytes: int, which: Any, wishes: dict[str, Any]) -> None:
    try:
        made = plan(f"{mebibytes}MiB", which=which, **wishes)
    except BudgetError as error:
        assert "--memory" in str(error)
        return
    assert made.planned_bytes <= made.budget_bytes
    assert (made.max_nodes > 1) >= (made.drafter_bytes > 0)
    given = {"context": made.context_length, "threads": made.threads, "kv_type": made.kv_type}
    for name, value in given.items():
        assert wishes.get(name, "auto") in ("auto", value)
    if "max_nodes" in wishes:
        assert made.max_nodes == min(wishes["max_nodes"], made.context_length)


def speed(made: Plan) -> tuple[int, ...]:
    """Every setting of a plan, more meaning faster or more comfortable."""
    kept = ("q4", "int8", "f16").index(made.kv_type)
    return (
        made.context_length, made.prefill_chunk, made.max_nodes, made.drafter_bytes, kept,
        made.threads,
    )  # fmt: skip


@settings(deadline=None, max_examples=80)
@given(st.integers(100, 900), st.integers(0, 200), st.sampled_from([SMALL, BIG]), WISHES)
def test_more_memory_lowers_no_setting(
    mebibytes: int, more: int, which: Any, wishes: dict[str, Any]
) -> None:
    try:
        less = plan(f"{mebibytes}MiB", which=which, **wishes)
    except BudgetError:
        return
    made = plan(f"{mebibytes + more}MiB", which=which, **wishes)
    assert all(a <= b for a, b in zip(speed(less), speed(made), strict=True))


@pytest.mark.parametrize("mebibytes", [320, 330, 380, 450, 500])
def test_hardly_any_memory_is_left_unused_while_something_is_given_up(mebibytes: int) -> None:
    made = plan(f"{mebibytes}MiB", which=BIG)
    assert made.budget_bytes - made.planned_bytes < 7 * MIB


def test_what_changing_a_setting_would_give_is_what_the_planner_says() -> None:
    made = plan("1GiB", which=BIG, context=4096)
    found = {one.option or one.name: one for one in made.alternatives}
    assert set(found) == {
        "--context 2048", "--context 8192", "--kv-type int8", "--kv-type q4",
        "--no-speculation", "--threads 1", "--backend reference", "prefill chunk of 32",
    }  # fmt: skip
    assert all(made.planned_bytes + x.change_bytes == x.total_bytes for x in made.alternatives)
    smaller = plan("1GiB", which=BIG, context=4096, kv_type="int8")
    assert found["--kv-type int8"].total_bytes == smaller.planned_bytes
    smallest = plan("1GiB", which=BIG, context=4096, kv_type="q4")
    assert found["--kv-type q4"].total_bytes == smallest.planned_bytes
    alone = plan("1GiB", which=BIG, context=4096, threads=1)
    assert found["--threads 1"].total_bytes == alone.planned_bytes
    assert found["--context 8192"].change_bytes > 0 > found["--context 2048"].change_bytes
    assert json.loads(json.dumps(made.as_dict()))["levers"][0]["name"] == "context"


def test_every_drafter_has_an_item_of_its_own() -> None:
    made = plan("1GiB", which=BIG, drafters=("ngram", "trigram"))
    shares = [made.footprint[name] for name in ("drafter ngram", "drafter trigram", "draft market")]
    assert sum(shares) == made.drafter_bytes
    one, other = (share - LEAST_STORE_BYTES for share in shares[:2])
    assert one / WEIGHTS.get("ngram", 1) == pytest.approx(other / WEIGHTS["trigram"], abs=1)
    assert other > one > 0


def test_a_machine_of_many_cores_gives_up_threads_that_would_not_help_much() -> None:
    spec, tensors = BIG
    budget = Budget.parse("350MiB", LAPTOP)
    sizing = Sizing(spec, tuple(tensors), READY)
    made = make_plan(sizing, budget, cores(64))
    assert made.threads <= 16
    assert "fewer than the 64 cores" in made.explain()
    assert make_plan(sizing, Budget.parse("2GiB", LAPTOP), cores(64)).threads == 64


def test_int8_takes_half_the_memory_of_keys_and_values() -> None:
    usual, smaller = (plan("1GiB", which=BIG, kv_type=kind) for kind in ("auto", "int8"))
    assert (usual.kv_type, smaller.kv_type) == ("f16", "int8")
    half = smaller.footprint["KV cache"] / usual.footprint["KV cache"]
    assert 0.5 < half < 0.53
    assert plan("1GiB", which=BIG, kv_type="f16").footprint == usual.footprint
    assert "int8" in smaller.explain() and "int8" not in usual.explain()
    assert plan("450MiB", which=BIG, kv_type="int8").context_length == 8192
    assert plan("450MiB", which=BIG).context_length < 8192


def test_a_budget_too_small_for_f16_takes_int8_unless_f16_was_asked_for() -> None:
    with pytest.raises(BudgetError, match="--kv-type int8 fits this budget") as caught:
        plan("500MiB", which=BIG, context=12288, kv_type="f16")
    assert "context 12288" in str(caught.value).split("--kv-type")[1]
    made = plan("500MiB", which=BIG, context=12288)
    assert (made.context_length, made.kv_type) == (12288, "int8")
    with pytest.raises(BudgetError) as caught:
        plan("500MiB", which=BIG, context=32768, kv_type="int8")
    assert "--kv-type" not in str(caught.value)


def test_a_plan_says_what_f16_would_leave() -> None:
    made, exact = (plan("350MiB", which=BIG, kv_type=kind) for kind in ("auto", "f16"))
    assert (made.kv_type, made.context_length) == ("int8", 2048)
    assert exact.context_length < 2048
    assert f"f16 would leave a context of {exact.context_length}; the text may" in made.explain()
    asked = plan("500MiB", which=BIG, context=12288)
    assert "KV int8: f16 does not fit" in asked.explain()
    assert "avoids that" not in asked.explain()


def test_int8_is_not_chosen_where_it_saves_next_to_nothing() -> None:
    """A model of few keys and values keeps its text in all budgets, and a long context does not."""
    few = model(dim=1024, layers=4, heads=16, kv_heads=1, ffn=16384, vocab=32000, context=32768)
    made = [plan(f"{size}MiB", which=few) for size in range(280, 340, 4)]
    assert {one.kv_type for one in made} == {"f16"}
    assert made[0].context_length < 1024 < made[-1].context_length
    assert plan("300MiB", which=few, context=32768).kv_type == "int8"


def test_q4_is_chosen_only_where_it_was_asked_for() -> None:
    usual, smaller = (plan("1GiB", which=BIG, kv_type=kind) for kind in ("f16", "q4"))
    quarter = smaller.footprint["KV cache"] / usual.footprint["KV cache"]
    assert 0.25 < quarter < 0.28
    assert "KV q4: as requested" in smaller.explain()
    assert {plan(f"{size}MiB", which=BIG).kv_type for size in range(310, 500, 10)} == {
        "f16",
        "int8",
    }
    tight = plan("320MiB", which=BIG, kv_type="q4")
    assert tight.kv_type == "q4"
    assert tight.context_length > plan("320MiB", which=BIG, kv_type="int8").context_length


def test_the_reference_backend_holds_f32() -> None:
    made = plan("2GiB", which=BIG, backend="reference")
    numbers = sum(math.prod(each.shape) for each in BIG[1])
    assert made.footprint["weights"] == 4 * (numbers + BIG[0].dim)  # and the native backend's ones
    assert made.backend == "reference"


def test_texts_at_once_are_counted_each() -> None:
    one, four = plan("auto", which=BIG), plan("auto", which=BIG, sequences=4)
    assert (one.sequences, four.sequences) == (1, 4)
    assert four.context_length == one.context_length
    assert four.footprint["KV cache"] == 4 * one.footprint["KV cache"]
    name = "drafter suffix-automaton"
    assert four.footprint[name] == 4 * one.footprint[name]
    assert four.max_nodes == 16
    assert plan("auto", which=BIG, sequences=12).max_nodes == 24
    assert "4 replies at once" in four.explain()


@given(mebibytes=st.integers(250, 2500), sequences=st.integers(1, 40), draft=st.booleans())
@settings(deadline=None, max_examples=6)
def test_every_text_keeps_a_node(mebibytes: int, sequences: int, draft: bool) -> None:
    """However small the budget, or it is refused."""
    drafters = ("ngram",) if draft else ()
    try:
        made = plan(f"{mebibytes}MiB", which=BIG, sequences=sequences, drafters=drafters)
    except BudgetError as error:
        assert "MiB" in str(error) or "GiB" in str(error)
        return
    assert made.planned_bytes <= made.budget_bytes
    assert made.max_nodes >= made.sequences == sequences
    assert (made.drafter_bytes > 0) == (draft and made.max_nodes > sequences)


def test_too_many_texts_for_a_budget_are_refused_with_how_many_fit() -> None:
    with pytest.raises(
        BudgetError, match=r"16 replies at context 8192.*sequences=\d+ \(--max"
    ) as told:
        plan("900MiB", which=BIG, sequences=16, context=8192)
    found = re.search(r"sequences=(\d+)", str(told.value))
    assert found is not None
    most = int(found[1])
    assert plan("900MiB", which=BIG, sequences=most, context=8192).sequences == most
    with pytest.raises(BudgetError):
        plan("900MiB", which=BIG, sequences=most + 1, context=8192)


@pytest.mark.parametrize(
    "wish", [{"sequences": 0}, {"sequences": 257}, {"sequences": 5, "max_nodes": 4}]
)
def test_texts_at_once_that_mean_nothing(wish: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="replies at once"):
        plan("auto", **wish)
