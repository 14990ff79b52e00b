"""A smaller model that drafts for another, each on a backend of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from edgespec.backends import registry as backends
from edgespec.backends.native.code_parts import Compiled
from edgespec.backends.onnx.providers import CPU
from edgespec.errors import BackendError, OptionError, UnsupportedModelError
from edgespec.loading.load_options import LoadOptions
from edgespec.memory.plan.placement import Device, device_to_draft
from edgespec.memory.plan.plan import Footprint, Plan
from edgespec.memory.plan.sizing import (
    DRAFT_CHUNK,
    DRAFT_NODES,
    DRAFT_SINKS,
    DraftModelSizes,
    draft_context,
)
from edgespec.models.file import ModelFile
from edgespec.models.open_model import open_model
from edgespec.models.registry import resolve
from edgespec.system.cores import cores
from edgespec.system.disk_cache import kernels_are_cached
from edgespec.system.hardware import hardware
from edgespec.system.records import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edgespec.backends.base import Target
    from edgespec.backends.passes import Progress
    from edgespec.backends.sequence import KvSequence

DRAFT_BACKENDS = ("native", "llamacpp", "onnx")
LEAST_WINDOW = 32
_TOKENS = "tokenizer.ggml.tokens"


@dataclass(slots=True)
class DraftModel:
    """An opened draft model; one target with a sequence for each of the other's."""

    file: ModelFile
    backend: str
    """What computes it, whatever computes the other."""
    ids: NDArray[np.int32] | None
    """Its ids for each of the other's tokens; None when they are the same."""
    overlap: str = "auto"
    """Whether it drafts while the other verifies: one of `OPTIONS` in control/overlap/choice.py."""
    window: int | None = None
    """Tokens of a long text that it keeps; None for all."""
    _target: Target | None = None
    _num_sequences: int = 0

    @classmethod
    def open(
        cls,
        model: str | os.PathLike[str],
        main: ModelFile,
        *,
        backend: str = "auto",
        sequences: int = 1,
        overlap: str = "auto",
        window: int | None = None,
    ) -> Self:
        """Open a file that is to draft for `main`, for so many sequences at once.

        OptionError when it cannot or `backend` is no name, UnsupportedModelError or BackendError
        when nothing here computes it, ModelFileError when it cannot be read.
        """
        if backend not in ("auto", *DRAFT_BACKENDS):
            known = ", ".join(("auto", *DRAFT_BACKENDS))
            raise OptionError(f"unknown draft backend {backend!r}; choose {known}")
        file = open_model(resolve(model), any_engine=True)
        try:
            chosen = _backend(backend, file)
            _check(chosen, file, sequences)
            return cls(file, chosen, translation(main, file), overlap, window)
        except BaseException:
            file.close()
            raise

    @contextmanager
    def sizing(self, main: str, devices: Sequence[Device] = ()) -> Iterator[DraftModelSizes]:
        """What its memory is counted by, beside a model on the backend `main`, with its layers on
        devices where there are some.

        Raises ModelFileError for a file that its engine refuses.
        """
        with backends.survey(self.backend, self.file, devices) as ask:
            tensors = tuple(self.file.tensors.values())
            shares = main == self.backend
            yield DraftModelSizes(self.file.spec, tensors, ask, shares, self.window)

    def device(self, devices: Sequence[Device], main: ModelFile) -> Device | None:
        """The device that is better given to it than to layers of `main`; needs llama.cpp."""
        if self.backend != "llamacpp":
            return None
        return device_to_draft(devices, _placed_bytes(main), _placed_bytes(self.file))

    def is_placed(self, plan: Plan) -> bool:
        """Whether all of its layers are on a device."""
        return sum(part.units for part in plan.draft_devices) > self.file.spec.num_layers

    @property
    def kinds(self) -> frozenset[Compiled]:
        """What decides which code is compiled for it."""
        return backends.compiled_for(self.backend, self.file)

    @property
    def is_ready(self) -> bool:
        """Whether all that its passes need is compiled."""
        compiles = backends.compiles(self.backend)
        return not compiles or kernels_are_cached(self.backend, self.kinds)

    def load(self, plan: Plan, progress: Progress | None = None) -> None:
        """Load its weights, as the other model's plan has room for."""
        self._target = backends.open_target(self.file, self._plan(plan), progress)

    def _plan(self, plan: Plan) -> Plan:
        """What it is opened with, beside a model of this plan."""
        return replace(
            plan,
            backend=self.backend,
            context_length=self._context(plan),
            kv_type="f16",
            max_nodes=max(DRAFT_NODES, plan.sequences),
            prefill_chunk=DRAFT_CHUNK,
            gpu_layers=sum(part.units for part in plan.draft_devices),
            devices=plan.draft_devices,
            draft_devices=(),
            mapped=False,
            provider=CPU,
            footprint=Footprint(()),  # the plan's items are the other model's
        )

    def _context(self, plan: Plan) -> int:
        return draft_context(plan.context_length, self.file.spec.context_length, self.window)

    def slides(self, plan: Plan) -> bool:
        """Whether texts can be longer than what it keeps of them."""
        return self._context(plan) < plan.context_length

    def window_reason(self, plan: Plan) -> str:
        """A sentence on what it keeps of a long text, "" where that is all."""
        if not self.slides(plan):
            return ""
        most = self._context(plan) - DRAFT_SINKS
        return (
            f"draft window: of longer texts the draft model keeps the first {DRAFT_SINKS} tokens "
            f"and the last {most // 2:,} to {most:,}"
        )

    def sequence(self) -> KvSequence:
        """Where the next sequence's keys and values go."""
        assert self._target is not None
        self._num_sequences += 1
        return self._target.own if self._num_sequences == 1 else self._target.open_sequence()

    def cannot_overlap(self, plan: Plan) -> str:
        """Why it cannot draft while the other verifies, "" when it can."""
        if plan.sequences > 1:  # it computes for one at a time
            return "replies written together share the draft model"
        if self.backend == "native" or plan.draft_devices:
            return ""
        return f"the {self.backend} backend cannot share the threads"

    def check_overlap(self, plan: Plan) -> None:
        """Raise OptionError where overlap was asked for that cannot be."""
        if self.overlap == "on" and (why := self.cannot_overlap(plan)):
            raise OptionError(
                f"cannot overlap drafting and verification: {why}; use --overlap auto, or a GGUF "
                "draft model that the native backend runs"
            )

    def shared_cores(self, plan: Plan) -> tuple[int | None, int]:
        """Threads of the target, None for all, and of this model while both compute."""
        if plan.draft_devices:
            return None, 1
        return shared_cores(plan.threads, hardware().usable_threads())

    def overlap_reason(self, plan: Plan) -> str:
        """A sentence on drafting while the other verifies."""
        why = "as requested" if self.overlap == "off" else self.cannot_overlap(plan)
        if why:
            return f"overlap off: {why}; drafting comes before each pass"
        threads, draft_threads = self.shared_cores(plan)
        kept = "used if measured to be faster" if self.overlap == "auto" else "as requested"
        if plan.draft_devices:
            return (
                f"overlap {self.overlap}: drafts on its device while {plan.threads} threads "
                f"verify; {kept}"
            )
        place = " (efficiency cores)" if cores().unequal else ""
        return (
            f"overlap {self.overlap}: {draft_threads} thread{'' if draft_threads == 1 else 's'} "
            f"draft{'s' if draft_threads == 1 else ''}{place} while {threads or plan.threads} "
            f"verify; {kept}"
        )

    def close(self) -> None:
        """Give back its memory and file."""
        if self._target is not None:
            self._target.close()
        self.file.close()


