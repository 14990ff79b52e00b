"""How a graph takes the text so far and gives it back, told from its inputs and operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgespec.backends.onnx.patch import ATTENTION, POSITIONS, Head, Patch
from edgespec.errors import UnsupportedModelError
from edgespec.models.onnx.folder import PAST, OnnxFile
from edgespec.models.onnx.graph_file import BFLOAT16, FLOAT, FLOAT16, Graph
from edgespec.system.records import dataclass

_FLOATS: dict[int, type[Any]] = {FLOAT: np.float32, FLOAT16: np.float16}
_TAKEN = {"input_ids", "attention_mask", POSITIONS, "use_cache_branch"}
KEPT_ROWS = frozenset({"num_logits_to_keep", "logits_to_keep"})
"""Inputs that say for how many rows logits are computed."""
_ROTATES, _ATTENTION = "do_rotary", ATTENTION.decode()
_MOST_PATCHED = 256 << 20
"""Bytes of a graph that is copied for trees; larger ones hold their weights within."""
_MOST_PICKED = 16 << 20
"""Bytes of a graph that is copied for its head alone."""
_HEADS = ("MatMul", "FusedMatMul", "MatMulNBits")


@dataclass(frozen=True, slots=True)
class Layout:
    """Names and kinds of one graph's inputs and outputs.

    `shared`: past and present keys are one buffer, which every attention writes its new rows into;
    else a pass returns all of them, one longer for each token.
    """

    pasts: tuple[str, ...]
    presents: tuple[str, ...]
    takes: frozenset[str]
    """Inputs besides the past."""
    shared: bool
    rotates: bool
    """Attention rotates queries and keys itself."""
    kv_type: type[Any]
    logits_type: type[Any]
    trees: bool
    """It can be given masks and positions for trees."""
    head: Head | None
    """What can be given only the rows whose logits are wanted."""

    @property
    def picks(self) -> bool:
        """Only rows asked for get logits."""
        return self.head is not None

    @property
    def patch(self) -> Patch | None:
        """What is done to the graph before it is opened."""
        if not self.trees and self.head is None:
            return None
        return Patch(
            trees=self.trees,
            half=self.kv_type is np.float16,
            rotates=self.rotates,
            has_positions=POSITIONS in self.takes,
            head=self.head,
        )


def layout_of(file: OnnxFile) -> Layout:
    """Raises UnsupportedModelError for a graph with inputs or types nobody knows here."""
    graph = file.graph
    pasts = tuple(sorted(filter(PAST.fullmatch, graph.inputs), key=_place))
    presents = tuple(name.replace("past_key_values", "present") for name in pasts)
    absent = [name for name in presents if name not in graph.outputs]
    if absent:
        raise _refused(file, f"it returns no {absent[0]}")
    takes = frozenset(graph.inputs) - set(pasts) - set(graph.constants)
    unknown = sorted(takes - _TAKEN - KEPT_ROWS)
    if unknown:
        raise _refused(file, f"it asks for {unknown[0]}, which this backend does not know")
    kinds = {graph.inputs[name].kind for name in pasts} | {
        graph.outputs[name].kind for name in presents
    }
    logits = graph.outputs["logits"].kind
    if len(kinds) > 1 or not kinds <= _FLOATS.keys() or logits not in _FLOATS:
        odd = "bfloat16" if BFLOAT16 in {*kinds, logits} else "no 16 or 32-bit floats"
        raise _refused(file, f"its keys, values or logits are {odd}")
    attention = [node for node in graph.nodes if node.operator == _ATTENTION]
    shared = 2 * len(attention) == len(pasts)
    rotates = any(node.settings.get(_ROTATES) for node in attention)
    trees = shared and _can_be_patched(file, graph, rotates)
    return Layout(
        pasts,
        presents,
        takes,
        shared,
        rotates,
        _FLOATS[kinds.pop()],
        _FLOATS[logits],
        trees=trees,
        head=_head(file, graph, _MOST_PATCHED if trees else _MOST_PICKED),
    )


def _head(file: OnnxFile, graph: Graph, most_bytes: int) -> Head | None:
    """The product behind the logits, if it is one over every row and nothing chooses them yet."""
    logits = graph.outputs["logits"]
    if len(logits.shape) != 3 or KEPT_ROWS & graph.inputs.keys():
        return None
    if file.path.stat().st_size > most_bytes:
        return None
    makers = {name: node for node in graph.nodes for name in node.outputs}
    made = "logits"
    node = makers.get(made)
    while node is not None and node.operator == "Cast":
        made = node.inputs[0]
        node = makers.get(made)
    if node is None or node.operator not in _HEADS or node.inputs[0] not in makers:
        return None
    matrix = makers.get(node.inputs[1])
    name = matrix.inputs[0] if matrix is not None and matrix.operator == "Cast" else node.inputs[1]
    known = graph.constants.get(name)
    if known is None or (node.operator != "MatMulNBits" and len(known.shape) != 2):
        return None
    return Head(node.inputs[0], made, file.spec.vocab_size, logits.kind == FLOAT16)


def _can_be_patched(file: OnnxFile, graph: Graph, rotates: bool) -> bool:
    """Positions must be each row's own, and masks not taken already."""
    free = all(not any(node.inputs[9:11]) for node in graph.nodes if node.operator == _ATTENTION)
    windows = any(node.settings.get("local_window_size", -1) > 0 for node in graph.nodes)
    small = file.path.stat().st_size <= _MOST_PATCHED
    return free and small and not windows and (rotates or POSITIONS in graph.inputs)


def _place(name: str) -> tuple[int, str]:
    found = PAST.fullmatch(name)
    assert found is not None
    return int(found[1]), found[2]


def _refused(file: OnnxFile, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"cannot run {file.path}: {why}; export the model anew with a current optimum or "
        "onnxruntime-genai, or `edgespec export MODEL.gguf --format onnx OUT`"
    )
