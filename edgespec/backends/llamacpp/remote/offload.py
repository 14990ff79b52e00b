"""How llama.cpp is told which devices hold which layers, and what it says they hold."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from edgespec.backends.llamacpp.ggml import Ggml
from edgespec.backends.llamacpp.library import shared_folder
from edgespec.errors import BackendError
from edgespec.memory.plan.placement import EXPERTS, DevicePart
from edgespec.system.records import dataclass

_STORE = r"^llama_(?:kv_cache|memory_recurrent)\S*: +"
_CACHE = re.compile(_STORE + r"size = +([\d.]+) MiB.*?(\d+) layers")
_DEVICE_CACHE = re.compile(_STORE + r"(\S+) +\S+ buffer size = +([\d.]+) MiB")
_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Offload:
    """Devices in llama.cpp's order, the one with the first layers first."""

    devices: tuple[tuple[str, str], ...]
    """Kind and name of each; a worker's name is the loopback address of its link."""
    units: tuple[int, ...]
    """Layers, the output head counted as one, of each: the last ones of the model."""
    cpu_moe: int = 0
    """Of so many layers, the first of the model, the processor has the experts."""

    @classmethod
    def of(cls, parts: Sequence[DevicePart], endpoints: Mapping[str, str]) -> Self:
        """For the parts of a plan, with the addresses of the links to its workers."""
        ordered = tuple(reversed(parts))
        devices = tuple((part.kind, endpoints.get(part.name, part.name)) for part in ordered)
        bare = (part.first_layer + part.without_experts for part in ordered if part.without_experts)
        return cls(devices, tuple(part.units for part in ordered), max(bare, default=0))

    @classmethod
    def from_json(cls, values: Any) -> Self:
        devices = tuple((kind, name) for kind, name in values["devices"])
        return cls(devices, tuple(values["units"]), values["cpu_moe"])

    @property
    def experts(self) -> str:
        """A pattern of the tensors that the processor has, whoever has their layers; "" for none,
        where the library would still pay for looking.
        """
        layers = "|".join(map(str, range(self.cpu_moe)))
        return rf"blk\.({layers}){EXPERTS}" if layers else ""


class _Override(ctypes.Structure):
    """llama_model_tensor_buft_override, which llama-cpp-python does not declare."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


class Devices:
    """Device handles as parameters of a model; keep it as long as they are used."""

    def __init__(self, offload: Offload | None) -> None:
        """Without `offload` no device but the processor is used, whatever the build has."""
        self._offload = offload
        self.ggml = Ggml(shared_folder()) if offload is not None else None
        self.handles: list[Any] = []
        for kind, name in offload.devices if offload is not None else ():
            assert self.ggml is not None
            handle = self.ggml.remote(name) if kind == "worker" else self.ggml.by_name(name)
            if not handle:
                raise BackendError(f"llama.cpp finds no {kind} {name} any more; plan again")
            self.handles.append(handle)
        self._array = (ctypes.c_void_p * (len(self.handles) + 1))(*self.handles, None)
        self._shares: Any = None
        self._overrides: Any = None

    def apply(self, api: Any, params: Any) -> None:
        """Set what says where layers go."""
        params.devices = ctypes.addressof(self._array)
        if self._offload is None:
            return
        params.n_gpu_layers = sum(self._offload.units)
        params.split_mode = api.LLAMA_SPLIT_MODE_LAYER
        shares = (ctypes.c_float * api.llama_max_devices())(*self._offload.units)
        self._shares = shares
        params.tensor_split = ctypes.cast(shares, ctypes.POINTER(ctypes.c_float))
        if self._offload.experts and self.ggml is not None:
            here = _Override(self._offload.experts.encode(), self.ggml.processor_buffers())
            self._overrides = (_Override * 2)(here)  # the last one's pattern stays empty
            params.tensor_buft_overrides = ctypes.addressof(self._overrides)

    def buffer_names(self) -> tuple[str, ...]:
        """What log lines call each device's buffers."""
        assert self.ggml is not None or not self.handles
        return tuple(self.ggml.buffer_name(one) for one in self.handles) if self.ggml else ()

    def free_bytes(self) -> tuple[int, ...]:
        """What each device says is free now."""
        return tuple(self.ggml.memory(one)[0] for one in self.handles) if self.ggml else ()


def layer_cache_bytes(lines: Iterable[str]) -> int:
    """Keys and values of one layer at most; 0 where the library does not tell."""
    found = [match for line in lines if (match := _CACHE.search(line))]
    parts = [(round(float(one[1]) * _MIB), int(one[2])) for one in found]
    return max((-(-size // layers) for size, layers in parts if layers), default=0)


def device_cache_bytes(lines: Iterable[str]) -> dict[str, int]:
    """Keys and values by buffer."""
    found: dict[str, int] = {}
    for line in lines:
        match = _DEVICE_CACHE.search(line)
        if match:
            found[match[1]] = found.get(match[1], 0) + round(float(match[2]) * _MIB)
    return found
