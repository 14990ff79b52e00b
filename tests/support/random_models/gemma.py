"""Gemma 2, 3 and 4: norms on both sides of every sublayer, windows, GELU."""

from __future__ import annotations

from tests.support.random_models import edits, parts
from tests.support.random_models.dense import windows
from tests.support.random_models.recipe import Recipe

EMBEDDED, ADDED = 0.02, 0.8
"""Spread of the embedding, which is 0.3 when scaled, and mean gain of the norms after sublayers."""
OWN_WIDTH = 256
"""Of the embedding of its own that every layer has."""


def gemma2() -> Recipe:
    """Gemma 2 2B: 26 layers, 2304 wide, 8 heads of 256 on 4, window 4096, both soft caps, tied."""
    recipe = Recipe("gemma2", 4, 4, 2, 64, vocabulary="llama")
    recipe.keys |= {
        "attention.sliding_window": 32,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 10.0,
    }
    for block in recipe.blocks():
        parts.attention(recipe, block, peaked=3.0)
        sandwich(recipe, block)
    windows(recipe, 32, default=2)
    recipe.breaks("scores hardly capped", attn_logit_softcapping=500.0)
    recipe.breaks("logits hardly capped", final_logit_softcapping=1000.0)
    return _finished(recipe)


def gemma3() -> Recipe:
    """Gemma 3 4B: 34 layers, 2560 wide, 8 heads of 256 on 4, 5 of 6 layers windowed, tied."""
    recipe = Recipe("gemma3", 12, 4, 2, 64, rope_base=1000000.0, vocabulary="llama")
    recipe.keys |= {
        "attention.sliding_window": 32,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
    }
    for block in recipe.blocks():
        parts.attention(recipe, block, qk_norm=1.3)
        sandwich(recipe, block)
    windows(recipe, 32, default=6)
    recipe.breaks("full layers not scaled", rope__scaling__factor=1.0)
    recipe.breaks("one base for all", rope__freq_base_swa=1000000.0)
    return _finished(recipe)


def gemma4() -> Recipe:
    """Gemma 4 E2B: 35 layers, 1536 wide, 8 heads on 1, 20 layers that share keys, own embeddings.

    Heads of 512 on full layers and of 256 on windowed ones; feed-forward twice as wide where keys
    are shared.
    """
    recipe = Recipe("gemma4", 9, 4, 1, 128, [256] * 6 + [512] * 3, vocabulary="llama")
    recipe.rope_base = 1000000.0
    _gemma4_keys(recipe, period=3)
    recipe.keys |= {"attention.shared_kv_layers": 3, "embedding_length_per_layer_input": OWN_WIDTH}
    for layer, block in enumerate(recipe.blocks()):
        assert isinstance(recipe.ffn, list)
        _gemma4_attention(recipe, block, layer, own=layer < 6, values=True)
        sandwich(recipe, block, recipe.ffn[layer])
        own_embedding(recipe, block, OWN_WIDTH)
        recipe.given(f"{block}layer_output_scale.weight", [0.8 + 0.05 * layer])
    own_embeddings(recipe, OWN_WIDTH)
    return _finished(recipe, width=None)


def gemma4_moe() -> Recipe:
    """Gemma 4 26B-A4B: 30 layers, 2816 wide, 16 heads on 8 or 2, 8 of 128 experts of 704.

    Experts stand beside a dense feed-forward, and values are the keys on full layers.
    """
    kv_heads = [2, 2, 1] * 2
    recipe = Recipe("gemma4", 6, 4, kv_heads, 128, 256, vocabulary="llama")
    recipe.rope_base = 1000000.0
    _gemma4_keys(recipe, period=3)
    recipe.keys |= {
        "attention.shared_kv_layers": 0,
        "embedding_length_per_layer_input": 0,
        "expert_count": 16,
        "expert_used_count": 4,
        "expert_feed_forward_length": 256,
    }
    dim = recipe.dim
    for layer, block in enumerate(recipe.blocks()):
        full = layer % 3 == 2
        _gemma4_attention(recipe, block, layer, own=True, values=not full)
        sandwich(recipe, block, 256)
        # The router reads values of about one over the root of the width.
        parts.router(recipe, block, 16, gain=3.0 * dim**0.5)
        recipe.gains(f"{block}ffn_gate_inp.scale", dim)
        recipe.norm(f"{block}pre_ffw_norm_2", dim)
        recipe.norm(f"{block}post_ffw_norm_1", dim)
        recipe.norm(f"{block}post_ffw_norm_2", dim)
        parts.experts(recipe, block, 16, 256, fused=True)
        recipe.gains(f"{block}ffn_down_exps.scale", 16)
        recipe.given(f"{block}layer_output_scale.weight", [0.8 + 0.05 * layer])
    recipe.breaks("one expert more", expert_used_count=5)
    recipe.breaks("experts swapped", {"ffn_down_exps.weight": edits.first_two_swapped})
    recipe.breaks("gates and ups swapped", {"gate_up_exps.weight": edits.gates_and_ups_swapped})
    return _finished(recipe, width=None)


