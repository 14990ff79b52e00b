"""The random models that other tests run: the same bytes every time, and widths for every type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.random_models import MODELS, all_breakages, text, write

K_QUANT_COLUMNS = 256
NARROW = ("laurel_r.weight", "attn_kv_b.weight", "attn_k_b.weight", "attn_v_b.weight")
"""Ends of tensors whose rows are shorter: quantisers give them another type."""


@pytest.mark.parametrize("name", MODELS)
def test_rows_fit_every_type(name: str) -> None:
    recipe = MODELS[name]()
    matrices = {n: t for n, t in recipe.tensors.items() if len(t.shape) > 1 and not t.exact}
    assert matrices
    for tensor_name, tensor in matrices.items():
        narrow = tensor_name.endswith(NARROW)
        assert tensor.shape[-1] % (32 if narrow else K_QUANT_COLUMNS) == 0, tensor_name


@pytest.mark.parametrize("name", MODELS)
def test_every_edit_finds_its_tensor_and_changes_it(name: str) -> None:
    recipe = MODELS[name]()
    whole = dict(recipe.arrays())
    for breakage in recipe.breakages:
        assert breakage.keys or breakage.edits
        for end, edit in breakage.edits.items():
            found = [values for tensor, values in whole.items() if tensor.endswith(end)]
            assert found or breakage.name == "rotation's layout", (breakage.name, end)
            assert all(edit(values).shape == values.shape for values in found), breakage.name
            assert any(not np.array_equal(edit(values), values) for values in found) or not found


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_tensor_is_broken_once(name: str) -> None:
    recipe = MODELS[name]()
    ends = [end for breakage in all_breakages(recipe) for end in breakage.edits]
    spared = ("token_embd.weight", "output.weight", "rope_freqs.weight")
    extra = f"blk.{recipe.layers - 1}." if "nextn_predict_layers" in recipe.keys else "none"
    left = [
        tensor
        for tensor in recipe.tensors
        if not tensor.endswith((*ends, *spared)) and not tensor.startswith(extra)
    ]
    assert [one for one in left if "rope_factors_long" not in one and "ssm_d" not in one] == []


def test_a_file_is_the_same_every_time(tmp_path: Path) -> None:
    recipe = MODELS["lfm2"]()
    one, two = (write(recipe, tmp_path / f"{i}.gguf", type="Q8_0") for i in range(2))
    other = write(recipe, tmp_path / "other.gguf", type="Q8_0", seed=1)
    assert one.read_bytes() == two.read_bytes() != other.read_bytes()
    assert text(recipe) == text(recipe) != text(recipe, seed=1)


def test_a_broken_file_differs_where_it_is_broken_only() -> None:
    recipe = MODELS["gpt-oss"]()
    breakage = next(one for one in all_breakages(recipe) if one.name == "no attn_sinks.weight")
    whole, broken = dict(recipe.arrays()), dict(recipe.arrays(breakage=breakage))
    changed = [name for name in whole if not np.array_equal(whole[name], broken[name])]
    assert changed == [f"blk.{layer}.attn_sinks.weight" for layer in range(recipe.layers)]
