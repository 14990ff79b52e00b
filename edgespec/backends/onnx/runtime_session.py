"""One graph in ONNX Runtime, its inputs and outputs bound to memory of ours."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.onnx.kv_buffers import KvCache
from edgespec.backends.onnx.layout import Layout
from edgespec.backends.onnx.patch import BIAS, PICKED, POSITIONS
from edgespec.backends.onnx.providers import CPU, session_providers
from edgespec.backends.onnx.runtime_library import library, settings, words
from edgespec.backends.passes import Rows
from edgespec.errors import BackendError, ModelFileError
from edgespec.models.onnx.folder import OnnxFile
from edgespec.system.library_pages import release_pages
from edgespec.system.resident_memory import give_back_blocks
from edgespec.system.size import KIB

_CPU = "cpu"
_KEPT_BYTES = 256 * KIB
"""Freed blocks below this stay with the process: they are soon needed again."""


def open_session(
    file: OnnxFile, layout: Layout, threads: int, provider: str = CPU, profile: str = ""
) -> Any:
    """Load a graph and its weights; raises ModelFileError in the library's own words.

    With `profile`, its passes are told in a file whose name begins so.
    """
    module = library()
    options = settings(module, threads, str(file.path.resolve().parent))
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    model: Any = str(file.path)
    if layout.patch is not None:
        model = layout.patch.apply(file.path.read_bytes())
    give_back_blocks(_KEPT_BYTES)
    try:
        session = module.InferenceSession(  # without a fallback, whose failures it prints
            model, options, providers=session_providers(provider, threads), enable_fallback=0
        )
    except Exception as error:  # the library's own hierarchy is not public
        raise ModelFileError(
            f"ONNX Runtime cannot open {file.path}: {words(error)}; export the model anew, or "
            "update onnxruntime"
        ) from None
    session._model_bytes = None  # it would keep them for another try
    release_pages({file.path.parent / tensor.location for tensor in file.graph.external})
    return session


class PassRunner:
    """Runs passes of a session; every array it hands over is made once."""

    def __init__(
        self, session: Any, layout: Layout, vocab_size: int, *, rows: int, nodes: int, context: int
    ) -> None:
        self._session, self._layout = session, layout
        self._tokens = np.zeros(rows, np.int64)
        self._positions = np.zeros(rows, np.int64)
        self._mask = np.ones(context, np.int64)
        self._kept = np.zeros(1, np.int64)
        self._picked = np.zeros(nodes, np.int64)
        self._branch = np.ones(1, np.bool_)
        self._no_bias: NDArray[Any] = np.zeros(
            rows * context if layout.trees else 0, layout.kv_type
        )
        self._bias: NDArray[Any] = np.zeros(nodes * context if layout.trees else 0, layout.kv_type)
        self._logits: NDArray[Any] = np.zeros((nodes, vocab_size), layout.logits_type)
        self._options = library().RunOptions()
        self._options.log_severity_level = 4
        self._bindings = {wanted: session.io_binding() for wanted in (False, True)}
        self._bound: set[bool] = set()

    @property
    def size_bytes(self) -> int:
        return sum(array.nbytes for array in (self._mask, self._no_bias, self._bias, self._logits))

    def run(
        self,
        tokens: NDArray[np.int32],
        parents: NDArray[np.int16],
        length: int,
        cache: KvCache,
        *,
        wanted: Rows,
        first: int = 0,
    ) -> NDArray[Any]:
        """Compute nodes behind `length` positions, each below its parent, or below them all with
        -1; returns logits [first + n, vocab] ("all"), those of the last n new, [1, vocab] ("last")
        or [0, vocab] ("none"). Raises BackendError.
        """
        rows, layout = len(tokens), self._layout
        total = length + rows
        logits = wanted != "none"
        bound = self._bindings[logits]
        count = 1 if layout.picks and wanted != "all" else rows
        start = first if wanted == "all" else 0
        self._tokens[:rows] = tokens
        bias = self._place(parents, length)
        inputs: dict[str, tuple[NDArray[Any], tuple[int, ...]]] = {
            "input_ids": (self._tokens, (1, rows)),
            "attention_mask": (self._mask, (1, total)),
            POSITIONS: (self._positions, (1, rows)),
            "use_cache_branch": (self._branch, (1,)),
            "num_logits_to_keep": (self._kept, ()),
            "logits_to_keep": (self._kept, ()),
        }
        self._kept[0] = rows if logits else 1
        if layout.picks:
            self._picked[:count] = np.arange(rows - count, rows)
            _bind(bound.bind_input, PICKED, self._picked, (count,))
        taken = layout.takes | ({POSITIONS} if layout.trees and layout.rotates else set())
        for name in taken:
            _bind(bound.bind_input, name, *inputs[name])
        if layout.trees:
            _bind(bound.bind_input, BIAS, bias, (1, 1, rows, total))
        if logits:
            shape = (1, count, self._logits.shape[1])
            _bind(bound.bind_output, "logits", self._logits[start:], shape)
        self._bind_cache(bound, cache, length, total, logits)
        try:
            self._session.run_with_iobinding(bound, self._options)
        except Exception as error:  # the library's own hierarchy is not public
            raise BackendError(f"ONNX Runtime failed in a pass: {words(error)}") from None
        if wanted == "last":
            return self._logits[count - 1 : count]
        return self._logits[: first + rows if logits else 0]

    def _bind_cache(self, bound: Any, cache: KvCache, length: int, total: int, which: bool) -> None:
        """A shared buffer stays where it is, so it is bound once."""
        layout, kind = self._layout, self._layout.kv_type
        if layout.shared and which in self._bound:
            return
        for name, (shape, place) in zip(layout.pasts, cache.pasts(length), strict=True):
            bound.bind_input(name, _CPU, 0, kind, shape, place)
        for name, (shape, place) in zip(layout.presents, cache.presents(total), strict=True):
            bound.bind_output(name, _CPU, 0, kind, shape, place)
        self._bound.add(which)

    def _place(self, parents: NDArray[np.int16], length: int) -> NDArray[Any]:
        """Positions of all nodes, and what keeps them from seeing any but their ancestors."""
        rows, total = len(parents), length + len(parents)
        if is_chain(parents):
            self._positions[:rows] = np.arange(length, total)
            return self._no_bias
        bias = self._bias[: rows * total].reshape(rows, total)
        bias[:, :length], bias[:, length:] = 0, -np.inf
        for node, parent in enumerate(parents.tolist()):
            self._positions[node] = length if parent < 0 else self._positions[parent] + 1
            if parent >= 0:
                bias[node, length : length + node] = bias[parent, length : length + node]
            bias[node, length + node] = 0
        return self._bias


def is_chain(parents: NDArray[np.int16]) -> bool:
    """Whether every node is below the one before it."""
    return bool(np.all(parents == np.arange(-1, len(parents) - 1)))


def _bind(bind: Any, name: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    bind(name, _CPU, 0, array.dtype.type, shape, array.ctypes.data)
