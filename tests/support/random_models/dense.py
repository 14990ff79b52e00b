"""Dense decoders of one kind of layer: Llama's and Qwen's, Granite, Phi, SmolLM, Mistral, OLMo."""

from __future__ import annotations

from tests.support.random_models import edits, parts
from tests.support.random_models.recipe import Recipe


def llama() -> Recipe:
    """Llama 3.2 1B: 16 layers, 2048 wide, 32 heads on 8, rotation stretched by factors."""
    recipe = Recipe("llama", 4, 8, 2, 32, epsilon=1e-5, rope_base=500000.0)
    _layers(recipe)
    recipe.given("rope_freqs.weight", parts.factors(16, 1.0, 8.0))
    recipe.breaks("no factors", {"rope_freqs.weight": edits.ones})
    return _finished(recipe, neighbours=True)


def qwen2() -> Recipe:
    """Qwen2.5 0.5B: 24 layers, 896 wide, 14 heads on 2, biases, tied."""
    recipe = Recipe("qwen2", 4, 4, 2, 64, rope_base=1000000.0)
    _layers(recipe, bias=True)
    return _finished(recipe, tied=True)


def qwen3(layers: int = 4, heads: int = 4, kv_heads: int = 2, ffn: int = 512) -> Recipe:
    """Qwen3 0.6B: 28 layers, 1024 wide, 16 heads of 128 on 8, norms of queries and keys, tied."""
    recipe = Recipe("qwen3", layers, heads, kv_heads, 128, ffn, rope_base=1000000.0)
    _layers(recipe, qk_norm=1.3)
    return _finished(recipe, tied=True)


def smollm3() -> Recipe:
    """SmolLM3 3B: 36 layers, 2048 wide, 16 heads of 128 on 4, every 4th layer not turned, tied."""
    recipe = Recipe("smollm3", 8, 4, 2, 64, rope_base=5000000.0)
    _layers(recipe)
    return _finished(recipe, tied=True, neighbours=True)


def mistral3() -> Recipe:
    """Mistral Small 3.1: 40 layers, 5120 wide, 32 heads of 128 on 8."""
    recipe = Recipe("mistral3", 4, 8, 2, 64, rope_base=1000000.0, epsilon=1e-5)
    _layers(recipe)
    return _finished(recipe, neighbours=True)


