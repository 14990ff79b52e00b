"""Layers with a state beside attention: gated delta nets, short convolutions, Mamba-2."""

from __future__ import annotations

import numpy as np

from tests.support.random_models import edits, parts
from tests.support.random_models.dense import break_granite_scales, granite_scales
from tests.support.random_models.moe import SWAPPED, expert_keys, shared_gate
from tests.support.random_models.recipe import Recipe, Tensor


def qwen35(ffn: int = 512, **sizes: int) -> Recipe:
    """Qwen3.5 4B: 32 layers and one of MTP, 2560 wide, 3 of 4 layers gated delta nets.

    16 heads of 256 on 4 with 64 dimensions turned; states of 16 key and 32 value heads of 128.
    `sizes` are those of all but the feed-forward.
    """
    recipe = _qwen35("qwen35", **sizes)
    recipe.ffn = ffn
    for block in recipe.blocks():
        parts.ffn(recipe, block)
    return recipe


def qwen35moe() -> Recipe:
    """Qwen3.6 35B-A3B: 40 layers, 2048 wide, 8 of 256 experts of 512 and a gated shared one."""
    recipe = _qwen35("qwen35moe")
    expert_keys(recipe, 16, 4, 256)
    recipe.keys["expert_shared_feed_forward_length"] = 256
    for block in recipe.blocks():
        parts.router(recipe, block, 16)
        parts.experts(recipe, block, 16, 256)
        shared_gate(recipe, block)
        parts.ffn(recipe, block, 256, "_shexp")
    recipe.breaks("experts swapped", SWAPPED)
    return recipe


def qwen35_wide() -> Recipe:
    """The same with states as wide as the real ones, 128, and no block of MTP."""
    recipe = _qwen35("qwen35", width=128, extra=0)
    for block in recipe.blocks():
        parts.ffn(recipe, block)
    return recipe


def lfm2() -> Recipe:
    """LFM2 1.2B: 16 layers, 2048 wide, 32 heads of 64 on 8, 10 short convolutions, tied."""
    recipe = _lfm2("lfm2", [0, 0, 2, 0, 0, 2, 0])
    for block in recipe.blocks():
        parts.ffn(recipe, block)
    return recipe


def lfm2moe() -> Recipe:
    """LFM2 8B-A1B: 24 layers, 2048 wide, 4 of 32 experts of 1792 after two dense layers, tied."""
    recipe = _lfm2("lfm2moe", [0, 0, 2, 0, 0, 2, 0])
    expert_keys(recipe, 16, 4, 256)
    recipe.keys |= {"leading_dense_block_count": 2, "expert_gating_func": 2}
    for layer, block in enumerate(recipe.blocks()):
        if layer < 2:
            parts.ffn(recipe, block)
            continue
        parts.router(recipe, block, 16)
        recipe.bias(f"{block}exp_probs_b", 16, spread=0.3)
        parts.experts(recipe, block, 16, 256)
    recipe.breaks("experts swapped", SWAPPED)
    recipe.breaks("softmax for the router", expert_gating_func=1)
    return recipe


def granitehybrid() -> Recipe:
    """Granite 4.0 H 1B: 40 layers, 1536 wide, 9 of 10 Mamba-2, attention without rotation, tied."""
    recipe = _granitehybrid()
    for block in recipe.blocks():
        parts.ffn(recipe, block)
    return recipe


def granitehybrid_moe() -> Recipe:
    """Granite 4.0 H Tiny: 40 layers, 1536 wide, 6 of 64 experts of 512 and a shared one of 1024."""
    recipe = _granitehybrid()
    recipe.ffn = 256
    recipe.keys |= {
        "expert_count": 16,
        "expert_used_count": 4,
        "expert_shared_feed_forward_length": 512,
    }
    for block in recipe.blocks():
        parts.router(recipe, block, 16)
        parts.experts(recipe, block, 16, 256)
        parts.ffn(recipe, block, 512, "_shexp")
    recipe.breaks("one expert more", expert_used_count=5)
    recipe.breaks("experts swapped", SWAPPED)
    return recipe


