"""Drafters that a model computes: which a backend and a file can have, and how they are made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from edgespec import backends
from edgespec.errors import OptionError, UnsupportedModelError
from edgespec.memory.cores import cores
from edgespec.memory.hardware import hardware
from edgespec.memory.plan import Plan
from edgespec.memory.sizing import DRAFT_CHUNK, DRAFT_NODES, MODEL_DRAFTERS, DraftModel
from edgespec.models import ModelFile, TensorType, open_model, resolve

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edgespec.backends.base import Progress, Target
    from edgespec.backends.sequence import KvSequence
    from edgespec.drafting import Drafter

EARLY_EXIT, DRAFT_MODEL = MODEL_DRAFTERS
EXIT_LAYER_KEY = "edgespec.early_exit.layer"
"""Metadata of files that were trained to be left early: after which layer."""
_HEAD_PART, _LEAST_HEAD = 4, 2048
"""Drafts are drawn from this part of the vocabulary, its first tokens, or from so many."""
_TOKENS = "tokenizer.ggml.tokens"


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


def check_overlap(overlap: str, draft_model: bool, sequences: int) -> None:
    """Raise OptionError for an overlap that means nothing, or that there cannot be."""
    if overlap not in ("auto", "on", "off"):
        raise OptionError(f"overlap is auto, on or off, and {overlap!r} was asked for")
    if overlap == "on" and not draft_model:
        raise OptionError(
            "overlap lets a draft model work while the model verifies, and there is none; name "
            "one: --draft-model FILE"
        )
    if overlap == "on" and sequences > 1:
        raise OptionError(
            f"overlap was asked for with {sequences} texts at once, which share the draft model; "
            "write one at a time, or use --overlap auto"
        )


def shared_cores(threads: int, cores: int) -> tuple[int | None, int]:
    """Threads of the target and of a draft model while both compute, on so many cores; the target
    has planned `threads`, and None leaves it all of them.
    """
    if cores > threads:
        return None, min(cores - threads, threads)
    return (threads - 1) or None, 1


def check(names: Sequence[str], backend: str, file: ModelFile) -> None:
    """Raise OptionError for drafters that this backend or this model cannot have."""
    if EARLY_EXIT not in names:
        return
    if backend != "native":
        raise OptionError(
            f"the drafter {EARLY_EXIT} was asked for, and the {backend} backend cannot leave a "
            "pass early; use --backend native, or leave the drafter out"
        )
    if file.spec.num_layers < 2:
        raise OptionError(
            f"the drafter {EARLY_EXIT} was asked for, and this model has one layer; leave it out"
        )


@dataclass(slots=True)
class Partner:
    """A smaller model that drafts for another; it runs on the native backend, whatever that does.

    One target for all texts, with a sequence for each.
    """

    file: ModelFile
    ids: NDArray[np.int32] | None
    """Its ids for each of the other's tokens; None when they are the same."""
    overlap: str = "auto"
    """Whether it drafts while the other verifies: one of `OPTIONS` in control/overlap_choice.py."""
    _target: Target | None = None
    _num_texts: int = 0

    @classmethod
    def open(cls, model: str | os.PathLike[str], main: ModelFile, overlap: str = "auto") -> Self:
        """Open the file; OptionError when it cannot draft for `main`, ModelFileError when it cannot
        be read.
        """
        from edgespec.backends.native.limits import refusal

        file = open_model(resolve(model), foreign=True)
        try:
            why_not = refusal(file.spec, file.tensors.values())
            if why_not:
                raise UnsupportedModelError(f"{file.path} cannot draft: {why_not}")
            return cls(file, translation(main, file), overlap)
        except BaseException:
            file.close()
            raise

    @property
    def sizing(self) -> DraftModel:
        return DraftModel(self.file.spec, tuple(self.file.tensors.values()))

    @property
    def kinds(self) -> frozenset[TensorType]:
        """Types of its matrices."""
        tensors = self.file.tensors.values()
        return frozenset(info.type for info in tensors if len(info.shape) > 1)

    def load(self, plan: Plan, progress: Progress | None = None) -> None:
        """Load its weights, as the other model's plan has room for."""
        own = replace(
            plan,
            backend="native",
            context_length=min(plan.context_length, self.file.spec.context_length),
            kv_type="f16",
            max_nodes=max(DRAFT_NODES, plan.sequences),
            prefill_chunk=DRAFT_CHUNK,
        )
        self._target = backends.open_target(self.file, own, progress)

    def sequence(self) -> KvSequence:
        """Where the next text's keys and values go."""
        assert self._target is not None
        self._num_texts += 1
        return self._target.own if self._num_texts == 1 else self._target.open_sequence()

    def overlap_reason(self, plan: Plan) -> str:
        """A sentence on drafting while the other verifies."""
        if self.overlap == "off" or plan.sequences > 1:
            why = "as asked" if self.overlap == "off" else "the texts share the draft model"
            return f"overlap off: {why}; drafts are written before each pass"
        threads, draft_threads = shared_cores(plan.threads, hardware().usable_threads())
        kept = "kept where that is measured to be faster" if self.overlap == "auto" else "as asked"
        place = " (efficiency cores)" if cores().unequal else ""
        return (
            f"overlap {self.overlap}: drafts on {draft_threads} of the threads{place} while "
            f"{threads or plan.threads} verify; {kept}"
        )

    def close(self) -> None:
        """Give back its memory and file."""
        if self._target is not None:
            self._target.close()
        self.file.close()


def make(name: str, file: ModelFile, partner: Partner | None, plan: Plan) -> Drafter:
    """A model drafter by its name."""
    vocab_size = file.spec.vocab_size
    if name == DRAFT_MODEL and partner is not None:
        from edgespec.control.overlap import DraftAhead
        from edgespec.drafting.draft_model import DraftModelDrafter

        drafter = DraftModelDrafter(partner.sequence(), vocab_size, partner.ids)
        if plan.sequences > 1:  # they share the small model, which computes for one at a time
            return drafter
        threads, draft_threads = shared_cores(plan.threads, hardware().usable_threads())
        return DraftAhead(
            drafter, partner.overlap, threads=threads, draft_threads=draft_threads, cores=cores()
        )
    from edgespec.drafting.early_exit import EarlyExitDrafter

    head_size = min(vocab_size, max(_LEAST_HEAD, vocab_size // _HEAD_PART))
    return EarlyExitDrafter(exit_layers(file), vocab_size, head_size)


def translation(main: ModelFile, draft: ModelFile) -> NDArray[np.int32] | None:
    """The draft's ids for each of the main model's tokens, None where they are the same but for
    what one of them has at the end; OptionError when it lacks some of them.
    """
    ours, theirs = _tokens(main), _tokens(draft)
    common = min(len(ours), len(theirs))
    if common and ours[:common] == theirs[:common]:
        return None
    places = {text: place for place, text in enumerate(theirs)}
    missing = sum(text not in places for text in ours)
    if missing or not ours:
        raise OptionError(
            f"{draft.path} cannot draft for {main.path}: its vocabulary of {len(theirs)} lacks "
            f"{missing} of {len(ours)} tokens; choose a smaller model of the same family"
        )
    import numpy as np

    return np.array([places[text] for text in ours], np.int32)


def _tokens(file: ModelFile) -> list[bytes]:
    tokens: Any = file.metadata.get(_TOKENS)
    return tokens.all_raw() if hasattr(tokens, "all_raw") else []
