"""What the native kernels cannot compute, told without importing them."""

from __future__ import annotations

from collections.abc import Iterable

from edgespec.memory.plan.native_sizes import PACKED, TILE_ROWS
from edgespec.models.spec import ModelSpec, TensorInfo


def refusal(spec: ModelSpec, tensors: Iterable[TensorInfo]) -> str:
    """Why a model cannot run on the native backend, "" when it can."""
    if spec.refusal:
        return spec.refusal
    # Norms work on whole vectors; no trained model known to us has other widths.
    widths = {"embeddings": spec.dim}
    if any(each.query_norm for each in spec.attentions):
        widths["normed heads"] = spec.head_dim
    for name, width in widths.items():
        if width % TILE_ROWS:
            return (
                f"{spec.name} has {name} {width} wide; the native backend computes multiples of "
                f"{TILE_ROWS}, so choose another model, or `--backend reference`"
            )
    for info in tensors:
        columns, group = info.shape[-1], max(2, PACKED.get(info.type, (1, 0))[0])
        if len(info.shape) > 1 and (info.type not in PACKED or columns % group):
            return (
                f"{info.name} of {spec.name} is {info.type.name} with {columns} columns; the "
                f"native backend computes {', '.join(kind.name for kind in PACKED)} with whole "
                "blocks and an even number of columns: requantise the model to one of these"
            )
    return ""
