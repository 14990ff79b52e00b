"""Parts that many architectures share: attention, feed-forward, experts, embedding and head.

Gains are chosen so that scores spread by about one and a half, routers decide, and every sublayer
adds about as much as it finds.
"""

from __future__ import annotations

import numpy as np

from tests.support.random_models.recipe import VOCABULARY_SIZE, Recipe

PEAKED = 1.25
"""Gain of queries and of keys: their products then spread by about one and a half. With more,
layers amplify rounding so that quantised files say little; with less, attention hardly chooses."""
ALIKE = 0.8
"""What experts have in common, so that rounding, which now and then turns a near tie of the router
the other way, does not change a token's logits beyond comparison."""


def ends(
    recipe: Recipe, *, tied: float = 0.0, norm: str = "output_norm", norm_mean: float = 1.0
) -> None:
    """Embedding, last norm and, unless tied, the matrix of the head.

    `tied` is the spread of an embedding that is the head, too: small beside what the layers add, or
    the likeliest next token is the last one again.
    """
    spread = tied or 1.0
    recipe.matrix("token_embd", VOCABULARY_SIZE, recipe.dim, gain=spread * recipe.dim**0.5)
    recipe.norm(norm, recipe.dim, mean=norm_mean)
    if not tied:
        recipe.matrix("output", VOCABULARY_SIZE, recipe.dim, gain=3.0)


def attention(
    recipe: Recipe,
    block: str,
    *,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    peaked: float = PEAKED,
    bias: bool = False,
    qk_norm: float = 0.0,
) -> None:
    """Separate projections; `qk_norm` is the mean gain of norms of each head's queries and keys."""
    heads = recipe.heads if heads is None else heads
    width = recipe.head_dim if head_dim is None else head_dim
    if kv_heads is None:
        assert isinstance(recipe.kv_heads, int)
        kv_heads = recipe.kv_heads
    dim = recipe.dim
    rows = {"q": heads * width, "k": kv_heads * width, "v": kv_heads * width}
    for part, count in rows.items():
        recipe.matrix(f"{block}attn_{part}", count, dim, gain=1.0 if part == "v" else peaked)
        if bias:
            recipe.bias(f"{block}attn_{part}", count)
    if qk_norm:
        recipe.norm(f"{block}attn_q_norm", width, mean=qk_norm)
        recipe.norm(f"{block}attn_k_norm", width, mean=qk_norm)
    recipe.matrix(f"{block}attn_output", dim, heads * width, gain=1.5)


def ffn(recipe: Recipe, block: str, width: int | None = None, end: str = "") -> None:
    """Gate, up and down; `end` is that of the tensors' names, e.g. `_shexp`."""
    if width is None:
        assert isinstance(recipe.ffn, int)
        width = recipe.ffn
    recipe.matrix(f"{block}ffn_gate{end}", width, recipe.dim, gain=1.5)
    recipe.matrix(f"{block}ffn_up{end}", width, recipe.dim)
    recipe.matrix(f"{block}ffn_down{end}", recipe.dim, width, gain=1.5)


def router(recipe: Recipe, block: str, experts: int, gain: float = 3.0) -> None:
    """A router that is rarely in doubt."""
    recipe.matrix(f"{block}ffn_gate_inp", experts, recipe.dim, gain=gain, exact=True)


def experts(
    recipe: Recipe,
    block: str,
    count: int,
    width: int,
    *,
    fused: bool = False,
    bias: bool = False,
    gains: tuple[float, float, float] = (1.5, 1.0, 2.0),
) -> None:
    """Matrices of all experts, gate, up and down of these gains; `fused` has gate and up in one."""
    dim = recipe.dim
    gate, up, down = gains
    if fused:
        recipe.matrix(f"{block}ffn_gate_up_exps", count, 2 * width, dim, gain=gate, alike=ALIKE)
    else:
        recipe.matrix(f"{block}ffn_gate_exps", count, width, dim, gain=gate, alike=ALIKE)
        recipe.matrix(f"{block}ffn_up_exps", count, width, dim, gain=up, alike=ALIKE)
    recipe.matrix(f"{block}ffn_down_exps", count, dim, width, gain=down, alike=ALIKE)
    if bias:
        recipe.bias(f"{block}ffn_gate_exps", count, width)
        recipe.bias(f"{block}ffn_up_exps", count, width)
        recipe.bias(f"{block}ffn_down_exps", count, dim)


def multi_token_block(recipe: Recipe, block: str) -> None:
    """What a block that predicts the token after next has beside an ordinary layer's tensors."""
    recipe.matrix(f"{block}nextn.eh_proj", recipe.dim, 2 * recipe.dim)
    recipe.norm(f"{block}nextn.enorm", recipe.dim)
    recipe.norm(f"{block}nextn.hnorm", recipe.dim)
    recipe.norm(f"{block}nextn.shared_head_norm", recipe.dim)


def yarn(recipe: Recipe, *, factor: float, original: int, **more: float) -> None:
    """Keys of a rotation stretched by YaRN from `original` positions."""
    recipe.keys |= {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": original,
    }
    recipe.keys |= {f"rope.scaling.{key}": value for key, value in more.items()}


def factors(count: int, least: float, most: float) -> list[float]:
    """Divisors of the rotation's frequencies, growing from pair to pair."""
    return [float(value) for value in np.linspace(least, most, count)]
