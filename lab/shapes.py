"""Write random files of the shapes that people run, for time and bytes, never for acceptance.

    python -m lab.shapes OUT.gguf [--shape qwen3-30b-a3b|gpt-oss-20b|qwen3-4b|qwen35-4b]
        [--layers N]

Matrices are random but valid blocks, repeated every few megabytes, in types that published files
have: Q4_K, with gpt-oss' experts in MXFP4 and the rest of it in Q8_0. `--layers` writes the first N
layers of the shape only: what a layer takes is the same, and a file of 20B parameters fits a
machine that has no room for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

from lab.harness import Asked, Rows, Script, option
from tests.support.gguf_models import SPREADS, add_field, gpt2_vocabulary, random_blocks
from tests.support.random_models import parts
from tests.support.random_models.recipe import Recipe, Tensor

_CHUNK_ROWS = 512
"""Rows of a matrix that are drawn; the rest repeat them."""
script = Script(__doc__)


def _plain(arch: str, layers: int, heads: int, kv_heads: int, width: int, dim: int) -> Recipe:
    return Recipe(arch, layers, heads, kv_heads, width, dim=dim, rope_base=1e6, context=8192)


def _experts(recipe: Recipe, count: int, used: int, width: int) -> None:
    recipe.keys |= {
        "expert_count": count,
        "expert_used_count": used,
        "expert_feed_forward_length": width,
    }


def qwen3_30b_a3b(layers: int) -> Recipe:
    """Qwen3 30B-A3B: 48 layers."""
    recipe = _plain("qwen3moe", layers, 32, 4, 128, 2048)
    _experts(recipe, 128, 8, 768)
    for block in recipe.blocks():
        recipe.norm(f"{block}attn_norm", recipe.dim)
        parts.attention(recipe, block, qk_norm=1.0)
        recipe.norm(f"{block}ffn_norm", recipe.dim)
        parts.router(recipe, block, 128)
        parts.experts(recipe, block, 128, 768)
    return recipe


def gpt_oss_20b(layers: int) -> Recipe:
    """gpt-oss 20B: 24 layers."""
    recipe = _plain("gpt-oss", layers, 64, 8, 64, 2880)
    _experts(recipe, 32, 4, 2880)
    recipe.keys["attention.sliding_window"] = 128
    parts.yarn(recipe, factor=32.0, original=4096)
    for block in recipe.blocks():
        recipe.norm(f"{block}attn_norm", recipe.dim)
        parts.attention(recipe, block, bias=True)
        recipe.bias(f"{block}attn_output", recipe.dim)
        recipe.norm(f"{block}attn_sinks", recipe.heads, mean=3.0)
        recipe.norm(f"{block}post_attention_norm", recipe.dim)
        parts.router(recipe, block, 32)
        recipe.bias(f"{block}ffn_gate_inp", 32)
        parts.experts(recipe, block, 32, 2880, bias=True)
    return recipe


def qwen3_4b(layers: int) -> Recipe:
    """Qwen3 4B: 36 layers, embedding and head tied."""
    recipe = _plain("qwen3", layers, 32, 8, 128, 2560)
    recipe.ffn = 9728
    for block in recipe.blocks():
        recipe.norm(f"{block}attn_norm", recipe.dim)
        parts.attention(recipe, block, qk_norm=1.0)
        recipe.norm(f"{block}ffn_norm", recipe.dim)
        parts.ffn(recipe, block)
    return recipe


def qwen35_4b(layers: int) -> Recipe:
    """Qwen3.5 4B without its block of MTP: 32 layers, 3 of 4 gated delta nets, tied."""
    recipe = _plain("qwen35", layers, 16, 4, 256, 2560)
    recipe.ffn, recipe.rope_dim = 9216, 64
    inner, channels = 32 * 128, (2 * 16 + 32) * 128
    recipe.keys |= {
        "rope.dimension_sections": [11, 11, 10, 0],
        "ssm.conv_kernel": 4,
        "ssm.inner_size": inner,
        "ssm.state_size": 128,
        "ssm.time_step_rank": 32,
        "ssm.group_count": 16,
        "full_attention_interval": 4,
    }
    dim = recipe.dim
    for layer, block in enumerate(recipe.blocks()):
        recipe.norm(f"{block}attn_norm", dim)
        recipe.norm(f"{block}post_attention_norm", dim)
        parts.ffn(recipe, block)
        if layer % 4 == 3:
            parts.attention(recipe, block, qk_norm=1.0)
            rows = 2 * recipe.heads * recipe.head_dim
            recipe.tensors[f"{block}attn_q.weight"] = Tensor((rows, dim), 1.0 / dim**0.5)
            continue
        recipe.matrix(f"{block}attn_qkv", channels, dim)
        recipe.matrix(f"{block}attn_gate", inner, dim)
        recipe.matrix(f"{block}ssm_conv1d", channels, 4, exact=True)
        recipe.add(f"{block}ssm_dt.bias", Tensor((32,), 0.5, 0.0, exact=True))
        recipe.add(f"{block}ssm_a", Tensor((32,), 0.1, -0.5, exact=True))
        recipe.matrix(f"{block}ssm_beta", 32, dim)
        recipe.matrix(f"{block}ssm_alpha", 32, dim)
        recipe.norm(f"{block}ssm_norm", 128)
        recipe.matrix(f"{block}ssm_out", dim, inner)
    return recipe


SHAPES: dict[str, tuple[Callable[[int], Recipe], int, int, bool, str]] = {
    "qwen3-30b-a3b": (qwen3_30b_a3b, 48, 151_936, False, "Q4_K"),
    "gpt-oss-20b": (gpt_oss_20b, 24, 201_088, False, "Q8_0"),
    "qwen3-4b": (qwen3_4b, 36, 151_936, True, "Q4_K"),
    "qwen35-4b": (qwen35_4b, 32, 248_320, True, "Q4_K"),
}
"""What writes a shape's layers, how many it has, its vocabulary, whether embedding and head are
tied, and the type of its matrices.
"""


@script.command(
    option("out", type=Path),
    option("--shape", choices=list(SHAPES), default="qwen3-4b"),
    option("--layers", type=int, help="all of the shape's if left out"),
)
def write(asked: Asked) -> Rows:
    """Write one file."""
    make, layers, vocab, tied, kind = SHAPES[asked.shape]
    recipe = make(asked.layers or layers)
    recipe.matrix("token_embd", vocab, recipe.dim)
    recipe.norm("output_norm", recipe.dim)
    if not tied:
        recipe.matrix("output", vocab, recipe.dim)
    keys = recipe.metadata() | gpt2_vocabulary(vocab) | {f"{recipe.arch}.vocab_size": vocab}
    writer = GGUFWriter(asked.out, recipe.arch)
    for key, value in keys.items():
        add_field(writer, key, value)
    kinds = {name: _kind(name, tensor, kind) for name, tensor in recipe.tensors.items()}
    for name, tensor in recipe.tensors.items():
        block_size, block_bytes = GGML_QUANT_SIZES[kinds[name]]
        num_bytes = int(np.prod(tensor.shape)) // block_size * block_bytes
        writer.add_tensor_info(name, tensor.shape, np.dtype(np.float32), num_bytes, kinds[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(0)
    for name, tensor in recipe.tensors.items():
        writer.write_tensor_data(_data(rng, tensor, kinds[name]))
    writer.close()
    yield {"file": asked.out.name, "MB": round(asked.out.stat().st_size / 1e6)}


def _kind(name: str, tensor: Tensor, kind: str) -> GGMLQuantizationType:
    if tensor.exact or len(tensor.shape) < 2:
        return GGMLQuantizationType.F32
    if kind == "Q8_0" and "_exps" in name:
        return GGMLQuantizationType.MXFP4
    return GGMLQuantizationType[kind]


def _data(
    rng: np.random.Generator, tensor: Tensor, kind: GGMLQuantizationType
) -> NDArray[np.generic]:
    """The tensor's bytes: noise, of which a matrix has as much as a few hundred rows."""
    if kind == GGMLQuantizationType.F32:
        return replace(tensor, alike=0.0).draw(rng)
    columns = tensor.shape[-1]
    rows = int(np.prod(tensor.shape[:-1]))
    drawn = np.concatenate(list(_blocks(rng, min(rows, _CHUNK_ROWS), columns, kind)))
    return np.resize(drawn, (rows, drawn.shape[1]))


def _blocks(
    rng: np.random.Generator, rows: int, columns: int, kind: GGMLQuantizationType
) -> Iterator[NDArray[np.uint8]]:
    if kind.name in SPREADS:
        yield random_blocks(rng, (rows, columns), kind.name)
        return
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (rows * columns // block_size, block_bytes), dtype=np.uint8)
    if kind.name == "MXFP4":
        raw[:, 0] = 119  # 2**-8, and half of that in each value
    else:
        raw[:, :2] = np.frombuffer(np.float16(0.6 / columns**0.5 / 74).tobytes(), np.uint8)
    yield raw.reshape(rows, -1)


if __name__ == "__main__":
    script.run()
