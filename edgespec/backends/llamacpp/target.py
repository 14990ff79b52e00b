"""The llama.cpp backend: any GGUF model that library runs, under our decode loop."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Part, Target, check_not_forked
from edgespec.backends.llamacpp.cells import Cells, Text
from edgespec.backends.llamacpp.library import library
from edgespec.backends.llamacpp.model import Context, ContextSettings, Model
from edgespec.backends.llamacpp.pass_batch import Batch, leaves
from edgespec.backends.llamacpp.probe import probed
from edgespec.backends.llamacpp.remote.offload import Offload
from edgespec.backends.passes import Capabilities, Logits, Pass, Progress, Rows, TokenTree
from edgespec.backends.sequence import KvSequence
from edgespec.errors import BackendError, BudgetError, ModelFileError, UnsupportedModelError
from edgespec.memory.plan.plan import Plan
from edgespec.models.file import ModelFile
from edgespec.system.lost_pages import guard, num_lost_pages
from edgespec.system.records import dataclass
from edgespec.system.size import format_size

_ALONE = [0]
"""The leaves of one node."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The committed tokens and llama.cpp's own copy of their keys, values and states."""

    ids: tuple[int, ...]
    state: NDArray[np.uint8]


class LlamaTarget(Target):
    """One open model with a KV cache of llama.cpp's.

    Branches of a tree are sequences that share the cells of the positions before them. A row's
    logits depend on the size of its pass in their last bits. A model with a recurrent state cannot
    forget tokens: it takes one node a pass, and what is forgotten costs computing the rest again.
    `mapped` uses the weights where the file lies in memory, not repacked; with `layers`, of a file
    split at that layer, the target is its first layers alone, on pages shared with every mapped
    target of the file. Raises BackendError, BudgetError when more was allocated than planned.
    """

    capabilities = Capabilities(name="llamacpp", bit_exact_rows=False, trees=True, sequences=True)
    _offload: Offload | None = None
    """What other devices hold, where a subclass has some."""

    def __init__(
        self,
        file: ModelFile,
        plan: Plan,
        progress: Progress | None = None,
        *,
        mapped: bool = False,
        layers: int | None = None,
    ) -> None:
        spec = file.spec if layers is None else file.spec.first_layers(layers)
        super().__init__(spec, plan.context_length, plan.max_nodes, plan.sequences)
        self._chunk = max(plan.prefill_chunk, plan.max_nodes)
        settings = ContextSettings(
            context=plan.context_length,
            rows=self._chunk,
            nodes=plan.max_nodes,
            texts=plan.sequences,
            threads=plan.threads,
            kv_type=plan.kv_type,
            gpu_layers=plan.gpu_layers,
        )
        verdict = probed()
        verdict.require()
        self._settings = settings
        self._open_model = partial(
            Model,
            library(),
            file.path,
            extra_buffers=verdict.extra_buffers,
            mapped=mapped or layers is not None,
            layers=layers,
            offload=self._offload,
        )
        self._process = os.getpid()
        guard()  # of mapped files
        self._lost_pages = num_lost_pages()
        self._model = self._open_model(progress=progress)
        self._context: Context | None = None
        try:
            self._check_model(plan)
            self._context = Context(self._model, settings)
            self._check_memory(plan)
            _find_tokenizer(file, self._model)
        except BaseException:
            self._close()
            raise
        self._api = self._model.library.api
        self._batch = Batch(self._api, rows=self._chunk, nodes=plan.max_nodes)
        self._cells = Cells(self._api, self._context.memory, plan.sequences, plan.max_nodes)
        several = not self._model.has_state
        self.capabilities = replace(self.capabilities, trees=several, sequences=several)
        self._threads = plan.threads
        self._rows: Logits = np.zeros((0, self.spec.vocab_size), np.float32)
        self._rows_at = 0
        """The library's logits, and the address where it placed them last."""

    @property
    def prefill_chunk(self) -> int:
        return self._chunk

    def limit_threads(self, most: int | None) -> None:
        threads = self._threads if most is None else max(1, min(most, self._threads))
        self._api.llama_set_n_threads(self._open_context.handle, threads, threads)

    def allocated_bytes(self) -> dict[str, int]:
        """What llama.cpp says it has allocated, by the names of the plan's footprint."""
        context = self._open_context
        return {
            "weights": sum(self._model.buffers.values()),
            "KV cache": context.cache_bytes,
            "activations": context.compute_bytes,
        }

    @property
    def _open_context(self) -> Context:
        self._check_open()
        assert self._context is not None
        return self._context

    def _check_model(self, plan: Plan) -> None:
        if self._model.vocab_size != self.spec.vocab_size:
            raise ModelFileError(
                f"llama.cpp reads {self._model.vocab_size} tokens from a file that names "
                f"{self.spec.vocab_size}; convert the model again"
            )
        if self._model.has_state and plan.sequences > 1:
            raise BackendError(
                f"{self.spec.name} has a recurrent state, and writes one reply at a time; load "
                "it with sequences=1"
            )
        if self._model.has_state and plan.max_nodes > 1:
            raise BackendError(
                f"{self.spec.name} has a recurrent state, which cannot take back drafts; load it "
                "without speculation (--no-speculation, or max_nodes=1)"
            )

    def _check_memory(self, plan: Plan) -> None:
        planned, held = plan.footprint.exact, self.allocated_bytes()
        over = sum(max(0, size - planned.get(name, size)) for name, size in held.items())
        if over > plan.budget_bytes - plan.planned_bytes and planned:
            found = ", ".join(f"{name} {format_size(size)}" for name, size in held.items())
            raise BudgetError(
                f"llama.cpp has allocated {format_size(over)} more than was planned ({found}), "
                f"which the budget of {format_size(plan.budget_bytes)} has no room for; try a "
                "larger --memory or a smaller --context"
            )

    def _open_sequence(self) -> Text:
        return Text()

    def _fork(self, sequence: KvSequence, length: int) -> Text:
        self._check_open()
        return self._cells.fork(sequence.state, length)

    def _forward(self, parts: Sequence[Part], rows: Rows) -> Pass:
        context, num_nodes = self._open_context, 0
        if len(parts) == 1 and len(parts[0][1]) == 1 and rows != "none":
            return self._forward_one(context, *parts[0])
        for sequence, tree in parts:
            text: Text = sequence.state
            if len(text.nodes):  # nothing of the last pass was committed
                self._forget(text, sequence.length)
            self._cells.begin(text)
            ends = leaves(tree)
            branches = self._cells.branches(text, len(ends) - 1, sequence.length)
            text.expect(tree, ends, [text.main, *branches])
            self._batch.fill_tree(tree, sequence.length, ends, text.sequences, num_nodes)
            num_nodes += len(tree)
        count = {"all": num_nodes, "last": 1, "none": 0}[rows]
        self._batch.want(slice(num_nodes - count, num_nodes))
        self._run(context)
        if not count:
            return Pass(np.zeros((0, self.spec.vocab_size), np.float32))
        return Pass(self._logits(context, count))

    def _forward_one(self, context: Context, sequence: KvSequence, tree: TokenTree) -> Pass:
        """The same for one node: plain decoding, every step."""
        text: Text = sequence.state
        if len(text.nodes):
            self._forget(text, sequence.length)
        self._cells.begin(text)
        text.expect(tree, _ALONE, [text.main])
        self._batch.fill_one(tree.tokens[0], sequence.length, text.main)
        self._run(context)
        return Pass(self._logits(context, 1))

    def _logits(self, context: Context, count: int) -> Logits:
        """The rows that were asked for, where the library has them."""
        place = self._api.llama_get_logits(context.handle)
        address = ctypes.addressof(place.contents)
        if self._rows_at != address or len(self._rows) < count:
            self._rows = np.ctypeslib.as_array(place, (count, self.spec.vocab_size))
            self._rows_at = address
        return self._rows[:count]

    def _run(self, context: Context) -> None:
        check_not_forked(self._process, "llama.cpp")
        self._model.library.forget()
        code = self._batch.run(context.handle)
        if code:
            why = self._model.library.complaint()
            raise BackendError(f"llama.cpp failed in a pass (code {code}): {why}")
        if num_lost_pages() != self._lost_pages:
            raise BackendError(
                f"the file of {self.spec.name} was cut while it was in use; put it back and load "
                "the model again"
            )

    def _commit(self, sequence: KvSequence, path: Sequence[int]) -> None:
        text: Text = sequence.state
        if not len(path):
            return
        tokens = text.nodes.tolist()
        if len(path) == len(tokens):  # plain decoding, every step
            text.ids += tokens
        else:
            text.ids += [tokens[node] for node in path]
            self._cells.keep(text, path, sequence.length)
        text.settle()

    def _truncate(self, sequence: KvSequence, length: int) -> None:
        text: Text = sequence.state
        if length < len(text.ids) or len(text.nodes) or not length:
            self._forget(text, length)

    def _forget(self, text: Text, length: int) -> None:
        """Hold exactly the first `length` committed positions."""
        if self._closed:
            return
        del text.ids[length:]
        if not self._cells.forget(text, length):
            self._replay(text)

    def _replay(self, text: Text) -> None:
        """Compute the committed tokens again, from an empty state."""
        context, ids = self._open_context, np.array(text.ids, np.int32)
        self._api.llama_memory_clear(context.memory, False)
        for start in range(0, len(ids), self._chunk):
            self._batch.fill_chain(ids[start : start + self._chunk], start, text.main)
            self._run(context)

    def _snapshot(self, sequence: KvSequence) -> Snapshot:
        context, text = self._open_context, sequence.state
        if len(text.nodes):
            self._forget(text, sequence.length)
        if not text.ids:
            return Snapshot((), np.zeros(0, np.uint8))
        size = self._api.llama_state_seq_get_size(context.handle, text.main)
        state = np.zeros(size, np.uint8)
        place = state.ctypes.data_as(_bytes_pointer())
        self._api.llama_state_seq_get_data(context.handle, place, size, text.main)
        return Snapshot(tuple(text.ids), state)

    def _restore(self, sequence: KvSequence, snapshot: Any) -> int:
        if not isinstance(snapshot, Snapshot):
            raise BackendError(f"a llamacpp target cannot restore a {type(snapshot).__name__}")
        context, text = self._open_context, sequence.state
        self._forget(text, 0)
        sequence.filled(0)
        if not snapshot.ids:
            return 0
        self._cells.begin(text)
        place = snapshot.state.ctypes.data_as(_bytes_pointer())
        if not self._api.llama_state_seq_set_data(
            context.handle, place, len(snapshot.state), text.main
        ):
            raise BackendError("llama.cpp did not take its own snapshot back; load the model again")
        text.ids = list(snapshot.ids)
        return len(text.ids)

    def _close(self) -> None:
        if self._context is not None:
            self._context.close()
        self._model.close()


def _bytes_pointer() -> Any:
    return ctypes.POINTER(ctypes.c_uint8)


def _find_tokenizer(file: ModelFile, model: Model) -> None:
    """Our own tokenizer where it knows the file's kind, else llama.cpp's."""
    try:
        _ = file.tokenizer
    except UnsupportedModelError:
        from edgespec.backends.llamacpp.library_tokenizer import LlamaTokenizer

        file.adopt_tokenizer(LlamaTokenizer(file, model))
