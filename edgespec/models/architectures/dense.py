"""Builds a ModelSpec from a file's metadata and checks that its tensors agree with it.

Key and tensor names are GGUF's; the conventions (rotation layouts, defaults) are llama.cpp's, so
that a file means the same here as there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from edgespec.errors import ModelFileError, UnsupportedModelError
from edgespec.models.gguf.dequantise import SUPPORTED_TYPES
from edgespec.models.gguf.header import GgufHeader
from edgespec.models.gguf.keys import Keys
from edgespec.models.gguf.strings import StringArray
from edgespec.models.spec import ModelSpec, RopeLayout, TensorInfo, TensorType

ROPE_LAYOUTS: dict[str, RopeLayout] = {
    "llama": "interleaved",
    "qwen2": "halves",
    "qwen3": "halves",
}
ROPE_FACTORS = "rope_freqs.weight"
_VECTOR_TYPES = (TensorType.F32, TensorType.F16, TensorType.BF16)
_QKV = ("attn_q", "attn_k", "attn_v")


def build_spec(path: Path, header: GgufHeader) -> ModelSpec:
    """Read the hyper-parameters, then check every tensor's name, shape and type against them.

    Raises UnsupportedModelError for what this build cannot run, ModelFileError for contradictions.
    """
    keys = Keys(path, header.metadata)
    arch = keys.text("general.architecture")
    _refuse_external(keys, arch)
    dim = keys.count(f"{arch}.embedding_length")
    heads = keys.count(f"{arch}.attention.head_count")
    head_dim = keys.count(f"{arch}.attention.key_length", max(1, dim // heads))
    tensors = header.tensors
    spec = ModelSpec(
        architecture=arch,
        name=keys.text("general.name", path.stem) or path.stem,
        num_layers=keys.count(f"{arch}.block_count"),
        dim=dim,
        num_heads=heads,
        num_kv_heads=keys.count(f"{arch}.attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn_dim=keys.count(f"{arch}.feed_forward_length"),
        vocab_size=_vocab_size(keys, arch, tensors),
        context_length=_context_length(keys, arch),
        norm_epsilon=keys.number(f"{arch}.attention.layer_norm_rms_epsilon"),
        rope_base=keys.number(f"{arch}.rope.freq_base", 10000.0),
        rope_dim=keys.count(f"{arch}.rope.dimension_count", head_dim),
        rope_layout=ROPE_LAYOUTS[arch],
        rope_scale=_rope_scale(keys, arch),
        tied_embeddings="output.weight" not in tensors,
        qkv_bias=arch == "qwen2" or "blk.0.attn_q.bias" in tensors,
        qk_norm=arch == "qwen3",
        rope_factors=ROPE_FACTORS in tensors and arch == "llama",
        num_parameters=sum(math.prod(info.shape) for info in tensors.values()),
    )
    _check_heads(keys, spec)
    _check_tensors(path, spec, tensors)
    return spec


def _refuse_external(keys: Keys, arch: str) -> None:
    """Say no to what would load but run wrongly."""
    path = keys.path
    if not keys.flag(f"{arch}.attention.causal", True):
        raise UnsupportedModelError(
            f"cannot run {path}: its attention is not causal (an embedding model); "
            "choose a text generation model"
        )
    if arch not in ROPE_LAYOUTS:
        raise UnsupportedModelError(
            f"cannot run {path}: its architecture is {arch!r}; the native backend runs "
            f"{', '.join(ROPE_LAYOUTS)} (Llama, Mistral, SmolLM, Qwen), so choose such a model"
        )
    experts = keys.count(f"{arch}.expert_count", 0, least=0)
    if experts:
        raise UnsupportedModelError(
            f"cannot run {path}: it mixes {experts} experts; dense models work, so choose one"
        )


def _vocab_size(keys: Keys, arch: str, tensors: Mapping[str, TensorInfo]) -> int:
    """Rows of the embedding, which the vocabulary and the metadata must agree with."""
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelFileError(
            f"cannot open {keys.path}: it has no token_embd.weight matrix; "
            "is it a vocabulary-only file? download the whole model"
        )
    rows = embedding.shape[0]
    tokens = keys.values.get("tokenizer.ggml.tokens")
    if isinstance(tokens, StringArray) and len(tokens) != rows:
        raise ModelFileError(
            f"cannot open {keys.path}: its vocabulary has {len(tokens)} tokens and "
            f"token_embd.weight {rows} rows; convert the model again"
        )
    stated = keys.count(f"{arch}.vocab_size", rows)
    if stated != rows:
        raise ModelFileError(
            f"cannot open {keys.path}: {arch}.vocab_size is {stated} and token_embd.weight has "
            f"{rows} rows; convert the model again"
        )
    return rows


def _context_length(keys: Keys, arch: str) -> int:
    """Trained context; with sliding-window attention, the window, inside which both are equal."""
    context = keys.count(f"{arch}.context_length")
    window = keys.count(f"{arch}.attention.sliding_window", 0, least=0)
    return min(context, window) if window else context


def _rope_scale(keys: Keys, arch: str) -> float:
    prefix = f"{arch}.rope.scaling."
    kind = keys.text(prefix + "type", "linear")
    if kind not in ("none", "linear"):
        raise UnsupportedModelError(
            f"cannot run {keys.path}: its rotary scaling is {kind!r}; none, linear and Llama 3.1 "
            "factors are supported, so choose another model"
        )
    if keys.number(prefix + "attn_factor", 1.0) != 1.0:
        raise UnsupportedModelError(
            f"cannot run {keys.path}: {prefix}attn_factor is not 1, which is not supported; "
            "choose another model"
        )
    old = keys.values.get(f"{arch}.rope.scale_linear", 1.0)
    factor = keys.values.get(prefix + "factor", old)
    if kind == "none" or factor in (0, 1):
        return 1.0
    key = prefix + "factor" if prefix + "factor" in keys.values else f"{arch}.rope.scale_linear"
    return 1.0 / keys.number(key)


def _check_heads(keys: Keys, spec: ModelSpec) -> None:
    arch, path = spec.architecture, keys.path
    value_length = keys.count(f"{arch}.attention.value_length", spec.head_dim)
    if value_length != spec.head_dim:
        raise UnsupportedModelError(
            f"cannot run {path}: keys are {spec.head_dim} wide and values {value_length}; "
            "only equal widths are supported, so choose another model"
        )
    if spec.num_heads % spec.num_kv_heads:
        raise ModelFileError(
            f"cannot open {path}: {spec.num_heads} heads cannot share {spec.num_kv_heads} "
            "key-value heads; convert the model again"
        )
    if spec.rope_dim % 2 or spec.rope_dim > spec.head_dim:
        raise ModelFileError(
            f"cannot open {path}: {spec.rope_dim} rotated dimensions do not fit heads of "
            f"{spec.head_dim}; convert the model again"
        )


def _expected(spec: ModelSpec, layer: int) -> dict[str, tuple[int, ...]]:
    """The tensors of one layer, NumPy order."""
    sizes = (spec.num_heads * spec.head_dim, spec.kv_dim, spec.kv_dim)
    widths = dict(zip(_QKV, sizes, strict=True))
    block = f"blk.{layer}."
    shapes: dict[str, tuple[int, ...]] = {
        block + "attn_norm.weight": (spec.dim,),
        **{f"{block}{part}.weight": (width, spec.dim) for part, width in widths.items()},
        block + "attn_output.weight": (spec.dim, spec.num_heads * spec.head_dim),
        block + "ffn_norm.weight": (spec.dim,),
        block + "ffn_gate.weight": (spec.ffn_dim, spec.dim),
        block + "ffn_up.weight": (spec.ffn_dim, spec.dim),
        block + "ffn_down.weight": (spec.dim, spec.ffn_dim),
    }
    if spec.qkv_bias:
        shapes |= {f"{block}{part}.bias": (width,) for part, width in widths.items()}
    if spec.qk_norm:
        shapes |= {f"{block}attn_{part}_norm.weight": (spec.head_dim,) for part in "qk"}
    return shapes


def _check_tensors(path: Path, spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> None:
    seen = {"token_embd.weight", "output_norm.weight"}
    outer: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (spec.vocab_size, spec.dim),
        "output_norm.weight": (spec.dim,),
    }
    if not spec.tied_embeddings:
        outer["output.weight"] = (spec.vocab_size, spec.dim)
    if spec.rope_factors:
        outer[ROPE_FACTORS] = (spec.rope_dim // 2,)
    _check_shapes(path, outer, tensors)
    seen |= outer.keys()
    for layer in range(spec.num_layers):
        shapes = _expected(spec, layer)
        _check_shapes(path, shapes, tensors)
        seen |= shapes.keys()
    extra = [name for name in tensors if name not in seen]
    if extra:
        raise UnsupportedModelError(
            f"cannot run {path}: {len(extra)} tensors do not belong to a {spec.architecture} model "
            f"of {spec.num_layers} layers, first {extra[0]!r}; choose another model"
        )
    _check_types(path, tensors)


def _check_shapes(
    path: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, TensorInfo]
) -> None:
    for name, shape in shapes.items():
        info = tensors.get(name)
        if info is None:
            raise ModelFileError(
                f"cannot open {path}: tensor {name!r} is missing; download or convert it again"
            )
        if info.shape != shape:
            raise ModelFileError(
                f"cannot open {path}: tensor {name!r} is {_shown(info.shape)} and the "
                f"hyper-parameters say {_shown(shape)}; convert the model again"
            )


def _check_types(path: Path, tensors: Mapping[str, TensorInfo]) -> None:
    bad: Counter[str] = Counter()
    first = ""
    for info in tensors.values():
        if info.type not in (SUPPORTED_TYPES if len(info.shape) == 2 else _VECTOR_TYPES):
            bad[info.type.name] += 1
            first = first or info.name
    if bad:
        found = ", ".join(f"{count} tensors of type {kind}" for kind, count in bad.items())
        raise UnsupportedModelError(
            f"cannot run {path}: it has {found} (first {first!r}); supported are "
            f"{', '.join(kind.name for kind in SUPPORTED_TYPES)}, so requantise it, "
            "e.g. `llama-quantize MODEL-F16.gguf OUT.gguf Q4_K_M`"
        )


def _shown(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
