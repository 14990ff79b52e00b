"""The plan: what will be allocated, and why, as plain frozen numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FootprintItem:
    """One named part of the resident memory, in bytes."""

    name: str
    size_bytes: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Everything that will be resident, item by item, in bytes."""

    items: tuple[FootprintItem, ...]

    @property
    def total_bytes(self) -> int:
        return sum(item.size_bytes for item in self.items)

    def __iter__(self) -> Iterator[FootprintItem]:
        return iter(self.items)

    def __getitem__(self, name: str) -> int:
        return next(item.size_bytes for item in self.items if item.name == name)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a session may use: frozen when it is made, kept until the model is closed."""

    backend: str
    quantisation: str
    """Types of the weight matrices with the most bytes first, as in "Q4_K+Q6_K"."""
    context_length: int
    kv_type: str
    max_nodes: int
    """Most nodes in one verification pass, the root included."""
    prefill_chunk: int
    threads: int
    gpu_layers: int
    budget_bytes: int
    footprint: Footprint
    reasons: tuple[str, ...] = field(default=())
    """One sentence for each choice the planner made."""

    def explain(self) -> str:
        """The plan as text: a line per item and the reason for every choice."""
        from edgespec.memory.size import format_size

        lines = [
            f"backend {self.backend} · {self.quantisation} · context {self.context_length} tokens ({self.kv_type} KV) · "
            f"up to {self.max_nodes} nodes · {self.threads} threads"
        ]
        for item in self.footprint:
            lines.append(
                f"  {item.name:<22}{format_size(item.size_bytes):>12}  {item.note}".rstrip()
            )
        lines.append(
            f"  {'total':<22}{format_size(self.footprint.total_bytes):>12}  of a budget of {format_size(self.budget_bytes)}"
        )
        lines.extend(f"  {reason}" for reason in self.reasons)
        return "\n".join(lines)
