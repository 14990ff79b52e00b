"""One model on one started process: what any settings would cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from edgespec.memory.calibration import Runtime
from edgespec.memory.footprint import native_footprint
from edgespec.memory.foreign import Ask, foreign_footprint
from edgespec.memory.plan import Footprint
from edgespec.memory.settings import Settings
from edgespec.models.spec import ModelSpec, TensorInfo, TensorType


@dataclass(frozen=True, slots=True)
class Sizing:
    """Everything about a footprint that the planner does not choose."""

    spec: ModelSpec
    tensors: tuple[TensorInfo, ...]
    threads: int
    runtime: Runtime
    backend: str = "native"
    ask: Ask | None = None
    """Who tells what another engine would hold; None for our own backends."""

    def footprint(self, settings: Settings) -> Footprint:
        """The itemised peak of a session with these settings."""
        if self.ask is not None:
            return foreign_footprint(
                self.spec,
                self.tensors,
                settings,
                self.ask(settings, self.threads),
                threads=self.threads,
                runtime=self.runtime,
            )
        reference = self.backend == "reference"  # the same parts, with every weight as f32
        return native_footprint(
            self.spec,
            map(_as_f32, self.tensors) if reference else self.tensors,
            context_length=settings.context,
            max_nodes=settings.max_nodes,
            prefill_chunk=settings.prefill_chunk,
            threads=self.threads,
            drafter_bytes=settings.drafter_bytes,
            kv_type=settings.kv_type,
            sequences=settings.sequences,
            base_bytes=self.runtime.libraries_bytes(),
            kernel_bytes=self.runtime.kernels_bytes(),
            startup_peak_bytes=self.runtime.peak_bytes(),
        )

    def total(self, settings: Settings) -> int:
        """The peak in bytes."""
        return self.footprint(settings).total_bytes


def _as_f32(tensor: TensorInfo) -> TensorInfo:
    size_bytes = 4 * math.prod(tensor.shape)
    return replace(tensor, type=TensorType.F32, size_bytes=size_bytes)
