"""Which layers go to which device: pure arithmetic on sizes, the same for GPUs and for workers.

A model's units are its layers, in order, and the output head. Every unit has its weights and, if it
is a layer, its keys and values in one place. The first layers stay with this process, whose memory
the planner counts; the rest follows in one span for each device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self

from edgespec.models.spec import ModelSpec, TensorInfo
from edgespec.system.records import dataclass
from edgespec.system.size import format_size

_LAYER = re.compile(r"blk\.(\d+)\.")
DRAFTS = 4
"""Drafts of a step: so often a draft model's weights are read where the other's are once."""
_PADDING_BYTES = 512
"""More than a device adds to a tensor so that the next begins where it should."""


@dataclass(frozen=True, slots=True)
class Device:
    """Memory besides this process's, with something that computes on it."""

    name: str
    """A GPU's name in ggml, or a worker's address."""
    kind: Literal["gpu", "worker"]
    budget_bytes: int
    """The most that a plan may take of it."""
    key_file: str = ""
    """What opens a worker, where it wants a key."""
    description: str = ""
    """What its driver calls a GPU."""
    shared: bool = False
    """What it holds is this machine's memory, and counts in the budget."""


@dataclass(frozen=True, slots=True)
class ModelUnits:
    """Bytes of weights by where they may go."""

    layers: tuple[int, ...]
    head: int
    """The output head with its norm; a head tied to the embedding is a copy of its own."""
    rest: int
    """What stays with this process: the embedding."""

    @classmethod
    def of(cls, spec: ModelSpec, tensors: Iterable[TensorInfo]) -> Self:
        layers, head, rest, tied = [0] * spec.num_layers, 0, 0, 0
        for tensor in tensors:
            size = tensor.size_bytes + _PADDING_BYTES
            match = _LAYER.match(tensor.name)
            if match and int(match[1]) < spec.num_layers:
                layers[int(match[1])] += size
            elif tensor.name.startswith("output"):
                head += size
            else:
                rest += size
                if tensor.name == "token_embd.weight":
                    tied = size
                else:  # factors of rotations and the like: every device has them
                    head += size
                    layers = [layer + size for layer in layers]
        if spec.tied_embeddings:
            head += tied
        return cls(tuple(layers), head, rest)


@dataclass(frozen=True, slots=True)
class DevicePart:
    """What a plan puts on one device, in bytes."""

    name: str
    kind: str
    budget_bytes: int
    first_layer: int
    num_layers: int
    head: bool
    """Whether the output head is there too."""
    weights_bytes: int
    cache_bytes: int
    compute_bytes: int
    key_file: str = ""
    description: str = ""
    shared: bool = False

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.cache_bytes + self.compute_bytes

    @property
    def units(self) -> int:
        """Layers, the head counted as one: what llama.cpp counts."""
        return self.num_layers + self.head

    def describe(self) -> str:
        """One line of a plan."""
        last = self.first_layer + self.num_layers - 1
        layers = f"layers {self.first_layer} to {last}" if self.num_layers else ""
        what = " and ".join(filter(None, [layers, "the output head" * self.head]))
        shared = ", in this machine's memory" if self.shared else ""
        name = f"{self.name} ({self.description})" if self.description else self.name
        return (
            f"{self.kind} {name}: {what}, {format_size(self.total_bytes)} of "
            f"{format_size(self.budget_bytes)} (weights {format_size(self.weights_bytes)}, "
            f"KV cache {format_size(self.cache_bytes)}, "
            f"activations {format_size(self.compute_bytes)}){shared}"
        )

    def as_dict(self) -> dict[str, Any]:
        names = ("name", "kind", "description", "shared")
        place = ("budget_bytes", "first_layer", "num_layers", "head")
        sizes = ("weights_bytes", "cache_bytes", "compute_bytes", "total_bytes")
        return {name: getattr(self, name) for name in (*names, *place, *sizes)}


def device_to_draft(devices: Sequence[Device], model_bytes: int, draft_bytes: int) -> Device | None:
    """The device that is better given to a draft model than to the last layers of the model, None
    where there is none.

    A device saves time in proportion to what is read of its memory in a step, whatever its speed:
    the draft model's weights once for each draft, those of layers once. A model that fits goes
    there whole, with its draft model beside it on the processor. Small devices draft ("Dovetail: A
    CPU/GPU Heterogeneous Speculative Decoding for LLM inference").
    """
    if sum(device.budget_bytes for device in devices) >= model_bytes:
        return None
    able = (one for one in devices if draft_bytes <= one.budget_bytes < DRAFTS * draft_bytes)
    return min(able, key=lambda device: device.budget_bytes, default=None)


def place(
    units: ModelUnits, layer_cache_bytes: int, devices: Sequence[Device], compute: Sequence[int]
) -> tuple[DevicePart, ...]:
    """As many units as fit on devices, each with `compute` bytes besides.

    The first device takes the last units, head included, until it is full, then the next those
    before: the fewest devices, and so the fewest ways between them. Devices that can hold nothing
    are left out. The parts are in the order of the devices.
    """
    sizes = [weights + layer_cache_bytes for weights in units.layers] + [units.head]
    end, parts = len(sizes), []
    for device, scratch in zip(devices, compute, strict=True):
        start, left = end, device.budget_bytes - scratch
        while start > 0 and sizes[start - 1] <= left:
            start -= 1
            left -= sizes[start]
        if start == end:
            continue
        layers = range(start, min(end, len(units.layers)))
        head = end == len(sizes)
        parts.append(
            DevicePart(
                device.name,
                device.kind,
                device.budget_bytes,
                start,
                len(layers),
                head,
                sum(units.layers[layer] for layer in layers) + head * units.head,
                len(layers) * layer_cache_bytes,
                scratch,
                device.key_file,
                device.description,
                device.shared,
            )
        )
        end = start
    return tuple(parts)
