"""Write a GGUF model of random weights in a known shape: for time and bytes, never for acceptance.

    python benchmarks/random_model.py OUT.gguf [--shape 336M] [--type Q8_0] [--seed 0]

Shapes: 336M and 1.2B (that of Llama 3.2 1B: embeddings tied to the head). F16, Q8_0 and Q4_0 are
written tensor by tensor, so that no more than one is in memory; any other type, K-quants and the
mixed Q4_K_M and Q5_K_M too, is made by llama.cpp's quantiser from an F16 file that is deleted
afterwards. Needs gguf, and llama-cpp-python for those.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import llama_peer
from tests.models.build import add_field, llama_vocabulary, tensor_shapes

_CHUNK_ELEMENTS = 1 << 22
_DIRECT = ("F16", "Q8_0", "Q4_0")


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Llama-architecture model."""

    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    tied: bool

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor and its shape in NumPy order."""
        head_dim = self.dim // self.heads
        sizes = (self.dim, self.layers, self.heads, self.kv_heads, head_dim, self.ffn, self.vocab)
        return tensor_shapes("llama", *sizes, self.tied)

    def metadata(self) -> dict[str, int | float]:
        """Its hyper-parameters under GGUF's keys, for a context of 8192 tokens."""
        return {
            "llama.block_count": self.layers,
            "llama.context_length": 8192,
            "llama.embedding_length": self.dim,
            "llama.feed_forward_length": self.ffn,
            "llama.attention.head_count": self.heads,
            "llama.attention.head_count_kv": self.kv_heads,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "llama.rope.dimension_count": self.dim // self.heads,
            "llama.rope.freq_base": 10000.0,
            "llama.vocab_size": self.vocab,
        }


SHAPES = {
    "336M": Shape(1024, 24, 16, 4, 2816, 32_000, tied=False),
    "1.2B": Shape(2048, 16, 32, 8, 8192, 128_256, tied=True),
}


def write(path: Path, shape: Shape, kind: str, seed: int = 0) -> None:
    """Write a model in any type there is; raises llama_peer.PeerError when llama.cpp must and
    cannot.

    The weights are the same for all types but for what rounding does.
    """
    if kind in _DIRECT:
        _write_directly(path, shape, kind, seed)
        return
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        source = Path(folder) / "F16.gguf"
        _write_directly(source, shape, "F16", seed)
        llama_peer.quantise(source, path, kind)


def _write_directly(path: Path, shape: Shape, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, "llama")
    writer.add_name("random-weights")
    for key, value in (shape.metadata() | llama_vocabulary(shape.vocab)).items():
        add_field(writer, key, value)
    types = {
        name: GGMLQuantizationType.F32 if len(size) == 1 else GGMLQuantizationType[kind]
        for name, size in shape.tensors().items()
    }
    for name, size in shape.tensors().items():
        block_size, block_bytes = GGML_QUANT_SIZES[types[name]]
        num_bytes = int(np.prod(size)) // block_size * block_bytes
        writer.add_tensor_info(name, size, np.dtype(np.float32), num_bytes, types[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, size in shape.tensors().items():
        writer.write_tensor_data(_tensor(rng, size, types[name]))
    writer.close()


def _tensor(
    rng: np.random.Generator, size: tuple[int, ...], kind: GGMLQuantizationType
) -> NDArray[np.generic]:
    """Ones for a norm; for a matrix noise that keeps activations near one, a few rows at a time."""
    if len(size) == 1:
        return np.ones(size, np.float32)
    rows, columns = size
    deviation = np.float32(0.6 / columns**0.5)
    step = max(1, _CHUNK_ELEMENTS // columns)
    parts = []
    for first in range(0, rows, step):
        noise = rng.standard_normal((min(step, rows - first), columns), dtype=np.float32)
        parts.append(quantize(noise * deviation, kind))
    return np.concatenate(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="336M")
    kinds = sorted({*_DIRECT, *llama_peer.FILE_TYPES})
    parser.add_argument("--type", choices=kinds, default="Q8_0", metavar="|".join(kinds))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        write(options.out, SHAPES[options.shape], options.type, options.seed)
    except llama_peer.PeerError as error:
        raise SystemExit(str(error)) from None
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
