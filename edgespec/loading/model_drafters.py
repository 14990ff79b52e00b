"""Drafters that a model computes: which a backend and a file can have, and how they are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from edgespec.errors import OptionError
from edgespec.memory.plan.plan import Plan
from edgespec.memory.plan.sizing import DRAFT_MODEL
from edgespec.memory.plan.sizing import EARLY_EXIT as EARLY_EXIT
from edgespec.models.adapter import Adapter, find_adapter
from edgespec.models.file import ModelFile
from edgespec.models.layers import Moe
from edgespec.system.cores import cores
from edgespec.system.size import MIB

if TYPE_CHECKING:
    from edgespec.drafting.base import Drafter
    from edgespec.loading.draft_model import DraftModel

EXIT_LAYER_KEY = "edgespec.early_exit.layer"
"""Metadata of files that were trained to be left early: after which layer."""
_HEAD_PART, _LEAST_HEAD = 4, 2048
"""Drafts are drawn from this part of the vocabulary, its first tokens, or from so many."""


JOIN_SECONDS = 0.003
"""Exits draft by themselves where a plain pass takes this long: what they take besides is small."""
_JOIN_BYTES = 64 * MIB
"""Models below this are never that slow, so that nothing need be planned for exits."""


def may_join(file: ModelFile) -> bool:
    """Whether exits may draft without being asked for, should passes take long enough."""
    spec = file.spec
    can_leave = not spec.recurrent and spec.per_layer_embedding is None and spec.num_layers > 1
    # What a partial pass of a mixture spares was never measured.
    can_leave = can_leave and not any(isinstance(layer.ffn, Moe) for layer in spec.layers)
    return can_leave and is_large(file)


class Head(Protocol):
    """A draft head that is loaded."""

    drafter: str

    def make(self) -> Drafter: ...


def is_large(file: ModelFile) -> bool:
    """Whether passes may take so long that what came with a model drafts unasked."""
    return file.format == "gguf" and file.size_bytes >= _JOIN_BYTES


def exit_layer(file: ModelFile) -> int:
    """After how many layers drafts leave: what the file says, or a third of all."""
    layer = file.metadata.get(EXIT_LAYER_KEY)
    most = file.spec.num_layers - 1
    if isinstance(layer, int) and 1 <= layer <= most:
        return layer
    return max(1, min(most, file.spec.num_layers // 3))


def exit_layers(file: ModelFile) -> tuple[int, ...]:
    """All exits that drafts may take, the one to begin with first: few, as probes ask them all."""
    first, num_layers = exit_layer(file), file.spec.num_layers
    others = {1, 2, 3, 4, num_layers // 8, num_layers // 4, num_layers // 2}
    if num_layers > 8:
        others -= {1, 3}
    return (first, *sorted(layer for layer in others - {first} if 1 <= layer < num_layers))


def adapter_beside(file: ModelFile, names: Sequence[str]) -> tuple[Adapter | None, str]:
    """What `edgespec adapt` wrote beside a model, if exits draft, and what a plan says of it."""
    if EARLY_EXIT not in names or file.format != "gguf":
        return None, ""
    adapter, why_not = find_adapter(file)
    if adapter is None:
        return None, why_not
    gains = ", ".join(
        f"layer {layer} {100 * adapter.fits[layer].before:.0f} -> "
        f"{100 * adapter.fits[layer].after:.0f} %"
        for layer in adapter.layers
    )
    return adapter, f"adapter {adapter.path.name}: next tokens predicted at exits, {gains}"


def check(names: Sequence[str], backend: str, file: ModelFile, *, apart: str = "") -> None:
    """Raise OptionError for drafters that this backend or this model cannot have; `apart` says why
    its first layers cannot be a model of their own on llama.cpp, "" where they can.
    """
    if EARLY_EXIT not in names:
        return
    if backend == "llamacpp":
        if apart:
            raise OptionError(f"cannot use the drafter {EARLY_EXIT} on llama.cpp: {apart}")
        return
    if backend != "native":
        raise OptionError(
            f"cannot use the drafter {EARLY_EXIT}: the {backend} backend cannot leave a pass "
            "early; use --backend native, or drop the drafter"
        )
    if file.spec.recurrent or file.spec.per_layer_embedding is not None:
        raise OptionError(
            f"cannot use the drafter {EARLY_EXIT}: this model's layers keep states, or read "
            "embeddings of their own, which a pass that goes on would lack; drop the drafter"
        )
    if file.spec.num_layers < 2:
        raise OptionError(
            f"cannot use the drafter {EARLY_EXIT}: this model has only one layer; drop the drafter"
        )


def make(
    name: str,
    file: ModelFile,
    draft_model: DraftModel | None,
    plan: Plan,
    adapted: Sequence[int] = (),
    head: Head | None = None,
) -> Drafter:
    """A model drafter by its name; `adapted` are the layers whose exit has an adapter."""
    vocab_size = file.spec.vocab_size
    if head is not None and name == head.drafter:
        return head.make()
    if name == EARLY_EXIT and plan.mapped and draft_model is not None:
        from edgespec.drafting.model.small_model import FirstLayersDrafter

        return FirstLayersDrafter(draft_model.sequence(), vocab_size)
    if name == DRAFT_MODEL and draft_model is not None:
        from edgespec.control.overlap.overlapped_drafter import DraftAhead
        from edgespec.drafting.model.small_model import DraftModelDrafter

        drafter = DraftModelDrafter(
            draft_model.sequence(), vocab_size, draft_model.ids, slides=draft_model.slides(plan)
        )
        if why := draft_model.cannot_overlap(plan):
            return DraftAhead(drafter, "off", reason=why)
        threads, draft_threads = draft_model.shared_cores(plan)
        return DraftAhead(
            drafter,
            draft_model.overlap,
            threads=threads,
            draft_threads=draft_threads,
            cores=cores(),
        )
    from edgespec.drafting.model.early_exit import EarlyExitDrafter, Exit

    # With an adapter first: it is there because it was right more often.
    exits = [
        Exit(layer, through)
        for layer in dict.fromkeys((*exit_layers(file), *adapted))
        for through in ((True, False) if layer in adapted else (False,))
    ]
    head_size = min(vocab_size, max(_LEAST_HEAD, vocab_size // _HEAD_PART))
    return EarlyExitDrafter(exits, vocab_size, head_size, file.spec.num_layers)
