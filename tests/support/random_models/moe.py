"""Mixtures of experts on plain attention: Qwen's, gpt-oss, GLM 4.5 and Llama 4."""

from __future__ import annotations

from tests.support.random_models import edits, parts
from tests.support.random_models.dense import windows
from tests.support.random_models.recipe import Recipe, Tensor

SWAPPED = {"ffn_down_exps.weight": edits.first_two_swapped}


def qwen3moe(
    layers: int = 4, heads: int = 8, kv_heads: int = 2, head_dim: int = 64, experts: int = 16,
    active: int = 4, width: int = 256,
) -> Recipe:  # fmt: skip
    """Qwen3 30B-A3B: 48 layers, 2048 wide, 32 heads of 128 on 4, 8 of 128 experts of 768."""
    recipe = Recipe("qwen3moe", layers, heads, kv_heads, head_dim, rope_base=1000000.0)
    expert_keys(recipe, experts, active, width)
    for block in recipe.blocks():
        recipe.norm(f"{block}attn_norm", recipe.dim)
        parts.attention(recipe, block, qk_norm=1.3)
        recipe.norm(f"{block}ffn_norm", recipe.dim)
        parts.router(recipe, block, experts)
        parts.experts(recipe, block, experts, width)
    return _finished(recipe)


def qwen2moe() -> Recipe:
    """Qwen1.5 MoE A2.7B: 24 layers, 2048 wide, 4 of 60 experts of 1408, a gated shared one."""
    recipe = Recipe("qwen2moe", 4, 4, 4, 64, rope_base=1000000.0)
    expert_keys(recipe, 12, 4, 256)
    recipe.keys["expert_shared_feed_forward_length"] = 512
    for block in recipe.blocks():
        recipe.norm(f"{block}attn_norm", recipe.dim)
        parts.attention(recipe, block, bias=True)
        recipe.norm(f"{block}ffn_norm", recipe.dim)
        parts.router(recipe, block, 12)
        parts.experts(recipe, block, 12, 256)
        shared_gate(recipe, block)
        parts.ffn(recipe, block, 512, "_shexp")
    return _finished(recipe)


def gpt_oss(
    layers: int = 4, heads: int = 8, kv_heads: int = 2, experts: int = 12, width: int = 256,
    window: int = 32, stretch: float = 8.0, original: int = 128,
) -> Recipe:  # fmt: skip
    """gpt-oss 20B: 24 layers, 2880 wide, 64 heads of 64 on 8, 4 of 32 experts of 2880, sinks."""
    recipe = Recipe("gpt-oss", layers, heads, kv_heads, 64, rope_base=150000.0, epsilon=1e-5)
    expert_keys(recipe, experts, 4, width)
    recipe.keys["attention.sliding_window"] = window
    parts.yarn(recipe, factor=stretch, original=original)
    for block in recipe.blocks():
        recipe.norm(f"{block}attn_norm", recipe.dim)
        parts.attention(recipe, block, bias=True)
        recipe.bias(f"{block}attn_output", recipe.dim)
        recipe.norm(f"{block}attn_sinks", recipe.heads, mean=3.0)
        recipe.norm(f"{block}post_attention_norm", recipe.dim)
        parts.router(recipe, block, experts)
        recipe.bias(f"{block}ffn_gate_inp", experts, spread=1.0)
        # Gates and ups so large that the limits of seven cut one in twelve.
        parts.experts(recipe, block, experts, width, bias=True, gains=(4.0, 4.0, 0.2))
    windows(recipe, window, default=2)
    recipe.breaks("no sinks", {"attn_sinks.weight": lambda sinks: sinks * 0 - 1e4})
    recipe.breaks("sinks of other heads", {"attn_sinks.weight": edits.first_two_swapped})
    recipe.breaks("not stretched", rope__scaling__type="none")
    recipe.breaks("stretched evenly", rope__scaling__type="linear")
    return _finished(recipe)