def open_draft_model(options: LoadOptions, file: ModelFile) -> DraftModel | None:
    """The model that drafts, when one was asked for."""
    if options.draft_model is not None:
        return DraftModel.open(
            options.draft_model,
            file,
            backend=options.draft_backend,
            sequences=options.sequences,
            overlap=options.overlap,
            window=_window(options.draft_window),
        )
    if options.draft_window != "off":
        raise OptionError("--draft-window needs a draft model; add --draft-model FILE")
    if options.draft_backend != "auto":
        raise OptionError(
            f"--draft-backend {options.draft_backend} needs a draft model; add --draft-model FILE"
        )
    return None


def _window(asked: str | int) -> int | None:
    """How many tokens are kept, None for all."""
    if asked == "off":
        return None
    if not str(asked).isdecimal() or int(asked) < LEAST_WINDOW:
        raise OptionError(
            f"unknown draft window {asked!r}; choose off or {LEAST_WINDOW} tokens and more"
        )
    return int(asked)


def check_overlap(options: LoadOptions) -> None:
    """Raise OptionError for an overlap that means nothing, or that there cannot be."""
    overlap = options.overlap
    if overlap not in ("auto", "on", "off"):
        raise OptionError(f"unknown overlap {overlap!r}; choose auto, on or off")
    if overlap == "on" and options.draft_model is None:
        raise OptionError(
            "--overlap on lets a draft model work while the model verifies, and needs one; add "
            "--draft-model FILE"
        )
    if overlap == "on" and options.sequences > 1:
        raise OptionError(
            f"cannot overlap drafting and verification for {options.sequences} replies at once, "
            "which share the draft model; write one at a time, or use --overlap auto"
        )


