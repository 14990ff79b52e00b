"""Which layers go to which device: pure arithmetic on sizes, the same for GPUs and for workers.

A model's units are its layers, in order, and the output head. Every unit has its weights and, if it
is a layer, its keys and values in one place, but for the experts of a mixture, which may stay with
this process. The first layers stay with it too, and the planner counts its memory; the rest follows
in one span for each device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self

from edgespec.models.layers import Moe
from edgespec.models.spec import ModelSpec, TensorInfo
from edgespec.system.records import dataclass
from edgespec.system.size import format_size

_LAYER = re.compile(r"blk\.(\d+)\.")
EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""In a name: a tensor of all experts of a layer, as llama.cpp's `--cpu-moe` knows them."""
_EXPERTS = re.compile(EXPERTS)
DRAFTS = 4
"""Drafts of a step: so often a draft model's weights are read where the other's are once."""
NEAR = ("gpu",)
"""Devices that are so near that a layer may be computed on both sides."""
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
    experts: tuple[int, ...] = ()
    """Of each layer, what its experts are; () where nothing mixes experts."""
    active: float = 1.0
    """The share of a layer's experts that one token is computed by."""

    @classmethod
    def of(cls, spec: ModelSpec, tensors: Iterable[TensorInfo]) -> Self:
        layers, head, rest, tied = [0] * spec.num_layers, 0, 0, 0
        experts = [0] * spec.num_layers
        for tensor in tensors:
            size = tensor.size_bytes + _PADDING_BYTES
            match = _LAYER.match(tensor.name)
            if match and int(match[1]) < spec.num_layers:
                layers[int(match[1])] += size
                if _EXPERTS.search(tensor.name):
                    experts[int(match[1])] += size
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
        mixed = tuple(experts) if any(experts) else ()
        return cls(tuple(layers), head, rest, mixed, _active_share(spec))

    @property
    def count(self) -> int:
        """All of them, the head too."""
        return len(self.layers) + 1

    def experts_in(self, layers: range) -> int:
        """Bytes of the experts of these layers."""
        return sum(self.experts[layers.start : layers.stop])


def _active_share(spec: ModelSpec) -> float:
    """1.0 of an architecture that only an external engine knows."""
    mixtures = [layer.ffn for layer in spec.layers if isinstance(layer.ffn, Moe)]
    return max((one.active / one.experts for one in mixtures), default=1.0)


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
    without_experts: int = 0
    """How many of its layers, the first ones, have their experts with this process."""
    experts_bytes: int = 0
    """Of those layers' experts, in this process's memory."""
    read_bytes: int = 0
    """What a pass over one token reads of the weights here."""

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
        if self.without_experts == self.num_layers > 0:
            layers += " without their experts"
        elif self.without_experts:
            layers += f" (the first {self.without_experts} without their experts)"
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
        place = ("budget_bytes", "first_layer", "num_layers", "head", "without_experts")
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
    units: ModelUnits,
    layer_cache_bytes: int,
    devices: Sequence[Device],
    compute: Sequence[int],
    cpu_moe: int = 0,
) -> tuple[DevicePart, ...]:
    """As many units as fit on devices, each with `compute` bytes besides; the experts of the first
    `cpu_moe` layers stay with this process.

    The first device takes the last units, head included, until it is full, then the next those
    before: the fewest devices, and so the fewest ways between them. Devices that can hold nothing
    are left out. The parts are in the order of the devices.
    """
    sizes = [weights + layer_cache_bytes for weights in units.layers] + [units.head]
    for layer, experts in enumerate(units.experts[:cpu_moe]):
        sizes[layer] -= experts
    end, parts = len(sizes), []
    for device, scratch in zip(devices, compute, strict=True):
        start, left = end, device.budget_bytes - scratch
        while start > 0 and sizes[start - 1] <= left:
            start -= 1
            left -= sizes[start]
        if start < end:
            span = range(start, end)
            parts.append(_part(units, span, layer_cache_bytes, device, scratch, cpu_moe))
        end = start
    return tuple(parts)


def _part(
    units: ModelUnits,
    span: range,
    layer_cache_bytes: int,
    device: Device,
    scratch: int,
    cpu_moe: int,
) -> DevicePart:
    """These units on a device."""
    layers = range(span.start, min(span.stop, len(units.layers)))
    head = span.stop == units.count
    bare = layers[: max(0, cpu_moe - layers.start)] if units.experts else layers[:0]
    away, inactive = units.experts_in(bare), 1.0 - units.active
    weights = sum(units.layers[layer] for layer in layers) - away + head * units.head
    return DevicePart(
        device.name,
        device.kind,
        device.budget_bytes,
        first_layer=span.start,
        num_layers=len(layers),
        head=head,
        weights_bytes=weights,
        cache_bytes=len(layers) * layer_cache_bytes,
        compute_bytes=scratch,
        key_file=device.key_file,
        description=device.description,
        shared=device.shared,
        without_experts=len(bare),
        experts_bytes=away,
        read_bytes=weights - round(inactive * units.experts_in(layers[len(bare) :])),
    )


def place_best(
    units: ModelUnits, layer_cache_bytes: int, devices: Sequence[Device], compute: Sequence[int]
) -> tuple[DevicePart, ...]:
    """Whole layers on devices, or more of them without their experts: whatever has a token read
    most of the devices' memory.

    Attention is read for every token and an expert for few, so experts leave only where layers do
    not fit whole, and as few as may be. Workers get whole layers, as every layer whose experts are
    elsewhere costs a way there and back.
    """
    best = place(units, layer_cache_bytes, devices, compute)
    if not units.experts or not all(device.kind in NEAR for device in devices):
        return best
    for count in range(1, len(units.layers) + 1):
        if sum(part.units for part in best) == units.count:
            break
        found = place(units, layer_cache_bytes, devices, compute, count)
        best = max(best, found, key=_read_bytes)
    return best


def _read_bytes(parts: Sequence[DevicePart]) -> int:
    return sum(part.read_bytes + part.cache_bytes for part in parts)


def experts_reason(parts: Sequence[DevicePart]) -> str:
    """What a plan says of experts that stay with this process, "" where none do."""
    bare = [part for part in parts if part.without_experts]
    if not bare:
        return ""
    first = min(part.first_layer for part in bare)
    last = max(part.first_layer + part.without_experts for part in bare) - 1
    held = format_size(sum(part.experts_bytes for part in bare))
    names = ", ".join(part.name for part in reversed(bare))
    which = f"layers {first} to {last}" if last > first else f"layer {first}"
    return (
        f"experts of {which} stay in this machine's memory ({held}) and the rest of each layer is "
        f"on {names}; --cpu-moe off puts whole layers there"
    )
