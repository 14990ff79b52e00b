"""Plans over devices: how many layers each takes with given settings, and what that leaves here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from edgespec.backends.llamacpp.model import ContextSettings
from edgespec.backends.llamacpp.remote.link import Links
from edgespec.backends.llamacpp.remote.offload import Offload
from edgespec.backends.llamacpp.survey import Allocation, Survey, context_settings
from edgespec.memory.plan.external_engine import EngineBytes
from edgespec.memory.plan.placement import Device, DevicePart, ModelUnits, place, place_best
from edgespec.memory.plan.settings import Settings
from edgespec.models.file import ModelFile
from edgespec.system.size import MIB

_MOST_TRIES = 6
DRIVER_BYTES = 512 * MIB
"""What a GPU's driver takes for a process before the first buffer; not measured by us. The target
asks the device itself what is gone once a model is loaded.
"""


class Placing:
    """Asks llama.cpp what settings would hold where; a context manager with links to the workers.

    Weights are the file's, keys and values those of a layer times the layers, and compute buffers
    what llama.cpp says for the placement itself: a placement is guessed, asked about, and made
    again with the answer until it holds.
    """

    def __init__(
        self,
        file: ModelFile,
        devices: Sequence[Device],
        survey: Survey,
        cpu_moe: int | None = 0,
    ) -> None:
        """`cpu_moe` says of how many layers the experts stay here, None lets sizes decide."""
        self._cpu_moe = cpu_moe
        self._devices, self._survey = tuple(devices), survey
        self._units = ModelUnits.of(file.spec, file.tensors.values())
        self._links = Links(devices)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._links.close()

    def ask(self, settings: Settings, threads: int) -> EngineBytes:
        """What this process would hold, and each device; raises BackendError for a lost worker."""
        context = context_settings(settings, threads)
        alone = self._survey.bytes_of(context)
        layer_cache = self._survey.allocation(context).layer_cache
        beside = {one.name: DRIVER_BYTES * (one.kind == "gpu") for one in self._devices}
        guess = {name: alone.compute + more for name, more in beside.items()}
        for _ in range(_MOST_TRIES):
            compute = [guess[device.name] for device in self._devices]
            parts = self._placed(layer_cache, compute)
            if not parts:
                return alone
            found = self._allocation(context, parts)
            real = {
                part.name: size + beside[part.name]
                for part, size in zip(parts, _compute(found), strict=True)
            }
            if all(real[part.name] <= part.compute_bytes for part in parts):
                return self._engine_bytes(alone, found, parts, real, layer_cache)
            guess |= {name: max(guess[name], size) for name, size in real.items()}
        return alone

    def _placed(self, layer_cache: int, compute: Sequence[int]) -> tuple[DevicePart, ...]:
        if self._cpu_moe is None:
            return place_best(self._units, layer_cache, self._devices, compute)
        return place(self._units, layer_cache, self._devices, compute, self._cpu_moe)

    def _allocation(self, context: ContextSettings, parts: Sequence[DevicePart]) -> Allocation:
        offload = Offload.of(parts, self._links.endpoints)
        found = self._survey.allocation(replace(context, gpu_layers=sum(offload.units)), offload)
        self._links.check()
        return found

    def _engine_bytes(
        self,
        alone: EngineBytes,
        found: Allocation,
        parts: Sequence[DevicePart],
        real: dict[str, int],
        layer_cache: int,
    ) -> EngineBytes:
        first = min(part.first_layer for part in parts)
        devices = tuple(replace(part, compute_bytes=real[part.name]) for part in parts)
        return replace(
            alone,
            copies_head=False,  # the head is on a device
            weights=self._units.rest
            + sum(self._units.layers[:first])
            + sum(part.experts_bytes for part in parts),
            cache=min(alone.cache, first * layer_cache),
            compute=sum(found.compute.values()) - sum(_compute(found)),
            read_tensors=2,
            devices=devices,
        )


def _compute(found: Allocation) -> list[int]:
    """Bytes of the compute buffers of the parts, which llama.cpp has in the other order."""
    return [found.compute.get(name, 0) for name in reversed(found.devices)]