def _backend(name: str, file: ModelFile) -> str:
    """What computes a draft model: the backend asked for, else native if it reads the file."""
    from edgespec.backends.native.limits import refusal

    if name != "onnx" and name != "llamacpp" and not refusal(file.spec, file.tensors.values()):
        return "native"  # which needs no tokenizer for that
    try:
        return backends.offer(name, file).names[0]
    except (UnsupportedModelError, BackendError) as error:
        why = str(error).replace("--backend", "--draft-backend")
        raise type(error)(f"{file.path} cannot be a draft model: {why}") from None


def shared_cores(threads: int, cores: int) -> tuple[int | None, int]:
    """Threads of the target and of a draft model while both compute, on so many cores; the target
    has planned `threads`, and None leaves it all of them.
    """
    if cores > threads:
        return None, min(cores - threads, threads)
    return (threads - 1) or None, 1


def _placed_bytes(file: ModelFile) -> int:
    """What of a model goes to devices: all but an embedding that is not the output head too."""
    spec, tensors = file.spec, file.tensors.values()
    return sum(
        each.size_bytes for each in tensors if spec.tied_embeddings or each.name != spec.embedding
    )


def _check(backend: str, file: ModelFile, sequences: int) -> None:
    if file.spec.recurrent:
        raise UnsupportedModelError(
            f"{file.path} cannot be a draft model: its recurrent state cannot be rolled back; "
            "choose a model that uses attention alone"
        )
    if backend == "onnx" and sequences > 1:
        raise OptionError(
            f"{file.path} cannot draft for {sequences} replies at once: the onnx backend runs one "
            "at a time; use sequences=1 (--max-batch 1), or a GGUF file"
        )


def translation(main: ModelFile, draft: ModelFile) -> NDArray[np.int32] | None:
    """The draft's ids for each of the main model's tokens, None where they are the same but for
    what one of them has at the end; OptionError when it lacks some of them.
    """
    ours, theirs = _tokens(main), _tokens(draft)
    common = min(len(ours), len(theirs))
    if common and ours[:common] == theirs[:common]:
        return None
    places = {text: place for place, text in enumerate(theirs)}
    missing = sum(text not in places for text in ours if text)  # padding has no text
    if missing or not any(ours):
        raise OptionError(
            f"{draft.path} cannot draft for {main.path}: its vocabulary of {len(theirs)} tokens "
            f"lacks {missing} of {len(ours)}; choose a smaller model of the same family"
        )
    import numpy as np

    return np.array([places.get(text, 0) for text in ours], np.int32)


def _tokens(file: ModelFile) -> list[bytes]:
    tokens: Any = file.metadata.get(_TOKENS)
    return tokens.all_raw() if hasattr(tokens, "all_raw") else []
