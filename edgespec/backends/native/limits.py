"""What the native kernels cannot compute, told without importing them."""

from __future__ import annotations

from collections.abc import Iterable

from edgespec.memory.plan.native_sizes import BLOCK, PACKED, TILE_ROWS, multiplied_tensors
from edgespec.memory.plan.state_layout import CONVOLUTIONS, heads_of
from edgespec.models.layers import LatentAttention, LayerSpec, Moe, Recurrent
from edgespec.models.spec import ModelSpec, TensorInfo


def refusal(spec: ModelSpec, tensors: Iterable[TensorInfo]) -> str:
    """Why a model cannot run on the native backend, "" when it can."""
    if spec.refusal:
        return spec.refusal
    part = _other_part(spec)
    if part:
        return (
            f"{spec.name} has {part}, which the native backend does not support yet; use "
            "`--backend llamacpp`, or `--backend reference`, which is slow"
        )
    # Norms work on whole vectors; no trained model known to us has other widths.
    widths = {"embeddings": spec.dim}
    if any(each.query_norm for each in spec.attentions):
        widths["normed heads"] = spec.head_dim
    for name, width in widths.items():
        if width % TILE_ROWS:
            return (
                f"{spec.name} has {name} that are {width} wide, and the native backend needs a "
                f"multiple of {TILE_ROWS}; use `--backend llamacpp`, or `--backend reference`, "
                "which is slow"
            )
    multiplied = multiplied_tensors(spec)
    for info in tensors:
        if info.name not in multiplied:
            continue
        columns, group = info.shape[-1], max(2, PACKED.get(info.type, (1, 0))[0])
        if len(info.shape) > 1 and (info.type not in PACKED or columns % group):
            return (
                f"tensor {info.name} of {spec.name} is {info.type.name} with {columns} columns; "
                f"the native backend reads {', '.join(kind.name for kind in PACKED)}, with an even "
                "number of columns in whole blocks; requantise the model to one of these types"
            )
    return ""


def _other_part(spec: ModelSpec) -> str:
    """The first part that is not computed, "" when there is none."""
    if spec.streams is not None and (spec.streams.count > TILE_ROWS or spec.dim % BLOCK):
        return f"{spec.streams.count} residual streams of width {spec.dim}"
    return next((part for part in map(_other_part_of_layer, spec.layers) if part), "")


def _other_part_of_layer(layer: LayerSpec) -> str:
    attention, ffn = layer.mixer, layer.ffn
    if isinstance(ffn, Moe):
        if any(part.rows % TILE_ROWS for part in (ffn.gate, ffn.up, ffn.down)):
            return f"experts whose width is not a multiple of {TILE_ROWS}"
    elif ffn is None:
        return "layers without a feed-forward part"
    if isinstance(attention, Recurrent):
        return _odd_state(attention)
    if isinstance(attention, LatentAttention):
        return _odd_latent(attention)
    whole = attention.heads * attention.head_dim
    norms = [attention.query_norm, attention.key_norm, attention.value_norm]
    widths = {norm.width for norm in norms if norm is not None}
    if widths - {attention.head_dim, whole, attention.kv_dim}:
        return "norms that span several heads but not all of them"
    if len(widths) > 1 and attention.key is None:
        return "norms that span all heads in layers without keys of their own"
    return ""


def _odd_latent(mixer: LatentAttention) -> str:
    """What of latent attention does not fit the vectors and blocks of kernels, "" if nothing."""
    widths = [mixer.nope_dim, mixer.value_dim, mixer.latent_dim]
    if any(width % BLOCK for width in widths) or mixer.rope.dim % TILE_ROWS:
        return f"latent attention whose width is not a multiple of {BLOCK}"
    if mixer.query_down is not None and mixer.query_down.rows % BLOCK:
        return f"low-rank queries whose rank is not a multiple of {BLOCK}"
    if any(matrix.bias for matrix in mixer.matrices if matrix != mixer.output):
        return "biases in latent attention"
    return ""


def _odd_state(mixer: Recurrent) -> str:
    """What of a recurrent layer does not fit the vectors that kernels work on, "" if nothing."""
    heads = heads_of(mixer)
    widths = [mixer.channels]
    if heads is not None:
        widths += [heads.key_dim, heads.value_dim, heads.values // heads.norm_groups]
    if any(width % TILE_ROWS for width in widths):
        return f"recurrent states whose width is not a multiple of {TILE_ROWS}"
    if mixer.conv_width not in CONVOLUTIONS:
        return f"convolutions over {mixer.conv_width} positions"
    return ""