def glm4moe() -> Recipe:
    """GLM 4.5 Air: 46 layers and one of MTP, 4096 wide, 96 heads of 128 on 8, half turned."""
    recipe = Recipe("glm4moe", 5, 8, 2, 64, rope_dim=32, rope_base=1000000.0, epsilon=1e-5)
    expert_keys(recipe, 16, 4, 256)
    recipe.keys |= {
        "expert_shared_count": 1,
        "leading_dense_block_count": 1,
        "expert_weights_scale": 1.5,
        "expert_weights_norm": True,
        "expert_gating_func": 2,
        "nextn_predict_layers": 1,
    }
    for layer, block in enumerate(recipe.blocks()):
        recipe.norm(f"{block}attn_norm", recipe.dim)
        parts.attention(recipe, block, bias=True, qk_norm=1.3)
        recipe.norm(f"{block}post_attention_norm", recipe.dim)
        if layer < 1:
            parts.ffn(recipe, block)
            continue
        parts.router(recipe, block, 16)
        recipe.bias(f"{block}exp_probs_b", 16, spread=0.3)
        parts.experts(recipe, block, 16, 256)
        parts.ffn(recipe, block, 256, "_shexp")
    parts.multi_token_block(recipe, "blk.4.")
    break_routing(recipe)
    recipe.breaks("softmax for the router", expert_gating_func=1)
    return _finished(recipe)


def llama4() -> Recipe:
    """Llama 4 Maverick: 48 layers, 5120 wide, 40 heads of 128 on 8, every 2nd layer experts.

    llama.cpp cuts attention into chunks of 8,192 whatever the file says.
    """
    recipe = Recipe("llama4", 8, 8, 2, 32, rope_base=500000.0, epsilon=1e-5, context=16384)
    recipe.far_tokens = 8192 + 64
    expert_keys(recipe, 8, 1, 256)
    recipe.keys["interleave_moe_layer_step"] = 2
    for layer, block in enumerate(recipe.blocks()):
        recipe.norm(f"{block}attn_norm", recipe.dim)
        parts.attention(recipe, block)
        recipe.norm(f"{block}ffn_norm", recipe.dim)
        if layer % 2 == 0:
            parts.ffn(recipe, block)
            continue
        parts.router(recipe, block, 8, gain=1.5)
        parts.experts(recipe, block, 8, 256)
        parts.ffn(recipe, block, 256, "_shexp")
    recipe.given("rope_freqs.weight", parts.factors(16, 1.0, 8.0))
    recipe.breaks("no factors", {"rope_freqs.weight": edits.ones})
    return _finished(recipe, neighbours=True)


def expert_keys(recipe: Recipe, count: int, used: int, width: int) -> None:
    """Keys of the experts, and the breakages of their number."""
    recipe.keys |= {
        "expert_count": count,
        "expert_used_count": used,
        "expert_feed_forward_length": width,
    }
    recipe.breaks("one expert more", expert_used_count=used + 1)


def shared_gate(recipe: Recipe, block: str) -> None:
    """The row whose product decides how much the shared expert adds."""
    row = Tensor((recipe.dim,), 2.0 / recipe.dim**0.5, exact=True)
    recipe.add(f"{block}ffn_gate_inp_shexp.weight", row)


def break_routing(recipe: Recipe) -> None:
    """Breakages of a router that is scaled, normalised and biased."""
    recipe.breaks("weights not scaled", expert_weights_scale=1.0)
    recipe.breaks("weights not normalised", expert_weights_norm=False)


def _finished(recipe: Recipe, *, neighbours: bool = False) -> Recipe:
    recipe.breaks("experts swapped", SWAPPED)
    recipe.breakages.append(edits.wrong_rotation(recipe, neighbours))
    recipe.breaks("another base", rope__freq_base=recipe.rope_base / 50)
    parts.ends(recipe)
    return recipe
