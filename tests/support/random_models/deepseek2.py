"""DeepSeek V2: keys and values from a narrow common row, heads half turned and half not."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.support.random_models import edits, parts
from tests.support.random_models.moe import SWAPPED, expert_keys
from tests.support.random_models.recipe import Recipe

RANK = 256


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of attention, and of layers of experts."""

    layers: int = 4
    heads: int = 8
    narrow: int = 128
    """Of the row that keys and values come from; and of a head, what does not turn, and does."""
    still: int = 32
    turned: int = 32
    value: int = 32
    experts: int = 16
    active: int = 4
    width: int = 256
    ffn: int = 512


SMALL = Sizes()
LITE = Sizes(27, 16, 512, 128, 64, 128, experts=64, active=6, width=1408, ffn=10944)


def deepseek2(rank: int = 0, sizes: Sizes = SMALL) -> Recipe:
    """DeepSeek V2 Lite: 27 layers, 2048 wide, 16 heads of 128 and 64 turned, 6 of 64 experts.

    As converters write it now: one head of the narrow row's width, and each head's two matrices.
    """
    recipe = _deepseek2(1, sizes.narrow + sizes.turned, sizes.narrow, rank, sizes)
    recipe.keys |= {
        "attention.key_length_mla": sizes.still + sizes.turned,
        "attention.value_length_mla": sizes.value,
    }
    for block in recipe.blocks():
        recipe.matrix(f"{block}attn_k_b", sizes.heads, sizes.narrow, sizes.still, gain=1.5)
        recipe.matrix(f"{block}attn_v_b", sizes.heads, sizes.value, sizes.narrow)
    swapped = {"attn_k_b.weight": edits.first_two_swapped}
    recipe.breaks("keys of other heads", swapped)
    return recipe


def deepseek2_joined() -> Recipe:
    """The same as converters wrote it first: the matrices of all heads in one."""
    own = SMALL
    recipe = _deepseek2(own.heads, own.still + own.turned, own.value)
    for block in recipe.blocks():
        rows = own.heads * (own.still + own.value)
        recipe.matrix(f"{block}attn_kv_b", rows, own.narrow, gain=1.3)
    return recipe


def deepseek2_ranked() -> Recipe:
    """DeepSeek V3: 61 layers, 7168 wide, 128 heads, queries from a narrow row of their own, experts
    scored by sigmoids with a bias for the choice.
    """
    recipe = deepseek2(RANK)
    recipe.keys |= {
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "attention.temperature_scale": 0.3,
        "attention.temperature_length": 24,
    }
    for block in list(recipe.blocks())[1:]:
        recipe.bias(f"{block}exp_probs_b", 16, spread=0.3)
        for part in ("gate", "up", "down"):  # chosen by sigmoids, all weigh much
            name = f"{block}ffn_{part}_exps.weight"
            recipe.tensors[name] = replace(recipe.tensors[name], alike=0.98)
    recipe.breakages = [each for each in recipe.breakages if each.name != "weights normalised"]
    recipe.breaks("weights not normalised", expert_weights_norm=False)
    recipe.breaks("scores softmaxed", expert_gating_func=1)
    recipe.breaks("no temperature", attention__temperature_scale=0.0)
    return recipe


def _deepseek2(
    kv_heads: int, key_width: int, value_width: int, rank: int = 0, sizes: Sizes = SMALL
) -> Recipe:
    own = (sizes.layers, sizes.heads, kv_heads, key_width, sizes.ffn)
    recipe = Recipe("deepseek2", *own, rope_dim=sizes.turned)
    recipe.keys |= {
        "attention.value_length": value_width,
        "attention.kv_lora_rank": sizes.narrow,
        # llama.cpp reads it unless there are as many layers as in a Lite.
        "attention.q_lora_rank": rank,
        "leading_dense_block_count": 1,
        "expert_shared_count": 2,
        "expert_weights_scale": 1.5,
    }
    parts.yarn(recipe, factor=8.0, original=64, yarn_log_multiplier=0.0707)
    expert_keys(recipe, sizes.experts, sizes.active, sizes.width)
    dim, heads = recipe.dim, sizes.heads
    for layer, block in enumerate(recipe.blocks()):
        recipe.norm(f"{block}attn_norm", dim)
        if rank:
            recipe.matrix(f"{block}attn_q_a", rank, dim)
            recipe.norm(f"{block}attn_q_a_norm", rank)
        queries = f"{block}attn_q_b" if rank else f"{block}attn_q"
        recipe.matrix(queries, heads * (sizes.still + sizes.turned), rank or dim, gain=1.25)
        recipe.matrix(f"{block}attn_kv_a_mqa", sizes.narrow + sizes.turned, dim, gain=1.25)
        recipe.norm(f"{block}attn_kv_a_norm", sizes.narrow)
        recipe.matrix(f"{block}attn_output", dim, heads * sizes.value, gain=1.5)
        recipe.norm(f"{block}ffn_norm", dim)
        if layer < 1:
            parts.ffn(recipe, block)
            continue
        parts.router(recipe, block, sizes.experts)
        parts.experts(recipe, block, sizes.experts, sizes.width)
        parts.ffn(recipe, block, 2 * sizes.width, "_shexp")
    recipe.breaks("experts swapped", SWAPPED)
    recipe.breaks("weights not scaled", expert_weights_scale=1.0)
    recipe.breaks("weights normalised", expert_weights_norm=True)
    recipe.breaks("not stretched", rope__scaling__type="none")
    recipe.breaks("no log multiplier", rope__scaling__yarn_log_multiplier=None)
    recipe.breaks("another base", rope__freq_base=recipe.rope_base / 50)
    parts.ends(recipe)
    return recipe