def sandwich(recipe: Recipe, block: str, width: int = 512, added: float = ADDED) -> None:
    """Four norms and the feed-forward between the last two; `added` is the last one's mean gain."""
    recipe.norm(f"{block}attn_norm", recipe.dim)
    recipe.norm(f"{block}post_attention_norm", recipe.dim, mean=ADDED)
    recipe.norm(f"{block}ffn_norm", recipe.dim)
    parts.ffn(recipe, block, width)
    recipe.norm(f"{block}post_ffw_norm", recipe.dim, mean=added)


def own_embedding(recipe: Recipe, block: str, width: int) -> None:
    """A layer's use of the embedding of its own that every token has."""
    recipe.matrix(f"{block}inp_gate", width, recipe.dim, gain=0.4)
    recipe.matrix(f"{block}proj", recipe.dim, width)
    recipe.norm(f"{block}post_norm", recipe.dim, mean=ADDED)


def own_embeddings(recipe: Recipe, width: int) -> None:
    """Every layer's embedding of every token, and what makes it from the common one."""
    rows = recipe.layers * width
    recipe.matrix("per_layer_token_embd", 512, rows, gain=(rows / width) ** 0.5)
    recipe.matrix("per_layer_model_proj", rows, recipe.dim, gain=1.0)
    recipe.norm("per_layer_proj_norm", width)


def _gemma4_keys(recipe: Recipe, period: int) -> None:
    windowed = [layer % period != period - 1 for layer in range(recipe.layers)]
    recipe.keys |= {
        "attention.sliding_window": 32,
        "attention.sliding_window_pattern": windowed,
        "attention.key_length_swa": 64,
        "attention.value_length_swa": 64,
        "rope.dimension_count_swa": 64,
        "rope.freq_base_swa": 10000.0,
        "final_logit_softcapping": 10.0,
    }
    # A quarter of a head is turned: the other pairs' frequencies are divided away.
    recipe.given("rope_freqs.weight", [1.0] * 16 + [1e30] * 48)
    recipe.breaks("window one longer", attention__sliding_window=33)
    recipe.breaks("window one shorter", attention__sliding_window=31)
    recipe.breaks("one base for all", rope__freq_base_swa=1000000.0)
    recipe.breaks("all of a head turned", {"rope_freqs.weight": edits.ones})
    recipe.breaks("logits hardly capped", final_logit_softcapping=1000.0)
    recipe.breaks("no scale of layers", {"layer_output_scale.weight": edits.ones})


def _gemma4_attention(recipe: Recipe, block: str, layer: int, *, own: bool, values: bool) -> None:
    """Scores are not scaled, so the norms' gains are small; keys only where they are not shared."""
    period = 3
    width = 128 if layer % period == period - 1 else 64
    kv_heads = recipe.kv_heads if isinstance(recipe.kv_heads, int) else recipe.kv_heads[layer]
    dim = recipe.dim
    gain = (1.3 / width**0.5) ** 0.5
    recipe.matrix(f"{block}attn_q", recipe.heads * width, dim)
    recipe.norm(f"{block}attn_q_norm", width, mean=gain)
    if own:
        recipe.matrix(f"{block}attn_k", kv_heads * width, dim)
        recipe.norm(f"{block}attn_k_norm", width, mean=gain)
        if values:
            recipe.matrix(f"{block}attn_v", kv_heads * width, dim)
    recipe.matrix(f"{block}attn_output", dim, recipe.heads * width)


def _finished(recipe: Recipe, width: int | None = 64) -> Recipe:
    if width is not None:
        recipe.breakages.append(edits.wrong_rotation(recipe, False))
    recipe.breaks("another base", rope__freq_base=recipe.rope_base / 50)
    parts.ends(recipe, tied=EMBEDDED, norm_mean=40.0)
    return recipe
