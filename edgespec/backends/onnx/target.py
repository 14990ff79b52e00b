"""The onnx backend: decoders of two layouts, under our decode loop."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Part, Target, check_not_forked
from edgespec.backends.onnx.kv_buffers import GrowingCache, KvCache, SharedCache
from edgespec.backends.onnx.layout import layout_of
from edgespec.backends.onnx.runtime_session import PassRunner, is_chain, open_session
from edgespec.backends.passes import Capabilities, Pass, Progress, Rows
from edgespec.backends.sequence import KvSequence
from edgespec.errors import BackendError, UnsupportedModelError
from edgespec.memory.plan.plan import Plan
from edgespec.models.file import ModelFile
from edgespec.models.onnx.folder import OnnxFile
from edgespec.system.records import dataclass


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The committed keys and values, [2 layers, heads, length, width]."""

    rows: NDArray[Any]


class OnnxTarget(Target):
    """One open graph with its keys and values.

    A row's logits depend on the size of its pass in their last bits. Trees are scored where every
    attention is a GroupQueryAttention that can be given a mask, chains elsewhere. Raises
    ModelFileError, UnsupportedModelError.
    """

    capabilities = Capabilities(name="onnx", bit_exact_rows=False, trees=True, sequences=False)

    def __init__(self, file: ModelFile, plan: Plan, progress: Progress | None = None) -> None:
        if not isinstance(file, OnnxFile):
            raise UnsupportedModelError(not_onnx(file))
        self._layout = layout_of(file)
        self.capabilities = replace(self.capabilities, trees=self._layout.trees)
        super().__init__(file.spec, plan.context_length, plan.max_nodes, plan.sequences)
        self._chunk = max(plan.prefill_chunk, plan.max_nodes)
        self._process = os.getpid()
        self._cache: KvCache | None = (SharedCache if self._layout.shared else GrowingCache)(
            file.spec, len(self._layout.pasts), plan.context_length, self._layout.kv_type
        )
        self._runner: PassRunner | None = PassRunner(
            open_session(file, self._layout, plan.threads, plan.provider),
            self._layout,
            file.spec.vocab_size,
            rows=self._chunk,
            nodes=plan.max_nodes,
            context=plan.context_length,
        )
        self._rows = 0
        """Of the last pass, not committed yet."""
        if progress is not None:
            progress(1, 1)

    @property
    def prefill_chunk(self) -> int:
        return self._chunk

    def allocated_bytes(self) -> dict[str, int]:
        """What is allocated outside of ONNX Runtime, by the names of the plan's footprint."""
        cache, runner = self._open
        return {"KV cache": cache.size_bytes, "masks": runner.size_bytes}

    @property
    def _open(self) -> tuple[KvCache, PassRunner]:
        self._check_open()
        assert self._cache is not None and self._runner is not None
        return self._cache, self._runner

    def _forward(self, parts: Sequence[Part], rows: Rows) -> Pass:
        ((sequence, tree),) = parts
        check_not_forked(self._process, "ONNX Runtime")
        cache, runner = self._open
        branches = not is_chain(tree.parents)
        if branches and not self.capabilities.trees:
            raise BackendError(
                f"{self.spec.name} can only score chains, because its attention takes no mask; "
                "export it with `edgespec export MODEL.gguf --format onnx OUT`"
            )
        self._rows, first = 0, 0
        if branches and not sequence.length and self._layout.rotates:
            # The very first pass counts positions itself, so the root goes alone.
            alone: Rows = "all" if rows == "all" else "none"
            runner.run(tree.tokens[:1], tree.parents[:1], 0, cache, wanted=alone)
            first = 1
        logits = runner.run(
            tree.tokens[first:],
            tree.parents[first:] - np.int16(first),
            sequence.length + first,
            cache,
            wanted=rows,
            first=first,
        )
        self._rows = len(tree)
        return Pass(logits.astype(np.float32, copy=False))

    def _commit(self, sequence: KvSequence, path: Sequence[int]) -> None:
        if len(path):
            self._open[0].keep(sequence.length, path, self._rows)
        self._rows = 0

    def _truncate(self, sequence: KvSequence, length: int) -> None:
        self._rows = 0
        if self._cache is not None:
            self._cache.truncate(sequence.length, length)

    def _snapshot(self, sequence: KvSequence) -> Snapshot:
        return Snapshot(self._open[0].copy(sequence.length))

    def _restore(self, sequence: KvSequence, snapshot: Any) -> int:
        if not isinstance(snapshot, Snapshot):
            raise BackendError(f"an onnx target cannot restore a {type(snapshot).__name__}")
        self._open[0].restore(snapshot.rows)
        self._rows = 0
        length: int = snapshot.rows.shape[2]
        return length

    def _close(self) -> None:
        self._cache = self._runner = None


def not_onnx(file: ModelFile) -> str:
    """What to do with a model in another format."""
    return (
        f"the onnx backend was asked for and {file.path} is no ONNX model; make one: "
        f"edgespec export {file.path} --format onnx {file.path.stem}-onnx"
    )
