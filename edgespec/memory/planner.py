"""The planner: the fastest session that fits the budget, or a refusal with numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from edgespec.errors import OptionError
from edgespec.memory.budget import Budget
from edgespec.memory.calibration import Runtime
from edgespec.memory.foreign import Ask
from edgespec.memory.hardware import Hardware
from edgespec.memory.plan import Plan
from edgespec.memory.refusal import refuse
from edgespec.memory.settings import KV_TYPES, Limits, Settings
from edgespec.memory.size import format_size
from edgespec.memory.sizing import Sizing
from edgespec.models.spec import ModelSpec, TensorInfo, TensorType

BACKENDS = ("native", "reference", "llamacpp")
"""Backends whose footprint is known before loading."""


@dataclass(frozen=True, slots=True)
class Planner:
    """Turns a model, a budget and a machine into a plan; pure, so every choice can be tested."""

    runtime: Runtime | None = None
    """How far this process has started; None is a cold start from the budget's snapshot."""
    ask: Ask | None = None
    """For the llamacpp backend: what it would hold, as its engine tells."""

    def plan(
        self,
        spec: ModelSpec,
        tensors: Iterable[TensorInfo],
        budget: Budget,
        hardware: Hardware,
        *,
        context: int | None = None,
        threads: int | None = None,
        max_nodes: int | None = None,
        backend: str = "native",
        draft: bool = True,
        kv_type: str = "auto",
        sequences: int = 1,
    ) -> Plan:
        """The fastest settings that fit; what is given is kept, what is None is chosen.

        Raises OptionError when an argument cannot be met on any budget, BudgetError with the
        itemised numbers and the nearest plans when this one is too small.
        """
        if backend not in BACKENDS or (backend == "llamacpp") != (self.ask is not None):
            known = ", ".join(BACKENDS)
            raise OptionError(f"no plan is known for backend {backend!r}; plans exist for {known}")
        kept = _kv_type(kv_type, backend)
        if spec.recurrent:
            draft, max_nodes = False, 1
        limits = Limits.of(
            spec,
            context=context,
            max_nodes=max_nodes,
            draft=draft,
            kv_type=kept,
            sequences=sequences,
        )
        runtime = self.runtime or Runtime(budget.snapshot.process_resident_bytes)
        usable = _threads(threads, hardware)
        sizing = Sizing(spec, tuple(tensors), usable, runtime, backend, self.ask)
        chosen = limits.fit(lambda settings: sizing.total(settings) <= budget.size_bytes)
        if chosen is None:
            raise refuse(sizing, limits, budget)
        return Plan(
            backend=backend,
            quantisation=quantisation(sizing.tensors),
            context_length=chosen.context,
            kv_type=chosen.kv_type,
            max_nodes=chosen.max_nodes,
            prefill_chunk=chosen.prefill_chunk,
            threads=sizing.threads,
            gpu_layers=0,
            budget_bytes=budget.size_bytes,
            footprint=sizing.footprint(chosen),
            reasons=(budget.describe(), *_reasons(sizing, limits, chosen, hardware, threads)),
            drafter_bytes=chosen.drafter_bytes,
            sequences=chosen.sequences,
        )


def quantisation(tensors: Iterable[TensorInfo]) -> str:
    """Types of the weight matrices, most bytes first, those under 1 % left out: "Q4_K+Q6_K"."""
    sizes: Counter[TensorType] = Counter()
    for tensor in tensors:
        if len(tensor.shape) > 1:
            sizes[tensor.type] += tensor.size_bytes
    whole = sizes.total()
    return "+".join(kind.name for kind, size in sizes.most_common() if size * 100 >= whole)


def _kv_type(asked: str, backend: str) -> str:
    """How keys and values are kept."""
    if asked not in ("auto", *KV_TYPES):
        raise OptionError(f"no KV type is called {asked!r}; choose auto, {' or '.join(KV_TYPES)}")
    if asked == "int8" and backend not in ("native", "llamacpp"):
        raise OptionError(
            f"the {backend} backend keeps keys and values as f16; use --kv-type f16, or the native "
            "backend for int8"
        )
    return KV_TYPES[0] if asked == "auto" else asked


def _threads(asked: int | None, hardware: Hardware) -> int:
    if asked is None:
        return hardware.usable_threads()
    if not 1 <= asked <= hardware.allowed_logical:
        raise OptionError(
            f"{asked} threads were asked for; this process may use 1 to {hardware.allowed_logical}"
        )
    return asked


def _reasons(
    sizing: Sizing, limits: Limits, chosen: Settings, hardware: Hardware, threads: int | None
) -> list[str]:
    """One sentence for each choice."""
    return [
        _context_reason(sizing.spec, limits, chosen),
        *_sequences_reason(chosen),
        *(["KV int8: as asked; half the memory of f16"] if chosen.kv_type == "int8" else []),
        _RECURRENT if sizing.spec.recurrent else _nodes_reason(limits, chosen),
        f"prefill: {chosen.prefill_chunk} tokens a pass"
        + (", smaller to fit" if chosen.prefill_chunk < limits.wished.prefill_chunk else ""),
        _threads_reason(sizing.threads, hardware, asked=threads is not None),
    ]


_RECURRENT = "1 node a pass, no drafting: the model's recurrent state cannot take drafts back"


def _context_reason(spec: ModelSpec, limits: Limits, chosen: Settings) -> str:
    if "context" in limits.pinned:
        return f"context {chosen.context}: as asked"
    if chosen.context < limits.wished.context:
        return (
            f"context {chosen.context}: {limits.wished.context} does not fit; more memory or "
            "a smaller model gives more"
        )
    if chosen.context < spec.context_length:
        return (
            f"context {chosen.context}: enough for most work; --context takes up to "
            f"{spec.context_length}"
        )
    return f"context {chosen.context}: all the model was trained for"


def _sequences_reason(chosen: Settings) -> list[str]:
    if chosen.sequences == 1:
        return []
    return [f"{chosen.sequences} texts at once: as asked; each has {chosen.context} tokens"]


def _nodes_reason(limits: Limits, chosen: Settings) -> str:
    if chosen.max_nodes == chosen.sequences:
        why = "as asked" if limits.wished.max_nodes == chosen.sequences else "nothing else fits"
        return (
            f"{'1 node' if chosen.sequences == 1 else '1 node a text'} a pass, no drafting: {why}"
        )
    each = "" if chosen.sequences == 1 else " for each text"
    stores = f"drafters keep at most {format_size(chosen.drafter_bytes)}{each}"
    if "max_nodes" in limits.pinned:
        return f"up to {chosen.max_nodes} nodes a pass: as asked; {stores}"
    fewer = chosen.max_nodes < limits.wished.max_nodes
    why = "fewer, to fit" if fewer else "where speed levels off"
    return f"up to {chosen.max_nodes} nodes a pass: {why}; {stores}"


def _threads_reason(threads: int, hardware: Hardware, *, asked: bool) -> str:
    start = f"{threads} thread{'' if threads == 1 else 's'}"
    if asked:
        return f"{start}: as asked"
    if threads < hardware.allowed_physical:
        return f"{start}: the control group allows {hardware.cpu_quota:g} processors"
    return f"{start}: one for each physical core this process may use"
