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
            f"{spec.name} has {part}, which the native backend does not compute yet; use "
            "`--backend llamacpp`, or `--backend reference`, which is slow"
        )
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
    multiplied = multiplied_tensors(spec)
    for info in tensors:
        if info.name not in multiplied:
            continue
        columns, group = info.shape[-1], max(2, PACKED.get(info.type, (1, 0))[0])
        if len(info.shape) > 1 and (info.type not in PACKED or columns % group):
            return (
                f"{info.name} of {spec.name} is {info.type.name} with {columns} columns; the "
                f"native backend computes {', '.join(kind.name for kind in PACKED)} with whole "
                "blocks and an even number of columns: requantise the model to one of these"
            )
    return ""


def _other_part(spec: ModelSpec) -> str:
    """The first part that is not computed, "" when there is none."""
    if spec.streams is not None and (spec.streams.count > TILE_ROWS or spec.dim % BLOCK):
        return f"{spec.streams.count} residual streams that are {spec.dim} wide"
    return next((part for part in map(_other_part_of_layer, spec.layers) if part), "")


def _other_part_of_layer(layer: LayerSpec) -> str:
    attention, ffn = layer.mixer, layer.ffn
    if isinstance(ffn, Moe):
        if any(part.rows % TILE_ROWS for part in (ffn.gate, ffn.up, ffn.down)):
            return f"experts whose width is no multiple of {TILE_ROWS}"
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
        return "norms of some heads together"
    if len(widths) > 1 and attention.key is None:
        return "norms of all heads together without keys"
    return ""


def _odd_latent(mixer: LatentAttention) -> str:
    """What of latent attention does not fit the vectors and blocks of kernels, "" if nothing."""
    widths = [mixer.nope_dim, mixer.value_dim, mixer.latent_dim]
    if any(width % BLOCK for width in widths) or mixer.rope.dim % TILE_ROWS:
        return f"latent attention with a width that is no multiple of {BLOCK}"
    if mixer.query_down is not None and mixer.query_down.rows % BLOCK:
        return f"queries through a width that is no multiple of {BLOCK}"
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
        return f"states with a width that is no multiple of {TILE_ROWS}"
    if mixer.conv_width not in CONVOLUTIONS:
        return f"convolutions over {mixer.conv_width} positions"
    return ""
