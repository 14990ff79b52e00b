"""Write model files to measure with.

    python -m lab.models random OUT.gguf [--shape 336M] [--type Q8_0]
    python -m lab.models sibling OUT.gguf [--of MODEL] [--layers 12] [--ffn 16384]
    python -m lab.models cut OUT.gguf [--of MODEL] [--layers N]

`random`: weights of chance in a known shape, for time and bytes, never for acceptance. 336M, and
1.2B, which is that of Llama 3.2 1B: embeddings tied to the head. F16, Q8_0 and Q4_0 are written
tensor by tensor, so that no more than one is in memory; any other type is made by llama.cpp's
quantiser (llama-cpp-python) from an F16 file that is deleted afterwards.

`sibling`: a larger model that says word for word what a smaller one says: acceptance of the one,
cost of the other. Feed-forward layers are widened and layers added with random weights, and what
they compute is multiplied by zeros before it reaches the residual stream. For Llama models in Q8_0,
also with experts (`--ffn` is the width of each): layers that are added choose with the last router.
And for hybrids of the `qwen35` and `qwen35moe` architectures, their MTP block included, and for
EAGLE-3 heads, whose one layer becomes as wide as those of their model's sibling: both draft what
they drafted. An expert for all tokens is widened as often as the others.

`cut`: the first layers of a model with its norm and head, as a draft model in a file of its own.
All need gguf.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gguf import (
    GGML_QUANT_SIZES,
    GGMLQuantizationType,
    GGUFReader,
    GGUFWriter,
    ReaderTensor,
)
from gguf.quants import quantize
from numpy.typing import NDArray

from edgespec.loading.model_drafters import EXIT_LAYER_KEY
from edgespec.models.registry import resolve
from lab.harness import Asked, Rows, Script, option
from tests.support import llama_peer
from tests.support.gguf_models import add_field, llama_vocabulary, tensor_shapes

_CHUNK_ELEMENTS = 1 << 22
_DIRECT = ("F16", "Q8_0", "Q4_0")
_BLOCK, _BLOCK_BYTES = 32, 34
Tensor = tuple[str, NDArray[np.generic], GGMLQuantizationType]
_LAYER = re.compile(r"blk\.(\d+)\.")
OUT = option("out", type=Path)
OF = option("--of", type=Path, metavar="MODEL", help="the bundled one if left out")
script = Script(__doc__)


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
        """Its hyper-parameters under GGUF's keys, for a context of 32,768 tokens."""
        return {
            "llama.block_count": self.layers,
            "llama.context_length": 32_768,
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


def write_random(path: Path, shape: Shape, kind: str, seed: int = 0) -> None:
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


class _Widths(NamedTuple):
    """Of every feed-forward net, and of an expert for all tokens."""

    net: int
    shared: int


def write_sibling(path: Path, source: Path, layers: int, ffn: int, seed: int = 0) -> None:
    """Write the sibling of `source`; raises SystemExit where that cannot have one."""
    reader = GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    kind = fields.get("general.architecture")
    if kind not in ("llama", "qwen35", "qwen35moe", "eagle3"):
        raise SystemExit(
            f"{source} is a {kind}; siblings are made of llama, qwen35, qwen35moe and eagle3 in "
            "Q8_0"
        )
    if kind == "eagle3":
        layers = 1  # that is all a head has
    extra = fields.get(f"{kind}.nextn_predict_layers", 0)
    had = [fields[f"{kind}.block_count"] - extra, fields[f"{kind}.feed_forward_length"]]
    widths = _Widths(
        ffn, fields.get(f"{kind}.expert_shared_feed_forward_length", 0) * ffn // had[1]
    )
    changed = {
        f"{kind}.block_count": layers + extra,
        f"{kind}.feed_forward_length": ffn,
        f"{kind}.expert_feed_forward_length": ffn,
        f"{kind}.expert_shared_feed_forward_length": widths.shared,
    }
    if layers < had[0] or ffn < had[1]:
        raise SystemExit(
            f"{source} has {had[0]} layers with feed-forward {had[1]}; a sibling has at least as "
            "many of both"
        )
    writer = GGUFWriter(path, kind)
    for name, value in fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            _copy_field(writer, name, changed.get(name, value), reader)
    turn = fields.get(f"{kind}.full_attention_interval", 1)
    rng = np.random.default_rng(seed)
    for name, data, stored in _widened(reader, had[0], layers, extra, widths, turn, rng):
        writer.add_tensor(name, data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_field(writer: GGUFWriter, name: str, value: object, reader: GGUFReader) -> None:
    """Copy a field of the metadata, with this value."""
    field = reader.fields[name]
    if len(field.types) > 1:  # arrays keep the type of their elements
        writer.add_key_value(name, value, field.types[0], field.types[1])
    else:
        writer.add_key_value(name, value, field.types[0])


def _widened(
    reader: GGUFReader,
    had: int,
    layers: int,
    extra: int,
    widths: _Widths,
    turn: int,
    rng: np.random.Generator,
) -> Iterator[Tensor]:
    """All tensors; in every `turn`th layer the mixer is another one than in those between. Behind
    the `layers` are `extra` ones that draft (MTP).
    """
    blocks: dict[int, list[ReaderTensor]] = {}
    for tensor in reader.tensors:
        found = re.match(r"blk\.(\d+)\.", tensor.name)
        if found:
            blocks.setdefault(int(found[1]), []).append(tensor)
        else:
            yield tensor.name, tensor.data, tensor.tensor_type
    for layer in range(layers + extra):
        is_new = had <= layer < layers
        alike = [one for one in range(had) if ((one + 1) % turn == 0) == ((layer + 1) % turn == 0)]
        own = layer if layer < had else max(alike) if is_new else had + layer - layers
        for tensor in blocks[own]:
            part = tensor.name.split(".", 2)[2]
            data = _widen(tensor, part, widths, rng)
            if is_new and part.startswith(("attn_output.", "ssm_out.", "ffn_down")):
                data = np.zeros_like(data)
            yield f"blk.{layer}.{part}", data, tensor.tensor_type


def _widen(
    tensor: ReaderTensor, part: str, widths: _Widths, rng: np.random.Generator
) -> NDArray[np.generic]:
    """Feed-forward matrices with more rows of noise (gate, up) or columns of zeros (down)."""
    data: NDArray[np.generic] = tensor.data
    if not part.startswith("ffn_") or part.startswith(("ffn_norm.", "ffn_gate_inp")):
        return data
    width = widths.shared if "_shexp" in part else widths.net
    if tensor.tensor_type != GGMLQuantizationType.Q8_0:
        raise SystemExit(f"{tensor.name} is {tensor.tensor_type.name}; siblings are made of Q8_0")
    columns, rows, *experts = (int(size) for size in tensor.shape)
    if part.startswith("ffn_down"):
        more = np.zeros((*experts, rows, (width - columns) // _BLOCK * _BLOCK_BYTES), np.uint8)
        return np.concatenate([data, more], axis=-1)
    noise = rng.standard_normal((*experts, width - rows, columns), dtype=np.float32)
    noise /= np.float32(columns**0.5)
    return np.concatenate([data, quantize(noise, GGMLQuantizationType.Q8_0)], axis=-2)


def write_first_layers(path: Path, source: Path, layers: int | None = None) -> None:
    """Write the first `layers` layers of `source`; raises SystemExit when it has not so many."""
    reader = GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    architecture = fields["general.architecture"]
    count = f"{architecture}.block_count"
    layers = fields.get(EXIT_LAYER_KEY, 1) if layers is None else layers
    if not 1 <= layers < fields[count]:
        raise SystemExit(
            f"{source} has {fields[count]} layers; cut it after 1 to {fields[count] - 1}"
        )
    writer = GGUFWriter(path, architecture)
    dropped = ("general.architecture", EXIT_LAYER_KEY)
    for name, value in fields.items():
        if not name.startswith("GGUF.") and name not in dropped:
            _copy_field(writer, name, layers if name == count else value, reader)
    for tensor in reader.tensors:
        layer = _LAYER.match(tensor.name)
        if layer is None or int(layer[1]) < layers:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


KINDS = sorted({*_DIRECT, *llama_peer.FILE_TYPES})


@script.command(
    OUT,
    option("--shape", choices=SHAPES, default="336M"),
    option("--type", choices=KINDS, default="Q8_0", metavar="|".join(KINDS)),
    option("--seed", type=int, default=0),
)
def random(asked: Asked) -> Rows:
    """Random weights in a known shape."""
    try:
        write_random(asked.out, SHAPES[asked.shape], asked.type, asked.seed)
    except llama_peer.PeerError as error:
        raise SystemExit(str(error)) from None
    yield _written(asked.out)


@script.command(
    OUT,
    OF,
    option("--layers", type=int, default=12),
    option("--ffn", type=int, default=16_384),
    option("--seed", type=int, default=0),
)
def sibling(asked: Asked) -> Rows:
    """A larger model with the same logits."""
    write_sibling(asked.out, asked.of or resolve(), asked.layers, asked.ffn, asked.seed)
    yield _written(asked.out)


@script.command(
    OUT, OF, option("--layers", type=int, help="as many as it was trained to be left after")
)
def cut(asked: Asked) -> Rows:
    """The first layers as a model of their own."""
    write_first_layers(asked.out, asked.of or resolve(), asked.layers)
    yield _written(asked.out)


def _written(path: Path) -> dict[str, object]:
    return {"file": path.name, "MB": round(path.stat().st_size / 1e6)}


if __name__ == "__main__":
    script.run()
