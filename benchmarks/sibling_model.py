"""Write a larger model that says word for word what a smaller one says: acceptance of the one, cost
of the other.

    python benchmarks/sibling_model.py OUT.gguf [--of MODEL] [--layers 12] [--ffn 16384] [--seed 0]

Feed-forward layers are widened and layers are added with random weights, and whatever they compute
is multiplied by zero weights before it reaches the residual stream. So every logit is the small
model's, while a pass reads and multiplies all of the weights. For Llama models in Q8_0, as the
bundled one is. Needs gguf.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, ReaderTensor
from gguf.quants import quantize
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from edgespec.models.registry import resolve

_BLOCK, _BLOCK_BYTES = 32, 34
Tensor = tuple[str, NDArray[np.generic], GGMLQuantizationType]


def write(path: Path, source: Path, layers: int, ffn: int, seed: int = 0) -> None:
    """Write the sibling of `source`; raises SystemExit when that is no Llama model in Q8_0."""
    reader = GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields.get("general.architecture") != "llama":
        raise SystemExit(f"{source} is no Llama model; siblings are made of Llama models in Q8_0")
    if layers < fields["llama.block_count"] or ffn < fields["llama.feed_forward_length"]:
        raise SystemExit(
            f"{source} has {fields['llama.block_count']} layers with feed-forward "
            f"{fields['llama.feed_forward_length']}; a sibling has at least as many of both"
        )
    writer = GGUFWriter(path, "llama")
    changed = {"llama.block_count": layers, "llama.feed_forward_length": ffn}
    for name, value in fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            add_field(writer, name, changed.get(name, value), reader)
    for name, data, kind in _tensors(reader, layers, ffn, np.random.default_rng(seed)):
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_field(writer: GGUFWriter, name: str, value: object, reader: GGUFReader) -> None:
    """Copy a field of the metadata, with this value."""
    field = reader.fields[name]
    if len(field.types) > 1:  # arrays keep the type of their elements
        writer.add_key_value(name, value, field.types[0], field.types[1])
    else:
        writer.add_key_value(name, value, field.types[0])


def _tensors(
    reader: GGUFReader, layers: int, ffn: int, rng: np.random.Generator
) -> Iterator[Tensor]:
    blocks: dict[int, list[ReaderTensor]] = {}
    for tensor in reader.tensors:
        found = re.match(r"blk\.(\d+)\.", tensor.name)
        if found:
            blocks.setdefault(int(found[1]), []).append(tensor)
        else:
            yield tensor.name, tensor.data, tensor.tensor_type
    for layer in range(layers):
        for tensor in blocks.get(layer, blocks[0]):
            part = tensor.name.split(".", 2)[2]
            data = _widen(tensor, part, ffn, rng)
            if layer not in blocks and part in ("attn_output.weight", "ffn_down.weight"):
                data = np.zeros_like(data)
            yield f"blk.{layer}.{part}", data, tensor.tensor_type


def _widen(
    tensor: ReaderTensor, part: str, ffn: int, rng: np.random.Generator
) -> NDArray[np.generic]:
    """A feed-forward matrix with more rows of noise (gate, up) or more columns of zeros (down)."""
    data = tensor.data
    if not part.startswith("ffn_") or part == "ffn_norm.weight":
        return data
    if tensor.tensor_type != GGMLQuantizationType.Q8_0:
        raise SystemExit(f"{tensor.name} is {tensor.tensor_type.name}; siblings are made of Q8_0")
    columns, rows = (int(size) for size in tensor.shape)
    if part == "ffn_down.weight":
        more = np.zeros((rows, (ffn - columns) // _BLOCK * _BLOCK_BYTES), np.uint8)
        return np.concatenate([data, more], axis=1)
    noise = rng.standard_normal((ffn - rows, columns), dtype=np.float32) / np.float32(columns**0.5)
    return np.concatenate([data, quantize(noise, GGMLQuantizationType.Q8_0)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--of", type=Path)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--ffn", type=int, default=16_384)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    write(options.out, options.of or resolve(), options.layers, options.ffn, options.seed)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
