"""A head that drafts for a model: the one its file brings (MTP), or one in another (EAGLE-3, Gemma
4's assistant).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from edgespec.backends import registry as backends
from edgespec.backends.native.code_parts import Compiled
from edgespec.backends.native.limits import refusal
from edgespec.errors import BudgetError, OptionError
from edgespec.loading.load_options import LoadOptions
from edgespec.loading.model_drafters import is_large
from edgespec.memory.plan.head_sizes import DraftHeadSizes, head_settings
from edgespec.memory.plan.plan import Footprint, Plan
from edgespec.memory.plan.settings import Settings
from edgespec.memory.plan.sizing import DRAFT_MODEL, MTP
from edgespec.models.draft_heads import HeadFile, is_head, open_head, own_head
from edgespec.models.file import ModelFile
from edgespec.models.registry import resolve
from edgespec.system.records import dataclass

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edgespec.backends.base import Target
    from edgespec.backends.passes import Progress
    from edgespec.drafting.base import Drafter

HEAD_BACKENDS = ("native", "reference")
EAGLE3, ASSISTANT = "eagle3", "assistant"


@dataclass(slots=True)
class DraftHead:
    """An opened head; one target with a sequence for each of the model's."""

    file: ModelFile
    model: ModelFile
    drafter: str
    """Its name in `--drafters`."""
    name: str
    """What statistics call it."""
    ids: NDArray[np.int32] | None = None
    """The model's ids of its tokens; None where they are the same."""
    is_optional: bool = False
    """It came with the model, and nobody asked for it."""
    _target: Target | None = None
    _num_sequences: int = 0

    @classmethod
    def own(cls, file: ModelFile, *, is_optional: bool) -> Self | None:
        """The head that a model's file brings; OptionError where it was asked for and there is
        none that runs here, None where it is optional.
        """
        head = own_head(file)
        if head is None:
            why = file.spec.note or "its file brings no block that predicts further tokens"
        else:
            why = refusal(head.spec, head.tensors.values())
        if head is not None and not why:
            return cls(head, file, MTP, MTP, is_optional=is_optional)
        if is_optional:
            return None
        raise OptionError(f"cannot use the drafter {MTP} for {file.path}: {why}; drop the drafter")

    @classmethod
    def beside(cls, options: LoadOptions, file: ModelFile) -> Self:
        """The head in a file of its own; raises what `open_head` does, and OptionError for options
        that are a model's.
        """
        assert options.draft_model is not None
        path = resolve(options.draft_model)
        if options.draft_backend not in ("auto", "native"):
            raise OptionError(
                f"{path} is a draft head, which runs with its model on the native backend; leave "
                "--draft-backend out"
            )
        if options.draft_window != "off":
            raise OptionError(
                f"{path} is a draft head, which keeps all that its model does; leave "
                "--draft-window out"
            )
        if options.overlap == "on":
            raise OptionError(
                f"{path} is a draft head, which needs what each pass leaves and cannot draft "
                "meanwhile; use --overlap auto"
            )
        head = open_head(path, file.spec)
        try:
            if why := refusal(head.spec, head.tensors.values()):
                raise OptionError(f"{path} cannot draft: {why}")
            ids = head.token_ids(file.spec.vocab_size)
        except BaseException:
            head.close()
            raise
        name = ASSISTANT if head.spec.borrows_keys else EAGLE3
        return cls(head, file, DRAFT_MODEL, name, ids)

    def check(self, backend: str) -> None:
        """Raise OptionError for a backend that leaves nothing for heads."""
        if backend not in HEAD_BACKENDS:
            raise OptionError(
                f"cannot draft with the head {self.file.path.name}: the {backend} backend gives no "
                "hidden states; use --backend native, or leave it out"
            )

    @property
    def is_own(self) -> bool:
        """Whether the model's file brings it."""
        return self.drafter == MTP

    @property
    def sizes(self) -> DraftHeadSizes:
        """What its memory is counted by."""
        return DraftHeadSizes(self.file.spec, tuple(self.file.tensors.values()), self.model.spec)

    @property
    def kinds(self) -> frozenset[Compiled]:
        """What decides which code is compiled for it."""
        return backends.compiled_for("native", self.file)

    def load(self, plan: Plan, target: Target, progress: Progress | None = None) -> None:
        """Load its weights beside the model's, whose passes leave what it reads from here on."""
        own = head_settings(
            Settings(
                plan.context_length,
                plan.prefill_chunk,
                plan.max_nodes,
                0,
                kv_type=plan.kv_type,
                threads=plan.threads,
                sequences=plan.sequences,
            ),
            self.file.spec,
        )
        self._target = target.open_head(
            self.file,
            replace(
                plan,
                kv_type=own.kv_type,
                max_nodes=own.max_nodes,
                prefill_chunk=own.prefill_chunk,
                footprint=Footprint(()),
            ),
            progress,
        )

    def make(self) -> Drafter:
        """A drafter, for the next of the model's sequences."""
        from edgespec.drafting.model.head_drafter import HeadDrafter

        assert self._target is not None
        self._num_sequences += 1
        target = self._target
        sequence = target.own if self._num_sequences == 1 else target.open_sequence()
        vocab_size = self.file.spec.vocab_size
        return HeadDrafter(self.name, sequence, self.sizes.width, vocab_size, self.ids)

    def close(self) -> None:
        """Give back its memory, and its file if that is not the model's."""
        if self._target is not None:
            self._target.close()
        if isinstance(self.file, HeadFile):
            self.file.close()


def open_draft_head(
    options: LoadOptions, names: tuple[str, ...], file: ModelFile
) -> DraftHead | None:
    """The head that is to draft, asked for or brought by the model; None where there is none."""
    beside = options.draft_model is not None and is_head(resolve(options.draft_model))
    if beside and MTP in names:
        raise OptionError(
            f"one head drafts at a time: leave out --draft-model, or the drafter {MTP}"
        )
    if beside:
        return DraftHead.beside(options, file)
    if MTP in names:
        return DraftHead.own(file, is_optional=False)
    if options.drafters == "auto" and is_large(file):
        return DraftHead.own(file, is_optional=True)
    return None


def with_head(
    drafters: tuple[str, ...],
    head: DraftHead | None,
    backend: str,
    planned: Callable[[tuple[str, ...], DraftHead | None], Plan],
) -> Plan:
    """The plan with a head; of one that nobody asked for where it fits and nothing else has to make
    room, else the plan without, and why.
    """
    if head is None:
        return planned(drafters, None)
    if not head.is_optional:
        return planned(drafters, head)
    plain = planned(drafters, None)
    if backend not in HEAD_BACKENDS or not plain.drafter_bytes:
        return plain
    try:
        made = planned((*drafters, head.drafter), head)
    except BudgetError:
        made = plain
    if _lowered(plain) != _lowered(made) or made is plain:
        return plain.with_notes(
            f"drafter {head.drafter} off: the file's own head does not fit beside the context; "
            "more --memory lets it draft"
        )
    return made.with_notes(f"drafter {head.drafter}: the file brings a head that drafts")


def _lowered(plan: Plan) -> tuple[int, int, int, str, int]:
    """What a plan gives up for memory."""
    return (
        plan.context_length,
        plan.max_nodes,
        plan.prefill_chunk,
        plan.kv_type,
        plan.threads,
    )
