"""From what a caller asks for to the plan that is carried out: backends, devices, who drafts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from edgespec.backends import registry as backends
from edgespec.backends.llamacpp.remote.devices import devices_for
from edgespec.errors import BackendError, BudgetError
from edgespec.loading import model_drafters
from edgespec.loading.choose_backend import Selection
from edgespec.loading.draft_model import DraftModel
from edgespec.loading.first_layers import first_layers_of, with_first_layers
from edgespec.memory.plan.budget import Budget
from edgespec.memory.plan.calibration import KernelState, runtime
from edgespec.memory.plan.external_engine import Ask
from edgespec.memory.plan.placement import Device
from edgespec.memory.plan.plan import Plan
from edgespec.memory.plan.planner import Planner
from edgespec.memory.plan.settings import BUILT_IN_DRAFTERS
from edgespec.memory.plan.sizing import resident_of
from edgespec.models.file import ModelFile
from edgespec.models.spec import TensorType
from edgespec.system.disk_cache import kernels_are_cached
from edgespec.system.hardware import MemorySnapshot, hardware, snapshot
from edgespec.system.size import is_auto


@dataclass(slots=True)
class Planning:
    """What was asked for, in the words of `load`."""

    file: ModelFile
    memory: str | int
    backend: str
    threads: int | None
    context: int | None
    max_nodes: int | None
    drafters: tuple[str, ...]
    kv_type: str
    sequences: int
    store: str | os.PathLike[str] | None
    draft_model: DraftModel | None
    vram: str | int
    workers: str | Sequence[str] | None
    joins: bool
    """Whether the first layers of a model prepared for it draft where that costs nothing else."""
    compare: bool = False
    """Whether the plan is to tell of every backend that could."""
    _now: MemorySnapshot = field(default_factory=snapshot)

    def plan(self) -> Plan:
        """The plan to carry out; raises what `load` raises before it loads."""
        note = self._find_adapter()
        devices = self._devices()
        made = self._with_device_to_draft(devices)
        try:
            made = made or self._selected(devices)
        except BackendError as error:
            if self._asks_for_devices or not devices:
                raise
            made = self._selected(())
            told = f"devices are left alone, which nobody asked for by name: {error}"
            made = replace(made, reasons=(*made.reasons, told))
        if self.draft_model is not None:
            self.draft_model.check_overlap(made)
        return replace(made, reasons=(*made.reasons, note)) if note else made

    def _find_adapter(self) -> str:
        """Open what `edgespec adapt` wrote beside the file, if exits draft; why, if that fails."""
        if model_drafters.EARLY_EXIT not in self.drafters or self.file.adapter is not None:
            return ""
        self.file.adapter, note = model_drafters.adapter_beside(self.file)
        return note

    @property
    def _asks_for_devices(self) -> bool:
        return not is_auto(self.vram) or bool(self.workers)

    def _devices(self) -> Sequence[Device]:
        """Where else than in this process parts of the model may lie."""
        may_use = self.backend in ("auto", "llamacpp") and self.file.format == "gguf"
        if not may_use and not self._asks_for_devices:
            return ()
        return devices_for(self.vram, self.workers)

    def _with_device_to_draft(self, devices: Sequence[Device]) -> Plan | None:
        """The plan in which a device is the draft model's alone, where that is the better use."""
        if self.draft_model is None:
            return None
        taken = self.draft_model.device(devices, self.file)
        if taken is None:
            return None
        with suppress(BudgetError):  # then layers are needed there
            made = self._selected([one for one in devices if one is not taken], [taken])
            return made if self.draft_model.is_placed(made) else None
        return None

    def _selected(self, devices: Sequence[Device], to_draft: Sequence[Device] = ()) -> Plan:
        """The plan of the fastest backend, with layers on these devices and the draft model's on
        those.
        """
        by_name = devices and self._asks_for_devices
        offer = (backends.offer_with_devices if by_name else backends.offer)(
            self.backend, self.file
        )
        of = partial(self._of, devices=devices, to_draft=to_draft)
        names = tuple(device.name for device in devices)
        return Selection(self.file, offer, of, self._is_ready, names).plan(compare=self.compare)

    def _of(self, name: str, devices: Sequence[Device], to_draft: Sequence[Device]) -> Plan:
        """A backend's plan."""
        first, apart = first_layers_of(self.file, self.draft_model, devices)
        model_drafters.check(self.drafters, name, self.file, apart=apart)
        asked = model_drafters.EARLY_EXIT in self.drafters
        if name != "llamacpp" or not (asked or self.joins):
            first = None
        with backends.survey(name, self.file, devices, mapped=asked and first is not None) as ask:
            planned = partial(self._made, name, ask)
            if first is None or ask is None:
                return planned(self.drafters, self.draft_model, to_draft)
            return with_first_layers(self.drafters, first, ask, planned)

    def _made(
        self,
        name: str,
        ask: Ask | None,
        drafters: tuple[str, ...],
        draft_model: DraftModel | None,
        to_draft: Sequence[Device] = (),
    ) -> Plan:
        """A backend's plan with these drafters; `ask` is what its engine needs, if not ours."""
        kernels: KernelState = "cached" if self._is_ready(name) else "cold"
        sizing = nullcontext() if draft_model is None else draft_model.sizing(name, to_draft)
        with sizing as draft:
            made = Planner(runtime(self._now.process_resident_bytes, kernels), ask).plan(
                self.file.spec,
                self.file.tensors.values(),
                Budget.parse(self.memory, self._now),
                hardware(),
                context=self.context,
                threads=self.threads,
                max_nodes=self.max_nodes,
                backend=name,
                drafters=drafters,
                kv_type=self.kv_type,
                sequences=self.sequences,
                datastore_bytes=resident_of(self.store),
                draft_model=draft,
                adapter=self.file.adapter.tensors.values() if self.file.adapter else (),
            )
        told = () if draft_model is None else (draft_model.overlap_reason(made),)
        used = [part.name for part in (*made.devices, *made.draft_devices)]
        return replace(made, reasons=(*made.reasons, *told, *backends.notes(name, used)))

    def _is_ready(self, name: str) -> bool:
        """Whether all that a session on a backend needs is compiled."""
        apart = backends.compiled_apart(name, self.kv_type)
        kinds, drafters = matrix_kinds(self.file, name), self.drafters or BUILT_IN_DRAFTERS
        ready = kernels_are_cached(name, kinds, drafters, apart)
        return ready and (self.draft_model is None or self.draft_model.is_ready)


def matrix_kinds(file: ModelFile, backend: str) -> frozenset[TensorType]:
    """Types of the weight matrices, where they decide what must be compiled."""
    if backend != "native":
        return frozenset()
    more = {} if file.adapter is None else file.adapter.tensors
    tensors = (*file.tensors.values(), *more.values())
    return frozenset(info.type for info in tensors if len(info.shape) > 1)
