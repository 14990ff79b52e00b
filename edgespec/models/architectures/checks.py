"""Whether a file's tensors are those that its description names, in shape and type.

What is checked here, every reader of the description may rely on: each tensor it names is in the
file, of a type that we read, and as large as its matrices and vectors say.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from edgespec.errors import ModelFileError, UnsupportedModelError
from edgespec.models.gguf.dequantise import SUPPORTED_TYPES
from edgespec.models.layers import (
    AltUp,
    Attention,
    GatedDeltaNet,
    LayerSpec,
    Mamba2,
    Matrix,
    Moe,
    Norm,
    Rope,
    ShortConv,
)
from edgespec.models.spec import ModelSpec, TensorInfo, TensorType

_VECTOR_TYPES = (TensorType.F32, TensorType.F16, TensorType.BF16)
Shapes = dict[str, tuple[int, ...]]


def check_tensors(path: Path, spec: ModelSpec, tensors: Mapping[str, TensorInfo]) -> None:
    """Raise ModelFileError where a tensor is missing or has another shape, UnsupportedModelError
    where there are tensors or types too many.
    """
    _check_parts(path, spec)
    matrices, vectors = named(spec)
    seen = set(spec.unused) | matrices.keys() | vectors.keys()
    for name, parts in matrices.items():
        _check_matrix(path, name, parts, tensors)
    for name, shape in vectors.items():
        _check_shape(path, name, shape, tensors)
    extra = [name for name in tensors if name not in seen]
    if extra:
        raise UnsupportedModelError(
            f"cannot run {path}: {len(extra)} tensors do not belong to a {spec.architecture} model "
            f"of {spec.num_layers} layers, first {extra[0]!r}; choose another model"
        )
    used = {name: info for name, info in tensors.items() if name not in spec.unused}
    _check_types(path, used, matrices.keys())


def check_head(path: Path, head: ModelSpec, tensors: Mapping[str, TensorInfo]) -> None:
    """Raise ModelFileError where a tensor of a draft head is missing or has another shape,
    UnsupportedModelError for its type. Other tensors are other parts'.
    """
    _check_parts(path, head)
    matrices, vectors = named(head)
    for name, parts in matrices.items():
        _check_matrix(path, name, parts, tensors)
    for name, shape in vectors.items():
        _check_shape(path, name, shape, tensors)
    used = {name: tensors[name] for name in (*matrices, *vectors)}
    _check_types(path, used, matrices.keys())


def _check_parts(path: Path, spec: ModelSpec) -> None:
    """What parts say of each other must be possible."""
    for number, layer in enumerate(spec.layers):
        mixer, ffn = layer.mixer, layer.ffn
        if isinstance(mixer, Attention) and mixer.shares is not None and not spec.borrows_keys:
            source = spec.layers[mixer.shares].mixer if 0 <= mixer.shares < number else None
            if not isinstance(source, Attention) or source.key is None or (
                (source.kv_heads, source.head_dim, source.reach)
                != (mixer.kv_heads, mixer.head_dim, mixer.reach)
            ):  # fmt: skip
                raise ModelFileError(
                    f"cannot open {path}: layer {number} should read the keys of layer "
                    f"{mixer.shares}, which has none of that kind; convert the model again"
                )
        if isinstance(ffn, Moe) and (
            ffn.experts % ffn.groups
            or not 1 <= ffn.active_groups <= ffn.groups
            or ffn.active > ffn.experts // ffn.groups * ffn.active_groups
        ):
            raise ModelFileError(
                f"cannot open {path}: {ffn.active} of {ffn.experts} experts cannot be chosen from "
                f"{ffn.active_groups} of {ffn.groups} groups; convert the model again"
            )


def named(spec: ModelSpec) -> tuple[dict[str, list[Matrix]], Shapes]:
    """The matrices of a model by the tensor they are part of, and the shapes of its vectors."""
    matrices: dict[str, list[Matrix]] = defaultdict(list)
    vectors: Shapes = {spec.last_norm: (spec.dim,)}
    for name, rows in {(spec.embedding, spec.num_readable), (spec.head, spec.vocab_size)}:
        if name:  # else it is the model's that a head drafts for
            matrices[name].append(Matrix(name, rows, spec.dim))
    for part in _parts((spec.layers, spec.per_layer_embedding, spec.streams, spec.head_input)):
        if isinstance(part, Matrix):
            if part not in matrices[part.tensor]:  # layers may share one
                matrices[part.tensor].append(part)
        else:
            vectors |= _vectors(part)
    for parts in list(matrices.values()):
        for part in parts:
            if part.bias:
                rows = sum(each.rows for each in parts)
                vectors[part.bias] = (part.experts, rows) if part.experts > 1 else (rows,)
    return dict(matrices), vectors


def _parts(value: Any) -> Iterator[Any]:
    """Every dataclass in a nest of them, itself included."""
    if isinstance(value, tuple):
        for each in value:
            yield from _parts(each)
    elif value is not None and not isinstance(value, str | int | float) and is_dataclass(value):
        yield value
        for each in fields(value):
            yield from _parts(getattr(value, each.name))


def _vectors(part: Any) -> Shapes:
    """The vectors, and convolutions, that a part names itself."""
    found: Shapes = {}
    if isinstance(part, Norm):
        found = {part.tensor: (part.groups, part.width)}
    elif isinstance(part, Rope):
        found = dict.fromkeys((part.factors, part.long_factors), (part.dim // 2,))
    elif isinstance(part, Attention):
        found = {part.sinks: (part.heads,)}
    elif isinstance(part, GatedDeltaNet):
        found = dict.fromkeys((part.dt_bias, part.decay), (part.value_heads,))
        found[part.conv] = (part.channels, part.conv_width)
    elif isinstance(part, ShortConv):
        found = {part.conv: (part.channels, part.conv_width)}
    elif isinstance(part, Mamba2):
        found = {part.dt_bias: (part.heads,), part.conv_bias: (part.channels,)}
        found |= dict.fromkeys((part.decay, part.skip), (part.heads, 1))
        found[part.conv] = (part.channels, part.conv_width)
    elif isinstance(part, Moe):
        found = dict.fromkeys((part.choice_bias, part.expert_scale), (part.experts,))
    elif isinstance(part, AltUp):
        found = {part.correct_scale: (part.router_norm.width,)}
    elif isinstance(part, LayerSpec):
        found = {part.output_scale: (1,)}
    return {name: shape for name, shape in found.items() if name}


def _check_matrix(
    path: Path, name: str, parts: list[Matrix], tensors: Mapping[str, TensorInfo]
) -> None:
    """The tensor must have the rows of all its matrices, and each row be of one of them."""
    rows = sum(part.rows for part in parts)
    first = parts[0]
    shape = (rows, first.columns) if first.experts == 1 else (first.experts, rows, first.columns)
    _check_shape(path, name, shape, tensors)


def _check_shape(
    path: Path, name: str, shape: tuple[int, ...], tensors: Mapping[str, TensorInfo]
) -> None:
    info = tensors.get(name)
    if info is None:
        raise ModelFileError(
            f"cannot open {path}: tensor {name!r} is missing; download or convert it again"
        )
    if _squeezed(info.shape) != _squeezed(shape):
        raise ModelFileError(
            f"cannot open {path}: tensor {name!r} is {_shown(info.shape)} and the "
            f"hyper-parameters say {_shown(shape)}; convert the model again"
        )


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without axes of one: converters differ in whether vectors have them."""
    return tuple(size for size in shape if size != 1)


def _check_types(path: Path, tensors: Mapping[str, TensorInfo], matrices: Any) -> None:
    bad: Counter[str] = Counter()
    first = ""
    for name, info in tensors.items():
        if info.type not in (SUPPORTED_TYPES if name in matrices else _VECTOR_TYPES):
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
