"""DeepSeek V2: keys and values from a narrow common row, heads half turned and half not."""

from __future__ import annotations

from dataclasses import replace

from tests.support.random_models import edits, parts
from tests.support.random_models.moe import SWAPPED, expert_keys
from tests.support.random_models.recipe import Recipe

NARROW, STILL, TURNED, VALUE = 128, 32, 32, 32
RANK = 256
HEADS = 8


def deepseek2(rank: int = 0) -> Recipe:
    """DeepSeek V2 Lite: 27 layers, 2048 wide, 16 heads of 128 and 64 turned, 6 of 64 experts.

    As converters write it now: one head of the narrow row's width, and each head's two matrices.
    """
    recipe = _deepseek2(1, NARROW + TURNED, NARROW, rank)
    recipe.keys |= {
        "attention.key_length_mla": STILL + TURNED,
        "attention.value_length_mla": VALUE,
    }
    for block in recipe.blocks():
        recipe.matrix(f"{block}attn_k_b", HEADS, NARROW, STILL, gain=1.5)
        recipe.matrix(f"{block}attn_v_b", HEADS, VALUE, NARROW)
    swapped = {"attn_k_b.weight": edits.first_two_swapped}
    recipe.breaks("keys of other heads", swapped)
    return recipe


def deepseek2_joined() -> Recipe:
    """The same as converters wrote it first: the matrices of all heads in one."""
    recipe = _deepseek2(HEADS, STILL + TURNED, VALUE)
    for block in recipe.blocks():
        recipe.matrix(f"{block}attn_kv_b", HEADS * (STILL + VALUE), NARROW, gain=1.3)
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
            recipe.tensors[name] = replace(recipe.tensors[name], alike=0.95)
    recipe.breakages = [each for each in recipe.breakages if each.name != "weights normalised"]
    recipe.breaks("weights not normalised", expert_weights_norm=False)
    recipe.breaks("scores softmaxed", expert_gating_func=1)
    recipe.breaks("no temperature", attention__temperature_scale=0.0)
    return recipe


def _deepseek2(kv_heads: int, key_width: int, value_width: int, rank: int = 0) -> Recipe:
    recipe = Recipe("deepseek2", 4, HEADS, kv_heads, key_width, rope_dim=TURNED)
    recipe.keys |= {
        "attention.value_length": value_width,
        "attention.kv_lora_rank": NARROW,
        # llama.cpp reads it unless there are as many layers as in a Lite.
        "attention.q_lora_rank": rank,
        "leading_dense_block_count": 1,
        "expert_shared_count": 2,
        "expert_weights_scale": 1.5,
    }
    parts.yarn(recipe, factor=8.0, original=64, yarn_log_multiplier=0.0707)
    expert_keys(recipe, 16, 4, 256)
    dim = recipe.dim
    for layer, block in enumerate(recipe.blocks()):
        recipe.norm(f"{block}attn_norm", dim)
        if rank:
            recipe.matrix(f"{block}attn_q_a", rank, dim)
            recipe.norm(f"{block}attn_q_a_norm", rank)
        queries = f"{block}attn_q_b" if rank else f"{block}attn_q"
        recipe.matrix(queries, HEADS * (STILL + TURNED), rank or dim, gain=1.25)
        recipe.matrix(f"{block}attn_kv_a_mqa", NARROW + TURNED, dim, gain=1.25)
        recipe.norm(f"{block}attn_kv_a_norm", NARROW)
        recipe.matrix(f"{block}attn_output", dim, HEADS * VALUE, gain=1.5)
        recipe.norm(f"{block}ffn_norm", dim)
        if layer < 1:
            parts.ffn(recipe, block)
            continue
        parts.router(recipe, block, 16)
        parts.experts(recipe, block, 16, 256)
        parts.ffn(recipe, block, 512, "_shexp")
    recipe.breaks("experts swapped", SWAPPED)
    recipe.breaks("weights not scaled", expert_weights_scale=1.0)
    recipe.breaks("weights normalised", expert_weights_norm=True)
    recipe.breaks("not stretched", rope__scaling__type="none")
    recipe.breaks("no log multiplier", rope__scaling__yarn_log_multiplier=None)
    recipe.breaks("another base", rope__freq_base=recipe.rope_base / 50)
    parts.ends(recipe)
    return recipe
