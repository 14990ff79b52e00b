"""Edits of tensors that do what a wrong engine would do, and the breakages every model shares."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.support.random_models.recipe import Array, Breakage, Edit, Recipe

NEUTRAL_ONE = ("norm.weight", "scale.weight", ".scale", "_norm_1.weight", "_norm_2.weight")
"""Ends of tensors that multiply: left out, they are ones; all others are zeros."""
SPARED = ("token_embd.weight", "output.weight", "per_layer_token_embd.weight")


def zeros(values: Array) -> Array:
    return np.zeros_like(values)


def ones(values: Array) -> Array:
    return np.ones_like(values)


def first_two_swapped(values: Array) -> Array:
    """Experts, heads or rows 0 and 1 exchanged."""
    return values[[1, 0, *range(2, len(values))]]


def reversed_columns(values: Array) -> Array:
    """A convolution whose taps run the other way."""
    return values[..., ::-1]


def halves_swapped(values: Array, axis: int = 0) -> Array:
    """Gate and up, or two joined parts, exchanged."""
    return np.roll(values, values.shape[axis] // 2, axis)


def gates_and_ups_swapped(values: Array) -> Array:
    """The same in every expert."""
    return halves_swapped(values, 1)


def other_rotation(head_dim: int, rope_dim: int, neighbours: bool) -> Edit:
    """Rows of queries or keys so ordered that the rotation pairs other dimensions.

    `neighbours` says that the architecture turns neighbours; then halves are paired instead.
    """
    pairs = np.arange(rope_dim).reshape(2, -1)
    order = pairs.T.ravel() if neighbours else np.argsort(pairs.T.ravel())
    if neighbours:
        order = np.argsort(order)
    whole = np.concatenate([order, np.arange(rope_dim, head_dim)])

    def edit(values: Array) -> Array:
        heads = values.reshape(-1, head_dim, *values.shape[1:])
        return heads[:, whole].reshape(values.shape)

    return edit


def rows_in(order: np.ndarray, width: int, start: int = 0) -> Edit:
    """Groups of `width` rows from row `start` on in another order; the rest stays."""

    def edit(values: Array) -> Array:
        end = start + len(order) * width
        groups = values[start:end].reshape(len(order), width, *values.shape[1:])
        moved = groups[order].reshape(values[start:end].shape)
        return np.concatenate([values[:start], moved, values[end:]])

    return edit


def wrong_rotation(recipe: Recipe, neighbours: bool, head_dim: int | None = None) -> Breakage:
    """Queries and keys turned in the layout of the other family."""
    width = recipe.head_dim if head_dim is None else head_dim
    rope_dim = width if recipe.rope_dim is None else recipe.rope_dim
    edit = other_rotation(width, rope_dim, neighbours)
    ends = ("attn_q.weight", "attn_k.weight", "attn_q.bias", "attn_k.bias")
    norms = ("attn_q_norm.weight", "attn_k_norm.weight")
    return Breakage("rotation's layout", edits=dict.fromkeys((*ends, *norms), edit))


def of_every_tensor(recipe: Recipe) -> Iterator[Breakage]:
    """Each kind of tensor left out in all layers: gains one, all else zero."""
    found: dict[str, None] = {}
    skipped = _extra_blocks(recipe)
    for name, tensor in recipe.tensors.items():
        if name in SPARED or tensor.values is not None or name.startswith(skipped):
            continue
        found[name.split(".", 2)[2] if name.startswith("blk.") else name] = None
    for end in found:
        yield Breakage(f"no {end}", edits={_whole(end): ones if _multiplies(end) else zeros})


def all_breakages(recipe: Recipe) -> list[Breakage]:
    """Those the architecture names and those of every tensor, each under one name."""
    everything = [*recipe.breakages, *of_every_tensor(recipe)]
    assert len({one.name for one in everything}) == len(everything)
    return everything


def _multiplies(end: str) -> bool:
    return end.endswith(NEUTRAL_ONE)


def _whole(end: str) -> str:
    """`ffn_norm.weight` must not also match `post_ffn_norm.weight`."""
    glob = ("output_norm", "token_embd_norm", "per_layer_", "altup_proj", "altup_unembd")
    return end if end.startswith(glob) else f".{end}"


def _extra_blocks(recipe: Recipe) -> tuple[str, ...]:
    count = recipe.keys.get("nextn_predict_layers", 0)
    return tuple(f"blk.{recipe.layers - 1 - i}." for i in range(count))
