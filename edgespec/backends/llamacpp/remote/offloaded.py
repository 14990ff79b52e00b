"""A llama.cpp target with layers on GPUs or workers, which may be lost and come back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgespec.backends.base import Part
from edgespec.backends.llamacpp.cells import Cells, Text
from edgespec.backends.llamacpp.model import Context
from edgespec.backends.llamacpp.remote.link import Links
from edgespec.backends.llamacpp.remote.offload import Offload
from edgespec.backends.llamacpp.target import LlamaTarget, Snapshot
from edgespec.backends.passes import Pass, Progress, Rows
from edgespec.backends.sequence import KvSequence
from edgespec.errors import BackendError, BudgetError, ModelFileError
from edgespec.memory.plan.plan import Plan
from edgespec.models.file import ModelFile
from edgespec.system.size import format_size

_ROUNDING_BYTES = 16 * 1024
"""Of three log lines that tell MiB with two decimals."""


class OffloadedTarget(LlamaTarget):
    """The model on the devices of its plan, each inside its budget.

    When a worker is lost, the pass ends with a BackendError, and nothing but time is: the next one
    loads the model again where all workers answer, and computes the committed tokens anew.
    Raises BackendError for a worker that does not answer, BudgetError when a device was given more
    than was planned.
    """

    def __init__(self, file: ModelFile, plan: Plan, progress: Progress | None = None) -> None:
        self._plan = plan
        self._texts: dict[int, Text] = {}
        """Texts that may hold positions, by identity."""
        self._links = Links(plan.devices)
        self._offload = Offload.of(plan.devices, self._links.endpoints)
        try:
            self._links.reset()
            super().__init__(file, plan, progress)
            self._links.check()
        except ModelFileError as error:
            self._links.close()
            self._links.check()
            raise self._refused(error) from None
        except BaseException:
            self._links.close()
            self._links.check()
            raise

    @staticmethod
    def _refused(error: ModelFileError) -> ModelFileError | BudgetError:
        """A device without room is not the file's fault."""
        if "allocate" not in str(error):
            return error
        return BudgetError(
            f"a device has less memory than it said when the plan was made ({error}); plan again, "
            "or end what else uses it"
        )

    def allocated_bytes(self) -> dict[str, int]:
        """What llama.cpp says it has allocated in this process."""
        held = self.device_bytes().values()
        names = ("weights", "KV cache", "activations")
        return {
            name: size - sum(device[name] for device in held)
            for name, size in super().allocated_bytes().items()
            if name in names
        }

    def device_bytes(self) -> dict[str, dict[str, int]]:
        """What llama.cpp says it has allocated on each device of the plan, by name."""
        context = self._open_context
        names = reversed(self._model.devices.buffer_names())
        return {
            part.name: {
                "weights": self._model.buffers.get(name, 0),
                "KV cache": context.caches.get(name, 0),
                "activations": context.compute.get(name, 0),
            }
            for part, name in zip(self._plan.devices, names, strict=True)
        }

    def _check_memory(self, plan: Plan) -> None:
        self._links.check()
        super()._check_memory(plan)
        for part, size in zip(plan.devices, self._taken_bytes(), strict=True):
            if size > part.budget_bytes:
                raise BudgetError(
                    f"{part.kind} {part.name} has {format_size(size)} less than before the model "
                    f"was loaded, over its budget of {format_size(part.budget_bytes)} and the "
                    f"{format_size(part.total_bytes)} planned; try a smaller --context"
                )

    def _taken_bytes(self) -> list[int]:
        """What each device of the plan has less free than before, as the device itself tells, and
        at least what llama.cpp says it allocated there; that alone where others use the memory too.
        """
        devices = self._model.devices
        gone = zip(self._model.free_before, devices.free_bytes(), strict=True)
        taken = reversed([before - after for before, after in gone])
        held = (sum(sizes.values()) for sizes in self.device_bytes().values())
        told = (max(0, size - _ROUNDING_BYTES) for size in held)
        sizes = zip(self._plan.devices, taken, told, strict=True)
        return [size if part.shared else max(size, gone) for part, gone, size in sizes]

    def _fork(self, sequence: KvSequence, length: int) -> Text:
        text = super()._fork(sequence, length)
        self._texts[id(text)] = text
        return text

    def _forward(self, parts: Sequence[Part], rows: Rows) -> Pass:
        if self._links.failed:
            self._reopen()
        for sequence, _ in parts:
            self._texts[id(sequence.state)] = sequence.state
        found = super()._forward(parts, rows)
        self._links.check()  # reading the logits waits for the pass
        return found

    def _run(self, context: Context) -> None:
        try:
            super()._run(context)
        except BackendError:
            self._links.check()
            raise
        self._links.check()

    def _forget(self, text: Text, length: int) -> None:
        if not self._links.failed:
            super()._forget(text, length)
            return
        del text.ids[length:]  # all that is left of a text until the model is loaded again
        text.settle()

    def limit_threads(self, most: int | None) -> None:
        if self._context is not None:  # else a worker is lost, and the next context begins anew
            super().limit_threads(most)

    def _snapshot(self, sequence: KvSequence) -> Snapshot:
        made = super()._snapshot(sequence)
        self._links.check()
        return made

    def _reopen(self) -> None:
        """Load the model once more and compute what every text had committed."""
        self._close_model()  # frees what was asked for of workers, also of those still there
        self._links.reset()
        try:
            self._model = self._open_model()
            self._context = Context(self._model, self._settings)
            self._check_memory(self._plan)
        except (ModelFileError, BackendError, BudgetError) as error:
            self._links.check()
            self._links.fail(f"the model could not be loaded again: {error}")
            raise
        self._rows_at = 0
        plan = self._plan
        self._cells = Cells(self._api, self._context.memory, plan.sequences, plan.max_nodes)
        self._texts = {key: text for key, text in self._texts.items() if text.main >= 0}
        for text in self._texts.values():
            text.main = -1
            text.settle()
        for text in self._texts.values():
            self._compute_again(text)

    def _compute_again(self, text: Text) -> None:
        if not text.ids:
            return
        self._cells.begin(text)
        ids = np.array(text.ids, np.int32)
        for start in range(0, len(ids), self._chunk):
            self._batch.fill_chain(ids[start : start + self._chunk], start, text.main)
            self._run(self._open_context)

    def _close_model(self) -> None:
        if self._context is not None:
            self._context.close()
            self._context = None
        self._model.close()

    def _close(self) -> None:
        super()._close()
        self._links.close()
