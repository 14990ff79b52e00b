"""Tiny models of every architecture and type, and every backend opened on them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec.backends.base import Target
from edgespec.backends.llamacpp import library
from edgespec.backends.llamacpp.probe import probed
from edgespec.backends.native.kernels.matmul.tile import FORMATS
from edgespec.backends.native.target import NativeTarget
from edgespec.backends.onnx import runtime_library as onnx_library
from edgespec.backends.passes import Progress, TokenTree
from edgespec.backends.reference import ReferenceTarget
from edgespec.memory.plan.plan import Footprint, Plan
from edgespec.models.file import ModelFile
from edgespec.models.open_model import open_model
from edgespec.models.spec import TensorType
from tests.support.gguf_models import write_gguf


def _native_int8(file: ModelFile, plan: Plan, progress: Progress | None = None) -> Target:
    """The native backend with int8 keys and values."""
    return NativeTarget(file, replace(plan, backend="native", kv_type="int8"), progress)


def _native_q4(file: ModelFile, plan: Plan, progress: Progress | None = None) -> Target:
    """The native backend with 4-bit keys and values."""
    return NativeTarget(file, replace(plan, backend="native", kv_type="q4"), progress)


def _llamacpp(file: ModelFile, plan: Plan, progress: Progress | None = None) -> Target:
    """llama.cpp, imported only where it is installed."""
    from edgespec.backends.llamacpp.target import LlamaTarget

    return LlamaTarget(file, plan, progress)


def _onnx(file: ModelFile, plan: Plan, progress: Progress | None = None) -> Target:
    """ONNX Runtime on what `edgespec export` makes of a file."""
    return _openexported(exported(file.path), plan, progress)


def _onnx_growing(file: ModelFile, plan: Plan, progress: Progress | None = None) -> Target:
    """The same of plain operators, as Optimum writes them: chains only."""
    return _openexported(exported(file.path, growing=True), plan, progress)


def _openexported(path: Path, plan: Plan, progress: Progress | None) -> Target:
    from edgespec.backends.onnx.target import OnnxTarget

    with open_model(path, any_engine=True) as exported:
        return OnnxTarget(exported, replace(plan, backend="onnx"), progress)


@cache
def exported(path: Path, growing: bool = False) -> Path:
    """The folder with a model's ONNX graph, written once per run."""
    from edgespec.tools.export.export import export
    from tests.support.growing_onnx import write_growing

    folder = Path(_FOLDER.name) / f"{path.stem}-{path.parent.name}{'-growing' * growing}"
    # Where a test cannot use it after all, it is asked for again.
    export(path, folder, check=False, overwrite=True)
    if growing:
        with open_model(path) as file:
            write_growing(file, folder)
    return folder


OPENERS: dict[str, Any] = {
    "native": NativeTarget,
    "native-int8": _native_int8,
    "native-q4": _native_q4,
    "reference": ReferenceTarget,
    "llamacpp": _llamacpp,
    "onnx": _onnx,
    "onnx-growing": _onnx_growing,
}


_BATCHING = ("native", "native-int8", "native-q4", "reference", "llamacpp")


def missing(backend: str) -> str:
    """Why a backend is not tested here, "" when it is."""
    if backend.startswith("onnx"):
        return onnx_library.missing() or ("" if find_spec("onnx") else "onnx is not installed")
    if backend != "llamacpp":
        return ""
    why = library.missing()
    if why:
        return why
    found = probed()
    return "" if found.runs else found.complaint


def _param(backend: str, model: str = "") -> Any:
    """A backend, or the pair of a backend and a model."""
    why = missing(backend)
    value, name = ((backend, model), f"{backend}-{model}") if model else (backend, backend)
    return pytest.param(value, id=name, marks=pytest.mark.skipif(bool(why), reason=why))


