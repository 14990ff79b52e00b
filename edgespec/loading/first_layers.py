"""A model's own first layers as a second model that drafts for it, on the same pages (llama.cpp).

For models in two files (`models/gguf/splitting.py`). The second context shares no keys and values
with the first, which llama.cpp cannot: it reads the sequence by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from edgespec.backends import registry as backends
from edgespec.errors import BudgetError
from edgespec.loading.draft_model import DraftModel
from edgespec.loading.model_drafters import EARLY_EXIT
from edgespec.memory.plan.external_engine import Ask
from edgespec.memory.plan.placement import Device
from edgespec.memory.plan.plan import Alternative, Plan
from edgespec.memory.plan.settings import Settings
from edgespec.memory.plan.sizing import DraftModelSizes
from edgespec.models.file import ModelFile
from edgespec.models.gguf.splitting import first_layers, layer_of
from edgespec.system.records import dataclass
from edgespec.system.resident_memory import count_once
from edgespec.system.size import format_size

if TYPE_CHECKING:
    from edgespec.backends.passes import Progress

BACKEND = "llamacpp"


@dataclass(slots=True)
class FirstLayers(DraftModel):
    """The first part of a model in two files; the file stays the whole model's."""

    layers: int = 0

    @classmethod
    def of(cls, file: ModelFile) -> Self | None:
        """The first layers of a model that was prepared for this, None of any other."""
        if file.format != "gguf" or file.metadata.get("split.count") != 2 or file.spec.recurrent:
            return None
        layers = first_layers(file.path)
        return cls(file, BACKEND, None, "off", layers=layers) if layers else None

    @contextmanager
    def sizing(self, main: str, devices: Sequence[Device] = ()) -> Iterator[DraftModelSizes]:
        with backends.survey(BACKEND, self.file, layers=self.layers) as ask:
            spec = self.file.spec.first_layers(self.layers)
            tensors = tuple(
                info for info in self.file.tensors.values() if layer_of(info) < self.layers
            )
            yield DraftModelSizes(spec, tensors, ask, shares_library=main == BACKEND)

    def overlap_reason(self, plan: Plan) -> str:
        return (
            f"the first {self.layers} of {self.file.spec.num_layers} layers draft, on the model's "
            "own pages, which are counted once"
        )

    def device(self, devices: Sequence[Device], main: ModelFile) -> Device | None:
        return None

    def load(self, plan: Plan, progress: Progress | None = None) -> None:
        """Open them beside the whole; raises BudgetError when they hold more than was planned."""
        from edgespec.backends.llamacpp.target import LlamaTarget

        def mapped(done: int, total: int) -> None:
            count_once(self.file.path)
            if progress is not None:
                progress(done, total)

        target = LlamaTarget(self.file, self._plan(plan), mapped, layers=self.layers)
        self._target = target
        count_once(self.file.path)
        held = sum(size for name, size in target.allocated_bytes().items() if name != "weights")
        planned = plan.footprint["draft model"]
        if held > planned + plan.budget_bytes - plan.planned_bytes:
            self.close()
            raise BudgetError(
                f"llama.cpp has allocated {format_size(held)} for the first layers, but "
                f"{format_size(planned)} were planned; use more --memory or a smaller --context"
            )

    def close(self) -> None:
        """Give back its memory; the file is the model's."""
        if self._target is not None:
            self._target.close()
            count_once(self.file.path)


def first_layers_of(
    file: ModelFile, draft_model: DraftModel | None, devices: Sequence[Device]
) -> tuple[FirstLayers | None, str]:
    """The first layers that may draft for a model, or why there are none, as a clause."""
    if draft_model is not None:
        return None, "only one model can draft there, and --draft-model names another; drop one"
    if devices:
        return None, "layers are to go to other devices; drop the drafter, or --vram and --workers"
    found = FirstLayers.of(file)
    if found is None:
        return None, (
            "it needs a model in two files there; make one with `edgespec prepare MODEL.gguf "
            "--exit-layer E`, use --backend native, or drop the drafter"
        )
    return found, ""


def with_first_layers(
    drafters: tuple[str, ...],
    first: FirstLayers,
    ask: Ask,
    planned: Callable[[tuple[str, ...], DraftModel | None], Plan],
) -> Plan:
    """The plan with the first layers as a drafter, if they were asked for, or where mapped weights
    cost llama.cpp nothing and memory has room for both; else the plan without, and why.
    """
    if EARLY_EXIT in drafters:
        return replace(planned(drafters, first), mapped=True)
    plain = planned(drafters, None)
    if not plain.drafter_bytes:
        return plain
    settings = Settings(plain.context_length, plain.prefill_chunk, plain.max_nodes, 0)
    if ask(settings, plain.threads).copies_head:
        return _undrafted(plain, "llama.cpp repacks these weights, and is slower with mapped ones")
    try:
        made = planned((*drafters, EARLY_EXIT), first)
    except BudgetError:
        return _undrafted(plain, "there is no room for their KV cache")
    same = ("context_length", "kv_type", "max_nodes", "prefill_chunk", "threads", "sequences")
    if any(getattr(made, name) != getattr(plain, name) for name in same):
        return _undrafted(plain, "there is no room for their KV cache")
    return replace(made, mapped=True, alternatives=their_alternatives(plain, made))


def their_alternatives(plain: Plan, made: Plan) -> tuple[Alternative, ...]:
    """The alternatives to a plan in which the first layers draft: without speculation they do
    not.
    """
    alone = {one.option: one.total_bytes for one in plain.alternatives}
    total, option = made.planned_bytes, "--no-speculation"
    return tuple(
        Alternative(one.name, option, alone[option], alone[option] - total)
        if one.option == option and option in alone
        else one
        for one in made.alternatives
    )


def _undrafted(plan: Plan, why: str) -> Plan:
    return plan.with_notes(
        f"the first layers do not draft: {why}; --drafters ...,early-exit makes them"
    )
