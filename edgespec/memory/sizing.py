"""One model on one started process: what any settings would cost."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.memory.calibration import Runtime
from edgespec.memory.footprint import native_footprint
from edgespec.memory.plan import Footprint
from edgespec.memory.settings import Settings
from edgespec.models.spec import ModelSpec, TensorInfo


@dataclass(frozen=True, slots=True)
class Sizing:
    """Everything about a footprint that the planner does not choose."""

    spec: ModelSpec
    tensors: tuple[TensorInfo, ...]
    threads: int
    runtime: Runtime

    def footprint(self, settings: Settings) -> Footprint:
        """The itemised peak of a session with these settings."""
        return native_footprint(
            self.spec,
            self.tensors,
            context_length=settings.context,
            max_nodes=settings.max_nodes,
            prefill_chunk=settings.prefill_chunk,
            threads=self.threads,
            drafter_bytes=settings.drafter_bytes,
            base_bytes=self.runtime.libraries_bytes(),
            kernel_bytes=self.runtime.kernels_bytes(),
            startup_peak_bytes=self.runtime.peak_bytes(),
        )

    def total(self, settings: Settings) -> int:
        """The peak in bytes."""
        return self.footprint(settings).total_bytes
