"""The planner: the fastest session that fits the budget, or a refusal with numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from edgespec.errors import OptionError
from edgespec.memory.plan.alternatives import alternatives
from edgespec.memory.plan.budget import Budget
from edgespec.memory.plan.placement import experts_reason
from edgespec.memory.plan.plan import Plan
from edgespec.memory.plan.reasons import reasons
from edgespec.memory.plan.refusal import refuse
from edgespec.memory.plan.settings import KV_TYPES, Limits, Settings
from edgespec.memory.plan.sizing import Sizing
from edgespec.memory.plan.streaming import StreamableWeights
from edgespec.models.spec import ModelSpec, TensorInfo, TensorType
from edgespec.system.hardware import Hardware

BACKENDS = ("native", "reference", "llamacpp", "onnx")
"""Backends whose footprint is known before loading."""
_LEAST_SAVED = 0.01
"""Of all bytes: int8 is not chosen where it saves less, because it changes the text."""
_EXTERNAL = ("llamacpp", "onnx")
"""Those on external engines, which say it themselves."""


def make_plan(
    sizing: Sizing,
    budget: Budget,
    hardware: Hardware,
    *,
    context: int | None = None,
    threads: int | None = None,
    max_nodes: int | None = None,
    kv_type: str = "auto",
    sequences: int = 1,
    stream: bool = False,
) -> Plan:
    """The fastest settings that fit; what is given is kept, what is None or "auto" is chosen. With
    `stream`, weights that do not fit are read from disk.

    Pure: the same arguments give the same plan, so every choice can be tested. Raises OptionError
    when an argument cannot be met with any budget, BudgetError with the itemised numbers and the
    nearest plans when this one is too small.
    """
    spec, backend = sizing.spec, sizing.backend
    if backend not in BACKENDS or (backend in _EXTERNAL) != (sizing.ask is not None):
        known = ", ".join(BACKENDS)
        raise OptionError(f"cannot plan for backend {backend!r}; choose one of {known}")
    rolls_back = not (spec.recurrent and backend in _EXTERNAL)
    if not rolls_back:
        if sequences > 1:
            raise OptionError(
                f"cannot write {sequences} replies at once: {spec.name} has a recurrent state and "
                "writes one reply at a time; use sequences=1 (--max-batch 1)"
            )
        sizing, max_nodes = replace(sizing, drafters=(), draft_model=None), 1
    limits = Limits.of(
        spec,
        context=context,
        max_nodes=max_nodes,
        draft=bool(sizing.drafters),
        kv_type=_kv_type(kv_type, backend, spec),
        threads=_threads(threads, hardware),
        sequences=sequences,
        cores=hardware.usable_threads(),
    )
    limits = _where_bits_pay(limits, sizing)
    chosen = limits.fit(lambda settings: sizing.total(settings) <= budget.size_bytes)
    if chosen is None and stream and backend == "native":
        sizing, chosen = _streamed(sizing, limits, budget)
    if chosen is None:
        raise refuse(sizing, limits, budget)
    exact = limits.keeping_bits().fit(lambda own: sizing.total(own) <= budget.size_bytes)
    told = reasons(spec, limits, chosen, hardware, exact, rolls_back)
    devices = sizing.devices(chosen)
    return Plan(
        backend=backend,
        quantisation=quantisation(sizing.tensors),
        context_length=chosen.context,
        kv_type=sizing.kv_type(chosen),
        max_nodes=chosen.max_nodes,
        prefill_chunk=chosen.prefill_chunk,
        threads=chosen.threads,
        gpu_layers=sum(part.units for part in devices),
        budget_bytes=budget.size_bytes,
        footprint=sizing.footprint(chosen),
        reasons=tuple(filter(None, (budget.describe(), *told, experts_reason(devices)))),
        alternatives=alternatives(sizing, chosen),
        drafter_bytes=chosen.drafter_bytes,
        sequences=chosen.sequences,
        checkpoints=chosen.checkpoints,
        devices=devices,
        draft_devices=sizing.draft_model.devices(chosen) if sizing.draft_model else (),
        streaming=sizing.streaming,
    )


def _where_bits_pay(limits: Limits, sizing: Sizing) -> Limits:
    """The same wish, but f16 is kept where int8 would save next to nothing."""
    if "kv_type" in limits.pinned:
        return limits
    settings = limits.before("kv_type")
    whole = sizing.total(settings)
    saved = whole - sizing.total(settings.lowered("kv_type", "int8"))
    return limits if saved >= _LEAST_SAVED * whole else limits.keeping_bits()


def _streamed(sizing: Sizing, limits: Limits, budget: Budget) -> tuple[Sizing, Settings | None]:
    """The settings that fit with as little as possible of the weights in memory, then with as much
    as the budget still has room for; None where nothing fits.
    """
    weights = StreamableWeights(sizing.spec, sizing.tensors)
    least = weights.least()
    if least is None or least.size_bytes >= least.on_disk_bytes:
        return sizing, None
    small = replace(sizing, streaming=least)
    chosen = limits.for_streaming().fit(lambda own: small.total(own) <= budget.size_bytes)
    if chosen is None:
        return sizing, None
    spare = budget.size_bytes - small.total(chosen)
    return replace(sizing, streaming=weights.within(spare)), chosen


def quantisation(tensors: Iterable[TensorInfo]) -> str:
    """Types of the weight matrices, most bytes first, those under 1 % left out: "Q4_K+Q6_K"."""
    sizes: Counter[TensorType] = Counter()
    for tensor in tensors:
        if len(tensor.shape) > 1:
            sizes[tensor.type] += tensor.size_bytes
    whole = sizes.total()
    return "+".join(kind.name for kind, size in sizes.most_common() if size * 100 >= whole)


def _kv_type(asked: str, backend: str, spec: ModelSpec) -> str | None:
    """How keys and values must be kept; None where that may be chosen."""
    if asked not in ("auto", *KV_TYPES):
        raise OptionError(f"unknown KV cache type {asked!r}; choose auto, {', '.join(KV_TYPES)}")
    if asked not in ("auto", "f16") and backend not in ("native", "llamacpp"):
        raise OptionError(
            f"the {backend} backend keeps its KV cache in f16; use --kv-type f16, or --backend "
            f"native for {asked}"
        )
    is_latent = backend == "native" and spec.keeps_latents
    if asked not in ("auto", "f16") and is_latent:
        raise OptionError(
            f"{spec.name} keeps one latent vector for each position, which the native backend "
            f"stores in f16 only; use --kv-type f16, or --backend llamacpp for {asked}"
        )
    if asked != "auto":
        return asked
    if is_latent:
        return KV_TYPES[0]
    return None if backend == "native" else KV_TYPES[0]


def _threads(asked: int | None, hardware: Hardware) -> int | None:
    if asked is not None and not 1 <= asked <= hardware.allowed_logical:
        raise OptionError(
            f"cannot use {asked} threads: this process may use 1 to {hardware.allowed_logical}"
        )
    return asked