def _qwen35(
    arch: str, width: int = 64, key_heads: int = 2, value_heads: int = 4, extra: int = 1, *,
    layers: int = 8, heads: int = 4, kv_heads: int = 2, head_dim: int = 64, turned: int = 32,
) -> Recipe:  # fmt: skip
    """All but the feed-forward; `extra` blocks at the end are not run by an ordinary pass."""
    sizes = (layers + extra, heads, kv_heads, head_dim)
    recipe = Recipe(arch, *sizes, rope_dim=turned, rope_base=10000000.0)
    channels = (2 * key_heads + value_heads) * width
    recipe.keys |= {
        "rope.dimension_sections": _sections(turned),
        "ssm.conv_kernel": 4,
        "ssm.inner_size": value_heads * width,
        "ssm.state_size": width,
        "ssm.time_step_rank": value_heads,
        "ssm.group_count": key_heads,
        "full_attention_interval": 4,
    }
    if extra:
        recipe.keys["nextn_predict_layers"] = extra
    dim = recipe.dim
    for layer, block in enumerate(recipe.blocks()):
        recipe.norm(f"{block}attn_norm", dim)
        recipe.norm(f"{block}post_attention_norm", dim)
        if layer % 4 == 3 or layer >= layers:
            parts.attention(recipe, block, qk_norm=1.3)
            rows = 2 * recipe.heads * recipe.head_dim
            recipe.tensors[f"{block}attn_q.weight"] = Tensor((rows, dim), 1.0 / dim**0.5)
            continue
        recipe.matrix(f"{block}attn_qkv", channels, dim)
        recipe.matrix(f"{block}attn_gate", value_heads * width, dim)
        convolution(recipe, f"{block}ssm_conv1d", channels, 4)
        state_decay(recipe, block, value_heads)
        recipe.matrix(f"{block}ssm_beta", value_heads, dim)
        recipe.matrix(f"{block}ssm_alpha", value_heads, dim)
        recipe.norm(f"{block}ssm_norm", width)
        recipe.matrix(f"{block}ssm_out", dim, value_heads * width, gain=1.5)
    if extra:
        parts.multi_token_block(recipe, f"blk.{layers}.")
    # Value heads moved as if neighbours shared a key head.
    order = np.arange(value_heads).reshape(-1, key_heads).T.ravel()
    grouped = edits.rows_in(order, width, 2 * key_heads * width)
    recipe.breaks("value heads of other key heads", {"attn_qkv.weight": grouped})
    recipe.breaks("gates before queries", {"attn_q.weight": _gates_first(head_dim)})
    recipe.breaks("taps the other way", {"ssm_conv1d.weight": edits.reversed_columns})
    recipe.breaks("fewer pairs turned", rope__dimension_sections=[1, 1, 1, turned // 2 - 3])
    width_key = {"rope__dimension_count": head_dim, "rope__dimension_sections": _sections(head_dim)}
    recipe.breaks("all of a head turned", **width_key)
    whole = edits.other_rotation(head_dim, turned, neighbours=False)
    norms = ("attn_q_norm.weight", "attn_k_norm.weight", "attn_k.weight", "attn_q.weight")
    recipe.breaks("rotation's layout", dict.fromkeys(norms, whole))
    recipe.breaks("another base", rope__freq_base=recipe.rope_base / 5000)
    parts.ends(recipe, tied=0.25)
    return recipe


def _sections(turned: int) -> list[int]:
    """Pairs of so many dimensions that turn with time, height and width, and with nothing."""
    pairs = turned // 2
    return [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0]


def _gates_first(width: int) -> edits.Edit:
    def edit(values: edits.Array) -> edits.Array:
        heads = values.reshape(-1, 2, width, values.shape[-1])
        return heads[:, ::-1].reshape(values.shape)

    return edit


def _lfm2(arch: str, kv_heads: list[int]) -> Recipe:
    recipe = Recipe(arch, len(kv_heads), 4, kv_heads, 64, rope_base=1000000.0, epsilon=1e-5)
    recipe.keys["shortconv.l_cache"] = 3
    dim = recipe.dim
    for block, count in zip(recipe.blocks(), kv_heads, strict=True):
        recipe.norm(f"{block}attn_norm", dim)
        recipe.norm(f"{block}ffn_norm", dim)
        if count:
            parts.attention(recipe, block, kv_heads=count, qk_norm=1.3)
            continue
        recipe.matrix(f"{block}shortconv.in_proj", 3 * dim, dim, gain=1.2)
        convolution(recipe, f"{block}shortconv.conv", dim, 3)
        recipe.matrix(f"{block}shortconv.out_proj", dim, dim)
    gates = edits.rows_in(np.array([1, 0, 2]), dim)
    recipe.breaks("gates before and after swapped", {"in_proj.weight": gates})
    last = edits.rows_in(np.array([0, 2, 1]), dim)
    recipe.breaks("gate after and input swapped", {"in_proj.weight": last})
    recipe.breaks("taps the other way", {"conv.weight": edits.reversed_columns})
    recipe.breakages.append(edits.wrong_rotation(recipe, False))
    recipe.breaks("another base", rope__freq_base=recipe.rope_base / 50)
    parts.ends(recipe, tied=0.25, norm="token_embd_norm")
    return recipe


def _granitehybrid() -> Recipe:
    kv_heads = [0, 2, 0, 0, 2, 0]
    recipe = Recipe("granitehybrid", 6, 4, kv_heads, 64, epsilon=1e-5)
    groups, state, heads = 2, 32, 8
    inner = 2 * recipe.dim
    recipe.keys |= granite_scales(1 / 16)
    recipe.keys |= {
        "rope.scaling.finetuned": False,
        "ssm.conv_kernel": 4,
        "ssm.inner_size": inner,
        "ssm.state_size": state,
        "ssm.time_step_rank": heads,
        "ssm.group_count": groups,
    }
    channels = inner + 2 * groups * state
    for block, count in zip(recipe.blocks(), kv_heads, strict=True):
        recipe.norm(f"{block}attn_norm", recipe.dim)
        recipe.norm(f"{block}ffn_norm", recipe.dim)
        if count:
            parts.attention(recipe, block, kv_heads=count, peaked=2.0)
            continue
        recipe.matrix(f"{block}ssm_in", inner + channels + heads, recipe.dim)
        convolution(recipe, f"{block}ssm_conv1d", channels, 4)
        recipe.bias(f"{block}ssm_conv1d", channels)
        state_decay(recipe, block, heads, columns=True)
        recipe.given(f"{block}ssm_d", np.linspace(-1.0, 1.5, heads)[:, None])
        recipe.norm(f"{block}ssm_norm", groups, inner // groups)
        recipe.matrix(f"{block}ssm_out", recipe.dim, inner, gain=1.5)
    gate_and_input = edits.rows_in(np.array([1, 0]), inner)
    recipe.breaks("gate and input swapped", {"ssm_in.weight": gate_and_input})
    keys = edits.rows_in(np.array([1, 0]), groups * state, 2 * inner)
    recipe.breaks("keys and queries swapped", {"ssm_in.weight": keys})
    other = edits.rows_in(np.array([1, 0]), state, 2 * inner)
    recipe.breaks("keys of the other group", {"ssm_in.weight": other})
    recipe.breaks("taps the other way", {"ssm_conv1d.weight": edits.reversed_columns})
    recipe.breaks("no direct path", {"ssm_d": edits.zeros})
    recipe.breaks("attention turned", rope__scaling__finetuned=True)
    break_granite_scales(recipe)
    parts.ends(recipe, tied=0.02, norm_mean=40.0)
    return recipe


def convolution(recipe: Recipe, name: str, channels: int, taps: int) -> None:
    """Weights of a channel's last few values, none of which can be left out."""
    recipe.matrix(name, channels, taps, gain=1.2, exact=True)


def state_decay(recipe: Recipe, block: str, heads: int, *, columns: bool = False) -> None:
    """Rates at which heads forget, from within a few tokens to never, and the steps' biases."""
    rates = -np.geomspace(0.02, 2.0, heads)
    recipe.given(f"{block}ssm_a", rates[:, None] if columns else rates)
    recipe.bias(f"{block}ssm_dt", heads)
    ends = {".ssm_a": lambda values: values * np.float32(0.3)}
    if all(one.name != "slower decay" for one in recipe.breakages):
        recipe.breaks("slower decay", ends)
