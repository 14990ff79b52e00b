"""Gemma 3n: four streams that predict and correct each other, low-rank paths, sparse gates."""

from __future__ import annotations

from tests.support.random_models import edits, parts
from tests.support.random_models.gemma import own_embedding, own_embeddings, sandwich
from tests.support.random_models.recipe import Recipe

STREAMS, LOW_RANK, OWN_WIDTH = 4, 64, 256
"""What llama.cpp takes for given, whatever the file says."""


def gemma3n() -> Recipe:
    """Gemma 3n E2B: 30 layers, 2048 wide, 8 heads of 256 on 2, 4 of 5 layers windowed, tied.

    llama.cpp takes for given that the first 20 layers have keys of their own and the first 10
    sparse gates; 25 layers are the fewest of which a full one shares keys.
    """
    recipe = Recipe("gemma3n", 25, 4, 2, 64, 256, rope_base=1000000.0, vocabulary="llama")
    recipe.keys["attention.sliding_window"] = 32
    gain = (1.0 / 64**0.5) ** 0.5
    dim = recipe.dim
    for block in recipe.blocks():
        parts.attention(recipe, block, peaked=1.0, qk_norm=gain)
        sandwich(recipe, block, 256, added=0.5)
        own_embedding(recipe, block, OWN_WIDTH)
        recipe.matrix(f"{block}laurel_l", LOW_RANK, dim)
        recipe.matrix(f"{block}laurel_r", dim, LOW_RANK)
        recipe.norm(f"{block}laurel_post_norm", dim, mean=0.7)
        recipe.matrix(f"{block}altup_correct_coef", STREAMS, STREAMS, gain=0.4, exact=True)
        recipe.norm(f"{block}altup_correct_scale", dim)
        # The router reads values of about one over the width.
        recipe.matrix(f"{block}altup_router", STREAMS, dim, gain=dim / 2)
        recipe.norm(f"{block}altup_router_norm", dim)
        recipe.matrix(f"{block}altup_predict_coef", STREAMS**2, STREAMS, gain=0.2, exact=True)
    own_embeddings(recipe, OWN_WIDTH)
    recipe.matrix("altup_proj", STREAMS - 1, dim, dim)
    recipe.matrix("altup_unembd_proj", STREAMS - 1, dim, dim)
    recipe.breaks("window one longer", attention__sliding_window=33)
    recipe.breaks("window one shorter", attention__sliding_window=31)
    recipe.breaks("one base for all", rope__freq_base_swa=1000000.0)
    swapped = {"altup_proj.weight": edits.first_two_swapped}
    recipe.breaks("streams swapped", swapped)
    recipe.breakages.append(edits.wrong_rotation(recipe, False))
    recipe.breaks("another base", rope__freq_base=recipe.rope_base / 50)
    parts.ends(recipe, tied=0.05, norm_mean=15.0)
    return recipe
