"""Does an exported model compute what its GGUF file does? Logits of some tokens are compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.backends import registry as backends
from edgespec.backends.native.limits import refusal
from edgespec.backends.passes import TokenTree
from edgespec.memory.plan.plan import Footprint, Plan
from edgespec.models.file import ModelFile
from edgespec.models.open_model import open_model
from edgespec.system.records import dataclass

_TEXT = "Once upon a time there was a little dog who lived near the sea. One day"
_NODES = 8
_MOST_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Agreement:
    """How alike two models' logits are, row by row."""

    backend: str
    """What computed the GGUF file."""
    worst: float
    """Least cosine."""
    mean: float
    same_best: int
    """Rows whose likeliest token is the same."""
    rows: int


def compare(file: ModelFile, exported: Path) -> Agreement:
    """Logits after each token of a text, from both."""
    ids = np.array(file.tokenizer.encode(_TEXT)[:_MOST_TOKENS] or [0], np.int32)
    backend = "reference" if refusal(file.spec, file.tensors.values()) else "native"
    ours = _rows(file, backend, ids)
    with open_model(exported, any_engine=True) as other:
        theirs = _rows(other, "onnx", ids)
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    cosines = (ours * theirs).sum(axis=1) / np.where(lengths == 0, 1, lengths)
    same = int((ours.argmax(axis=1) == theirs.argmax(axis=1)).sum())
    return Agreement(backend, float(cosines.min()), float(cosines.mean()), same, len(ids))


def _rows(file: ModelFile, backend: str, ids: NDArray[np.int32]) -> NDArray[np.float64]:
    """[tokens, vocab]: a chain in one pass, the rest one by one."""
    plan = Plan(
        backend=backend,
        quantisation="",
        context_length=len(ids),
        kv_type="f16",
        max_nodes=min(_NODES, len(ids)),
        prefill_chunk=0,
        threads=1,
        gpu_layers=0,
        budget_bytes=0,
        footprint=Footprint(()),
    )
    found = []
    with backends.open_target(file, plan) as target:
        for start in [0, *range(plan.max_nodes, len(ids))]:
            part = ids[start : start + (1 if start else plan.max_nodes)]
            found.append(target.own.forward(TokenTree.chain(part)).logits.astype(np.float64))
            target.own.commit(range(len(part)))
    return np.concatenate(found)
