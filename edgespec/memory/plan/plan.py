"""The plan: what will be allocated, and why, as plain frozen numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, field, replace
from typing import Any, Self

from edgespec.memory.plan.placement import DevicePart
from edgespec.memory.plan.state_layout import CHECKPOINTS
from edgespec.memory.plan.streaming import Streaming
from edgespec.system.records import dataclass
from edgespec.system.size import format_size


@dataclass(frozen=True, slots=True)
class FootprintItem:
    """One named part of the resident memory, in bytes."""

    name: str
    size_bytes: int
    note: str = ""
    exact: bool = False
    """The backend allocates precisely this much; the rest is calibrated by measurement."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Everything that will be resident at the peak, item by item, in bytes."""

    items: tuple[FootprintItem, ...]

    @property
    def total_bytes(self) -> int:
        return sum(item.size_bytes for item in self.items)

    @property
    def exact(self) -> dict[str, int]:
        """The items a backend can be held to, by name, as `Target.allocated_bytes` has them."""
        return {item.name: item.size_bytes for item in self.items if item.exact}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(item.name for item in self.items)

    def __iter__(self) -> Iterator[FootprintItem]:
        return iter(self.items)

    def __getitem__(self, name: str) -> int:
        for item in self.items:
            if item.name == name:
                return item.size_bytes
        raise KeyError(name)

    def summary(self) -> str:
        """The items on one line, largest first, those under 1 % together as "the rest"."""
        large = [item for item in self.items if item.size_bytes * 100 >= self.total_bytes]
        large.sort(key=lambda item: -item.size_bytes)
        parts = [f"{item.name} {format_size(item.size_bytes)}" for item in large]
        rest = self.total_bytes - sum(item.size_bytes for item in large)
        return ", ".join([*parts, f"the rest {format_size(rest)}"] if rest else parts)


@dataclass(frozen=True, slots=True)
class Alternative:
    """What the plan would take if one setting were different."""

    name: str
    option: str
    """What to type for it; "" when the planner alone decides."""
    total_bytes: int
    change_bytes: int
    """Negative: this much would be saved."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A backend that was compared, or could not be, and why it was not taken."""

    backend: str
    """With the devices that it would use."""
    verdict: str
    """One clause: "chosen", or why not."""
    basis: str = ""
    """How its passes are known: "measured" on this machine, "measured on 5 layers of this file",
    "remembered from the same shape", any of them "under load" while other programs were busy;
    "estimated"; "" where it cannot run.
    """
    tokens_per_second: float = 0.0
    """Expected, speculation included."""
    plain_tokens_per_second: float = 0.0
    pass_ms: tuple[tuple[int, float], ...] = ()
    """Milliseconds of a pass by its number of nodes."""
    planned_bytes: int = 0
    context_length: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a session may use: frozen when it is made, kept until the model is closed."""

    backend: str
    quantisation: str
    """Types of the weight matrices with the most bytes first, as in "Q4_K+Q6_K"."""
    context_length: int
    kv_type: str
    max_nodes: int
    """Maximum nodes in one verification pass, the root included."""
    prefill_chunk: int
    threads: int
    gpu_layers: int
    budget_bytes: int
    footprint: Footprint
    reasons: tuple[str, ...] = field(default=())
    """One sentence for each choice the planner made."""
    alternatives: tuple[Alternative, ...] = field(default=())
    """What changing one setting would give; `levers` in JSON."""
    drafter_bytes: int = 0
    """Maximum bytes of all drafters' stores together for each sequence; 0 drafts nothing."""
    sequences: int = 1
    """Replies that may be written at once; each has `context_length` positions of its own."""
    candidates: tuple[Candidate, ...] = field(default=())
    """Backends that were compared for this plan; empty where an earlier choice was kept."""
    devices: tuple[DevicePart, ...] = field(default=())
    """What GPUs and workers hold; the footprint is what is left to this process."""
    draft_devices: tuple[DevicePart, ...] = field(default=())
    """The same of the draft model, where it is on one of them."""
    checkpoints: int = CHECKPOINTS
    """Recurrent states that are set aside for each sequence, where the model has any."""
    power: str = "balanced"
    """How hard the machine may be worked: saver, balanced or full."""
    streaming: Streaming | None = field(default=None)
    """What of the weights is read from disk in every pass; None where all are in memory."""
    mapped: bool = False
    """Weights are used where the file lies in memory, so that its first layers can draft on the
    same pages.
    """
    prompt_cache_bytes: int = 0
    """Maximum bytes of prompts that are kept on disk; 0 keeps none."""
    isolated: bool = False
    """The engine is in a process of its own, behind a wall."""
    provider: str = "cpu"
    """What ONNX Runtime computes with, on the onnx backend."""

    @property
    def label(self) -> str:
        """The backend, with the devices that hold layers."""
        names = ", ".join(part.name for part in self.devices)
        apart = " without experts" * self.keeps_experts
        return f"{self.backend} on {names}{apart}" if names else self.backend

    @property
    def keeps_experts(self) -> bool:
        """Whether experts are in this process's memory although their layers are on devices."""
        return any(part.without_experts for part in self.devices)

    @property
    def planned_bytes(self) -> int:
        """Peak resident memory this plan expects."""
        return self.footprint.total_bytes

    def with_notes(self, *notes: str) -> Self:
        """The same plan with more reasons; empty ones are left out."""
        return replace(self, reasons=(*self.reasons, *filter(None, notes)))

    def explain(self) -> str:
        """The plan as text: a line per item and the reason for every choice."""
        replies = f"{self.sequences} replies at once · " if self.sequences > 1 else ""
        on = "" if self.provider == "cpu" else f" on {self.provider}"
        lines = [
            f"backend {self.backend}{on} · {self.quantisation} · {replies}"
            f"context {self.context_length} tokens "
            f"({self.kv_type} KV) · up to {self.max_nodes} nodes · {self.threads} "
            f"{'thread' if self.threads == 1 else 'threads'}"
        ]
        for item in self.footprint:
            size = format_size(item.size_bytes)
            lines.append(f"  {item.name:<26}{size:>12}  {item.note}".rstrip())
        total, budget = format_size(self.planned_bytes), format_size(self.budget_bytes)
        lines.append(f"  {'total':<26}{total:>12}  of a budget of {budget}")
        lines.extend(f"  {part.describe()}" for part in self.devices)
        lines.extend(f"  draft model on {part.describe()}" for part in self.draft_devices)
        lines.extend(f"  {reason}" for reason in self.reasons)
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """The plan as plain values for JSON; sizes are bytes."""
        values = asdict(self)
        values["footprint"] = {item.name: item.size_bytes for item in self.footprint}
        values["planned_bytes"] = self.planned_bytes
        values["reasons"] = list(self.reasons)
        values["streaming"] = None if self.streaming is None else self.streaming.as_dict()
        values["devices"] = [part.as_dict() for part in self.devices]
        values["draft_devices"] = [part.as_dict() for part in self.draft_devices]
        values["levers"] = values.pop("alternatives")  # the key that scripts know
        values["candidates"] = [
            asdict(one) | {"pass_ms": dict(one.pass_ms)} for one in self.candidates
        ]
        return values
