"""From what a caller asks for to the plan that is carried out: backends, devices, who drafts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING

from edgespec.backends import registry as backends
from edgespec.backends.llamacpp import library as llamacpp
from edgespec.backends.native.code_parts import Compiled
from edgespec.backends.onnx.providers import CPU, check_provider
from edgespec.control.backend_speeds import Contender, as_candidate, on_gpus
from edgespec.control.estimated_curve import estimated_curve, read_bytes
from edgespec.control.expected_speed import RepeatingShare
from edgespec.errors import BackendError, BudgetError, OptionError
from edgespec.loading import cpu_moe, model_drafters
from edgespec.loading.choose_backend import Selection
from edgespec.loading.draft_head import DraftHead, with_head
from edgespec.loading.draft_model import DraftModel
from edgespec.loading.first_layers import first_layers_of, with_first_layers
from edgespec.loading.load_options import LoadOptions
from edgespec.loading.tell_streaming import with_disk_speed
from edgespec.memory.plan.budget import Budget
from edgespec.memory.plan.calibration import KernelState, runtime
from edgespec.memory.plan.external_engine import Ask
from edgespec.memory.plan.placement import Device
from edgespec.memory.plan.plan import Plan
from edgespec.memory.plan.planner import make_plan
from edgespec.memory.plan.settings import BUILT_IN_DRAFTERS
from edgespec.memory.plan.sizing import Sizing, resident_of
from edgespec.memory.plan.streaming import Streaming
from edgespec.models.adapter import Adapter
from edgespec.models.file import ModelFile
from edgespec.system import precompiled
from edgespec.system.device import DeviceProfile
from edgespec.system.disk_cache import chosen_folder, kernels_are_cached
from edgespec.system.hardware import Hardware, MemorySnapshot, hardware, snapshot
from edgespec.system.power import threads_for
from edgespec.system.records import dataclass
from edgespec.system.resident_memory import resident_bytes
from edgespec.system.size import format_size, is_auto, parse_size
from edgespec.system.user_data import keeps_nothing

if TYPE_CHECKING:
    from edgespec.backends.onnx.provider_trial import Trial

_PLACES = "llamacpp"
"""The backend that puts layers on other devices."""


@dataclass(frozen=True, slots=True)
class Planning:
    """What was asked for and the files that it named; planning changes none of them."""

    file: ModelFile
    options: LoadOptions
    drafters: tuple[str, ...]
    draft_model: DraftModel | None = None
    adapter: Adapter | None = None
    """What early exits draft through, where there is one and they were asked for."""
    adapter_note: str = ""
    head: DraftHead | None = None
    """The model's own, or one in a file of its own."""
    compare: bool = False
    """Whether the plan is to compare every backend that can run the model."""
    device: DeviceProfile | None = None
    """The machine to plan for, where that is another than this one."""
    _now: MemorySnapshot = field(default_factory=snapshot)

    def drafters_on(self, backend: str, streaming: Streaming | None = None) -> tuple[str, ...]:
        """Who drafts on a backend: early exits that nobody asked for do so on the native one, where
        the first layers are not read from disk with the others.
        """
        whole = streaming is None
        joins = self.options.drafters == "auto" and backend == "native" and whole
        if joins and model_drafters.may_join(self.file):
            return tuple(dict.fromkeys((*self.drafters, model_drafters.EARLY_EXIT)))
        return self.drafters

    def plan_for(self, device: DeviceProfile) -> Plan:
        """The plan there, on the native backend with precompiled kernels, and about how fast."""
        if self.options.backend not in ("auto", "native"):
            raise OptionError("plans for a device are of the native backend; drop --backend")
        check_provider(self.options.provider, "native", self.file)
        there = replace(self, device=device, _now=device.memory(self._now.process_resident_bytes))
        made, file = there._of("native", (), ()), self.file
        size = read_bytes(file.spec, file.tensors.values())
        speed = device.bytes_per_second
        curve = estimated_curve("native", size, made.max_nodes, speed)
        one = Contender(made, curve, "estimated", RepeatingShare.of(file.fingerprint).share)
        reasons = (device.describe(), *made.reasons)
        return replace(made, candidates=(as_candidate(one, one),), reasons=reasons)

    def plan(self) -> Plan:
        """The plan to carry out; raises what `load` raises before it loads."""
        if self.options.stream not in ("auto", "off"):
            raise OptionError(f"unknown stream {self.options.stream!r}; choose auto or off")
        check_provider(self.options.provider, self.options.backend, self.file)
        if self.options.isolate not in ("auto", "on", "off"):
            raise OptionError(f"unknown isolate {self.options.isolate!r}; choose auto, on or off")
        cpu_moe.layers_on_cpu(self.file, self.options)
        devices = self._devices()
        cpu_moe.check_devices(self.options, devices)
        made = self._with_device_to_draft(devices)
        try:
            made = made or self._selected(devices)
        except BackendError as error:
            if self._asks_for_devices or not devices:
                raise
            made = self._selected(())
            made = made.with_notes(f"other devices are not used: {error}")
        if self.draft_model is not None:
            self.draft_model.check_overlap(made)
        if made.streaming is not None and model_drafters.EARLY_EXIT in self.drafters:
            raise OptionError(
                f"the drafter {model_drafters.EARLY_EXIT} needs the first layers in memory, and "
                "weights that do not fit are read from disk; drop the drafter, or raise --memory"
            )
        return made.with_notes(self.adapter_note)

    @property
    def _asks_for_devices(self) -> bool:
        by_name = not is_auto(self.options.vram) or bool(self.options.workers)
        return by_name or cpu_moe.is_asked_for(self.options)

    def _devices(self) -> Sequence[Device]:
        """Where else than in this process parts of the model may lie."""
        may_use = self.options.backend in ("auto", "llamacpp") and self.file.format == "gguf"
        if not self._asks_for_devices and (not may_use or llamacpp.missing()):
            return ()
        from edgespec.backends.llamacpp.remote.devices import devices_for

        return devices_for(self.options.vram, self.options.workers, self.options.key_file)

    def _with_device_to_draft(self, devices: Sequence[Device]) -> Plan | None:
        """The plan in which a device is the draft model's alone, where that is the better use."""
        if self.draft_model is None:
            return None
        if not self._asks_for_devices:  # nobody measured what it would do in shared memory
            devices = [one for one in devices if not one.shared]
        taken = self.draft_model.device(devices, self.file)
        if taken is None:
            return None
        with suppress(BudgetError):  # then layers are needed there
            made = self._selected([one for one in devices if one is not taken], [taken])
            return made if self.draft_model.is_placed(made) else None
        return None

    def _selected(self, devices: Sequence[Device], to_draft: Sequence[Device] = ()) -> Plan:
        """The plan of the fastest backend, with layers on these devices, if they were asked for or
        that is fastest, and the draft model's on those.
        """
        by_name = bool(devices) and self._asks_for_devices
        offer = (backends.offer_with_devices if by_name else backends.offer)(
            self.options.backend, self.file
        )
        whole, apart = on_gpus(_PLACES), on_gpus(_PLACES, keeps_experts=True)
        if not by_name and devices and _PLACES in offer.names:
            placed = (whole, apart) if self._may_keep_experts else (whole,)
            offer = replace(offer, names=(*offer.names, *placed))
        names = tuple(device.name for device in devices)

        def of(name: str) -> Plan:
            if name == whole:
                off = replace(self, options=replace(self.options, cpu_moe="off"))
                made = off._of(_PLACES, devices, to_draft)
            elif name == apart:
                made = self._of(_PLACES, devices, to_draft)
                if made.devices and not made.keeps_experts:
                    raise BackendError(f"{', '.join(names)} reads more of whole layers")
            else:
                made = self._of(name, devices if by_name else (), to_draft)
                if not cpu_moe.is_asked_for(self.options):
                    return made
            if not made.devices:
                raise BackendError(f"no layer fits on {', '.join(names)}")
            return made

        return Selection(self.file, offer, of, self._is_ready, names).plan(compare=self.compare)

    @property
    def _may_keep_experts(self) -> bool:
        """Whether that is to be compared with whole layers on devices."""
        return is_auto(self.options.cpu_moe) and cpu_moe.mixes_experts(self.file)

    def _of(self, name: str, devices: Sequence[Device], to_draft: Sequence[Device]) -> Plan:
        """A backend's plan; engines of others in a process of their own where that is wanted."""
        if not self._isolates(name, devices):
            return self._placed(name, devices, to_draft, isolated=False)
        try:
            made = self._placed(name, devices, to_draft, isolated=True)
        except BudgetError:
            if self.options.isolate == "on":
                raise
            return self._placed(name, devices, to_draft, isolated=False)
        new = self.options.isolate == "auto"
        note = f"{name} runs in a process of its own, as it has not run this file here before"
        return replace(made, isolated=True).with_notes(note if new else "")

    def _isolates(self, name: str, devices: Sequence[Device]) -> bool:
        asked = self.options.isolate
        alone = not devices and self.draft_model is None and self.options.provider == CPU
        alone &= model_drafters.EARLY_EXIT not in self.drafters
        if asked == "off" or not backends.is_foreign(name):
            return False
        if asked == "on" and not alone:
            raise OptionError(
                "an isolated engine has the processor alone and is drafted for by texts; leave out "
                "--isolate, or --vram, --workers, --provider, --draft-model and early-exit"
            )
        return asked == "on" or (alone and backends.is_new(name, self.file))

    def _placed(
        self,
        name: str,
        devices: Sequence[Device],
        to_draft: Sequence[Device],
        *,
        isolated: bool,
    ) -> Plan:
        asked = model_drafters.EARLY_EXIT in self.drafters
        first, apart = first_layers_of(self.file, self.draft_model, devices)
        model_drafters.check(self.drafters, name, self.file, apart=apart)
        if self.head is not None and not self.head.is_optional:
            self.head.check(name)
        joins = self.options.drafters == "auto"  # first layers draft where that costs nothing else
        if name != "llamacpp" or not (asked or joins) or isolated:
            first = None
        mapped = asked and first is not None
        trial = self._tried_provider(name)
        with backends.survey(
            name,
            self.file,
            devices,
            mapped=mapped,
            isolated=isolated,
            trial=trial,
            cpu_moe=cpu_moe.layers_on_cpu(self.file, self.options),
        ) as ask:
            if first is not None and ask is not None:
                planned = partial(self._made, name, ask)
                return with_first_layers(self.drafters, first, ask, planned)

            def made(drafters: tuple[str, ...], head: DraftHead | None) -> Plan:
                return self._made(name, ask, drafters, self.draft_model, to_draft, head)

            plan = with_head(self.drafters_on(name), self.head, name, made)
            return plan if trial is None else plan.with_notes(trial.note())

    def _tried_provider(self, name: str) -> Trial | None:
        """What ONNX Runtime's provider takes for the model, where another than the default was
        asked for.
        """
        budget = Budget.parse(self.options.memory, self._now).size_bytes
        left = max(0, budget - self._now.process_resident_bytes)
        machine = hardware()
        threads = self._threads(machine) or machine.usable_threads()
        return backends.try_provider(name, self.file, self.options.provider, threads, left)

    def _threads(self, machine: Hardware) -> int | None:
        return self.options.threads or threads_for(self.options.power, machine.usable_threads())

    def _made(
        self,
        name: str,
        ask: Ask | None,
        drafters: tuple[str, ...],
        draft_model: DraftModel | None,
        to_draft: Sequence[Device] = (),
        head: DraftHead | None = None,
    ) -> Plan:
        """A backend's plan with these drafters; `ask` says what its engine needs, if external."""
        kernels: KernelState = "cached" if self._is_ready(name) else "cold"
        if self.device is not None or precompiled.chosen().source == "library":
            kernels = "library"
        machine = hardware() if self.device is None else self.device.hardware
        kept_bytes, kept_note = self._kept_prompts(name)
        drafting = nullcontext() if draft_model is None else draft_model.sizing(name, to_draft)
        with drafting as draft:
            sizing = Sizing(
                self.file.spec,
                tuple(self.file.tensors.values()),
                runtime(self._resident_bytes(), kernels),
                name,
                drafters,
                resident_of(self.options.store),
                draft,
                () if self.adapter is None else tuple(self.adapter.tensors.values()),
                ask,
                None if head is None else head.sizes,
                prompt_cache=kept_bytes > 0,
            )
            made = make_plan(
                sizing,
                Budget.parse(self.options.memory, self._now),
                machine,
                context=self.options.context,
                threads=self._threads(machine),
                max_nodes=self.options.max_nodes,
                kv_type=self.options.kv_type,
                sequences=self.options.sequences,
                stream=self.options.stream == "auto",
            )
        made = with_disk_speed(made, self.file)
        overlap = "" if draft_model is None else draft_model.overlap_reason(made)
        window = "" if draft_model is None else draft_model.window_reason(made)
        used = [part.name for part in (*made.devices, *made.draft_devices)]
        if not self._asks_for_devices:  # then they are compared
            used += [device.name for device in self._devices()]
        made = replace(made, power=self.options.power, prompt_cache_bytes=kept_bytes)
        made = replace(made, provider=self.options.provider)
        return made.with_notes(overlap, window, kept_note, *backends.notes(name, used))

    def _resident_bytes(self) -> int:
        """What this process holds; planning imports what it needs, which stays."""
        before = self._now.process_resident_bytes
        return before if self.device is not None else max(before, resident_bytes())

    def _kept_prompts(self, name: str) -> tuple[int, str]:
        """How many bytes of prompts a backend may keep on disk, and what to say of it."""
        asked = self.options.prompt_cache
        if asked == "off":
            return 0, ""
        limit = parse_size(asked)
        if keeps_nothing():
            why = "EDGESPEC_HISTORY says to keep nothing"
        elif name != "native":
            why = f"the {name} backend keeps keys and values itself"
        else:
            told = f"up to {format_size(limit)}, in {chosen_folder()}"
            return limit, f"prompts that take a second or more are kept on disk, {told}"
        return 0, f"no prompts are kept on disk: {why}"

    def _is_ready(self, name: str) -> bool:
        """Whether all that a session on a backend needs is compiled."""
        apart = backends.compiled_apart(name, self.options.kv_type)
        kinds = compiled_for(self.file, name, self.adapter, self.head)
        drafters = self.drafters_on(name) or BUILT_IN_DRAFTERS
        ready = kernels_are_cached(name, kinds, drafters, apart)
        return ready and (self.draft_model is None or self.draft_model.is_ready)


def compiled_for(
    file: ModelFile,
    backend: str,
    adapter: Adapter | None = None,
    head: DraftHead | None = None,
) -> frozenset[Compiled]:
    """What decides which code is compiled for a model, its adapter and its head."""
    more = () if adapter is None else adapter.tensors.values()
    kinds = backends.compiled_for(backend, file, more)
    return kinds | (head.kinds if head and backends.compiles(backend) else frozenset())