BACKENDS = [_param(name) for name in OPENERS]
"""Every backend as a parameter; one that is not installed is skipped with the reason."""
ARCHITECTURES = ("llama", "qwen2", "qwen3")
FLOAT_TYPES = ("F32", "F16", "BF16")
TYPES = tuple(kind.name for kind in FORMATS)
LIKE_OTHERS = frozenset(
    {"NVFP4", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XXS", "IQ1_M", "IQ1_S", "TQ2_0", "TQ1_0"}
)
"""Types that are packed like another in all but tables and sizes: only their tiles and one model of
each are tested.
"""
MAIN_TYPES = tuple(kind for kind in TYPES if kind not in LIKE_OTHERS)
MODELS = (
    *(f"{arch}-{kind}" for arch in ARCHITECTURES for kind in MAIN_TYPES),
    *(f"llama-{kind}" for kind in sorted(LIKE_OTHERS)),
)
"""Names of all tiny models: `llama-F32`, ..."""
FEW_MODELS = (*(f"llama-{kind}" for kind in MAIN_TYPES), "qwen2-Q8_0", "qwen3-Q4_0")
"""Every main type once and every architecture once."""
EVERY = [_param(backend, model) for backend in OPENERS for model in FEW_MODELS]
"""Pairs of every backend and these models, as parameters."""
BATCHING = [_param(name) for name in _BATCHING]
"""Those that compute several texts in one pass, as parameters."""
BATCHING_MODELS = [
    pytest.param(*param.values[0], id=param.id, marks=param.marks)
    for param in (_param(backend, model) for backend in _BATCHING for model in FEW_MODELS)
]
"""The same, each with every type and every architecture."""
VOCAB = 300
MAX_NODES = 20
FLOAT_MARGIN, ROUNDED_MARGIN = 5e-3, 0.1
"""How far logits (of -3 to 3) may be apart where rows depend on their pass. llama.cpp rounds what
it multiplies all weights but F32 and F16 with, so that a last bit may become a step (0.035 in
12,000 rows).
"""

_FOLDER = TemporaryDirectory(prefix="edgespec-conformance-")


@cache
def model_path(name: str) -> Path:
    """Write a tiny model once per run; super-blocks need rows of 256."""
    arch, kind = name.split("-")
    super_blocks = TensorType[kind].block_size == 256
    widths: dict[str, Any] = {"dim": 256, "ffn": 256} if super_blocks else {"dim": 64, "ffn": 128}
    head_dim = (128 if super_blocks else 32) if arch == "qwen3" else None  # wider than dim
    return write_gguf(
        Path(_FOLDER.name) / f"{name}.gguf",
        arch=arch,
        type=kind,
        vocab=VOCAB,
        rope_factors=arch == "llama",
        tied=arch == "qwen2",
        metadata={"general.name": name},
        head_dim=head_dim,
        **widths,
    )


PLAN = Plan(
    backend="native",
    quantisation="",
    context_length=320,
    kv_type="f16",
    max_nodes=MAX_NODES,
    prefill_chunk=0,
    threads=1,
    gpu_layers=0,
    budget_bytes=1 << 30,
    footprint=Footprint(()),
)


def open_target(backend: str, model: str | Path, **changes: Any) -> Target:
    """A fresh target; `changes` are fields of the plan."""
    path = model if isinstance(model, Path) else model_path(model)
    with open_model(path) as file:
        target: Target = OPENERS[backend](file, replace(PLAN, backend=backend, **changes))
    return target


@cache
def shared_target(backend: str, model: str) -> Target:
    """One target for many examples; each begins with `truncate(0)`."""
    return open_target(backend, model)


def tokens(count: int, seed: int = 0) -> NDArray[np.int32]:
    """Random token ids [count]."""
    return np.random.default_rng(seed).integers(0, VOCAB, count, dtype=np.int32)


def fitting(target: Target, tree: TokenTree) -> TokenTree:
    """A tree, or its tokens as a chain for a target that takes nothing else."""
    return tree if target.capabilities.trees else TokenTree.chain(tree.tokens)


def score(target: Target, ids: NDArray[np.int32]) -> NDArray[np.float32]:
    """Logits [n, vocab] of a chain in one pass, as a copy."""
    return target.own.forward(TokenTree.chain(ids)).logits.copy()


def decode(target: Target, ids: NDArray[np.int32]) -> NDArray[np.float32]:
    """Logits [n, vocab] of tokens decoded and committed one at a time."""
    rows = []
    for token in ids:
        rows.append(score(target, np.array([token], np.int32))[0])
        target.own.commit([0])
    return np.array(rows)


def assert_same(target: Target, ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> None:
    """Equal bit for bit where the backend says so, else nearly, with the same best tokens but for
    near ties.
    """
    if target.capabilities.bit_exact_rows:
        np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))
        return
    margin = FLOAT_MARGIN if target.spec.name.endswith(("F32", "-F16")) else ROUNDED_MARGIN
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=margin)
    for one, two in zip(ours, theirs, strict=True):
        best, other = int(one.argmax()), int(two.argmax())
        assert min(one[best] - one[other], two[other] - two[best]) <= margin


def cosines(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cosine of each row [n, width] with the other's."""
    one, two = left.astype(np.float64), right.astype(np.float64)
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
    result: NDArray[np.float64] = (one * two).sum(axis=1) / lengths
    return result
