"""Write random files of the shapes that people run, for time and bytes, never for acceptance.

    python -m lab.shapes OUT.gguf [--shape qwen3-30b-a3b|gpt-oss-20b|qwen3-4b|qwen3-8b|
        qwen35-4b|deepseek2-lite] [--layers N]

Matrices are random but valid blocks, repeated every few megabytes, in types that published files
have: Q4_K, or Q8_0 where rows are no whole blocks of that; gpt-oss' experts in MXFP4 and the rest
of it in Q8_0. Layers are those of the recipes of `tests/support/random_models`, at real sizes.
`--layers` writes the first N layers of the shape only: what a layer takes is the same, and a file
of 20B parameters fits a machine that has no room for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

from lab.harness import Asked, Rows, Script, option
from tests.support.gguf_models import SPREADS, add_field, gpt2_vocabulary, random_blocks
from tests.support.random_models import deepseek2, dense, hybrid, moe
from tests.support.random_models.recipe import WIDTH, Recipe, Tensor

_CHUNK_ROWS = 512
"""Rows of a matrix that are drawn; the rest repeat them."""
script = Script(__doc__)


@dataclass(frozen=True, slots=True)
class Shape:
    """A recipe at real sizes."""

    make: Callable[[int], Recipe]
    """Takes the number of layers."""
    layers: int
    dim: int
    vocab: int
    tied: bool
    """Embedding and head are one."""
    kind: str
    """Type of its matrices."""


def _deepseek2_lite(layers: int) -> Recipe:
    return deepseek2.deepseek2(sizes=replace(deepseek2.LITE, layers=layers))


SHAPES = {
    "qwen3-30b-a3b": Shape(
        lambda layers: moe.qwen3moe(layers, 32, 4, 128, 128, 8, 768),
        48, 2048, 151_936, False, "Q4_K",
    ),
    "gpt-oss-20b": Shape(
        lambda layers: moe.gpt_oss(layers, 64, 8, 32, 2880, 128, 32.0, 4096),
        24, 2880, 201_088, False, "Q8_0",
    ),
    "qwen3-4b": Shape(
        lambda layers: dense.qwen3(layers, 32, 8, 9728), 36, 2560, 151_936, True, "Q4_K"
    ),
    "qwen3-8b": Shape(
        lambda layers: dense.qwen3(layers, 32, 8, 12288), 36, 4096, 151_936, False, "Q4_K"
    ),
    "qwen35-4b": Shape(
        lambda layers: hybrid.qwen35(
            9216, layers=layers, heads=16, kv_heads=4, head_dim=256, turned=64,
            width=128, key_heads=16, value_heads=32, extra=0,
        ),
        32, 2560, 248_320, True, "Q4_K",
    ),
    "deepseek2-lite": Shape(_deepseek2_lite, 27, 2048, 102_400, False, "Q4_K"),
}  # fmt: skip


@script.command(
    option("out", type=Path),
    option("--shape", choices=list(SHAPES), default="qwen3-4b"),
    option("--layers", type=int, help="all of the shape's if left out"),
)
def write(asked: Asked) -> Rows:
    """Write one file."""
    shape = SHAPES[asked.shape]
    recipe, vocab = _recipe(shape, asked.layers or shape.layers), shape.vocab
    keys = recipe.metadata() | gpt2_vocabulary(vocab) | {f"{recipe.arch}.vocab_size": vocab}
    writer = GGUFWriter(asked.out, recipe.arch)
    for key, value in keys.items():
        add_field(writer, key, value)
    kinds = {name: _kind(name, tensor, shape.kind) for name, tensor in recipe.tensors.items()}
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


def _recipe(shape: Shape, layers: int) -> Recipe:
    """The shape's recipe with a vocabulary of its own size."""
    width = WIDTH.set(shape.dim)
    try:
        recipe = shape.make(layers)
    finally:
        WIDTH.reset(width)
    recipe.context = 8192
    ends = ("token_embd.weight", "output.weight")
    for name in ends:
        recipe.tensors.pop(name, None)
    for name in ends[: 2 - shape.tied]:
        recipe.tensors[name] = Tensor((shape.vocab, shape.dim), shape.dim**-0.5)
    return recipe


def _kind(name: str, tensor: Tensor, kind: str) -> GGMLQuantizationType:
    if tensor.exact or len(tensor.shape) < 2:
        return GGMLQuantizationType.F32
    if kind == "Q8_0" and "_exps" in name:
        return GGMLQuantizationType.MXFP4
    if tensor.shape[-1] % GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0]:
        return GGMLQuantizationType.Q8_0
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