def ministral3() -> Recipe:
    """Ministral 3 3B: 26 layers, 3072 wide, 32 heads of 128 on 8, YaRN, hotter with position."""
    recipe = Recipe("mistral3", 4, 8, 2, 64, rope_base=1000000.0, epsilon=1e-5)
    stretched = {"yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0, "yarn_log_multiplier": 1.0}
    parts.yarn(recipe, factor=16.0, original=32, **stretched)
    recipe.keys["attention.temperature_scale"] = 0.4
    _layers(recipe)
    recipe.breaks("no temperature", attention__temperature_scale=None)
    recipe.breaks("not stretched", rope__scaling__type="none")
    recipe.breaks("stretched evenly", rope__scaling__type="linear")
    recipe.breaks("no log multiplier", rope__scaling__yarn_log_multiplier=None)
    recipe.breaks("another fast beta", rope__scaling__yarn_beta_slow=0.2)
    return _finished(recipe, tied=True, neighbours=True)


def phi3() -> Recipe:
    """Phi-4 mini: 32 layers, 3072 wide, 24 heads of 128 on 8, three quarters turned, LongRoPE."""
    recipe = Recipe("phi3", 4, 4, 2, 64, rope_dim=48, epsilon=1e-5)
    recipe.keys["rope.scaling.original_context_length"] = 256
    recipe.keys["rope.scaling.attn_factor"] = 1.19
    for block in recipe.blocks():
        recipe.norm(f"{block}attn_norm", recipe.dim)
        rows = (recipe.heads + 4) * recipe.head_dim
        recipe.matrix(f"{block}attn_qkv", rows, recipe.dim, gain=parts.PEAKED)
        recipe.matrix(f"{block}attn_output", recipe.dim, recipe.heads * recipe.head_dim, gain=1.5)
        recipe.norm(f"{block}ffn_norm", recipe.dim)
        recipe.matrix(f"{block}ffn_up", 2 * 512, recipe.dim, gain=1.3)
        recipe.matrix(f"{block}ffn_down", recipe.dim, 512, gain=1.5)
    recipe.given("rope_factors_long.weight", parts.factors(24, 1.0, 30.0))
    recipe.given("rope_factors_short.weight", parts.factors(24, 1.0, 3.0))
    recipe.breaks("no short factors", {"rope_factors_short.weight": edits.ones})
    recipe.breaks("no factor of attention", rope__scaling__attn_factor=None)
    recipe.breaks("gate and up swapped", {"ffn_up.weight": edits.halves_swapped})
    parts.ends(recipe, tied=0.25)
    return recipe


def olmo2() -> Recipe:
    """OLMo 3 7B: 32 layers, 4096 wide, norms after the sublayers only, 3 of 4 layers windowed."""
    recipe = Recipe("olmo2", 8, 4, 2, 64, rope_base=500000.0)
    recipe.keys["attention.sliding_window"] = 32
    parts.yarn(recipe, factor=8.0, original=64)
    for block in recipe.blocks():
        parts.attention(recipe, block)
        recipe.norm(f"{block}attn_q_norm", recipe.heads * recipe.head_dim, mean=1.3)
        recipe.norm(f"{block}attn_k_norm", 2 * recipe.head_dim, mean=1.3)
        recipe.norm(f"{block}post_attention_norm", recipe.dim, mean=0.5)
        parts.ffn(recipe, block)
        recipe.norm(f"{block}post_ffw_norm", recipe.dim, mean=0.5)
    windows(recipe, 32, default=4)
    recipe.breaks("not stretched", rope__scaling__type="none")
    whole = edits.other_rotation(64, 64, neighbours=False)
    ends = ("attn_q.weight", "attn_k.weight", "attn_q_norm.weight", "attn_k_norm.weight")
    recipe.breaks("rotation's layout", dict.fromkeys(ends, whole))
    recipe.breaks("another base", rope__freq_base=recipe.rope_base / 50)
    parts.ends(recipe)
    return recipe


def granite() -> Recipe:
    """Granite 3.3 2B: 40 layers, 2048 wide, 32 heads on 8, four scales, tied."""
    recipe = Recipe("granite", 4, 8, 2, 32, rope_base=10000000.0, epsilon=1e-5)
    recipe.keys |= granite_scales(1 / 16)
    _layers(recipe, peaked=2.0)
    break_granite_scales(recipe)
    recipe.breakages.append(edits.wrong_rotation(recipe, neighbours=True))
    recipe.breaks("another base", rope__freq_base=recipe.rope_base / 50)
    parts.ends(recipe, tied=0.02, norm_mean=40.0)
    return recipe


def granite_scales(attention: float) -> dict[str, float]:
    """Keys of Granite's four scales."""
    return {
        "embedding_scale": 6.0,
        "residual_scale": 0.4,
        "attention.scale": attention,
        "logit_scale": 3.0,
    }


def break_granite_scales(recipe: Recipe) -> None:
    recipe.breaks("no embedding scale", embedding_scale=1.0)
    recipe.breaks("no residual scale", residual_scale=1.0)
    recipe.breaks("scores by the head's width", attention__scale=None)
    recipe.breaks("no logit scale", logit_scale=1.0)


def windows(recipe: Recipe, width: int, default: int) -> None:
    """Breakages of a sliding window whose pattern is the architecture's default."""
    recipe.breaks("window one longer", attention__sliding_window=width + 1)
    recipe.breaks("window one shorter", attention__sliding_window=width - 1)
    recipe.breaks("every layer windowed", attention__sliding_window_pattern=0)
    recipe.breaks("another pattern", attention__sliding_window_pattern=default + 1)


def _layers(
    recipe: Recipe, *, bias: bool = False, qk_norm: float = 0.0, peaked: float = parts.PEAKED
) -> None:
    for block in recipe.blocks():
        recipe.norm(f"{block}attn_norm", recipe.dim)
        parts.attention(recipe, block, bias=bias, qk_norm=qk_norm, peaked=peaked)
        recipe.norm(f"{block}ffn_norm", recipe.dim)
        parts.ffn(recipe, block)


def _finished(recipe: Recipe, *, tied: bool = False, neighbours: bool = False) -> Recipe:
    recipe.breakages.append(edits.wrong_rotation(recipe, neighbours))
    recipe.breaks("another base", rope__freq_base=recipe.rope_base / 50)
    parts.ends(recipe, tied=0.25 if tied else 0.0)
    return recipe
