"""The first layers of a GGUF model as a small model of its own, to be timed and never to be read.

Keys are the model's, with fewer layers, and so are shapes and types. What a pass takes does not
depend on the numbers in a matrix, only on which experts its tokens go to: so routers are copied
whole, with the first rows of all else, and the rest is 0, which takes neither time nor disk.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from edgespec.models.gguf.header import KEYS_BEGIN, GgufHeader, MetadataValue
from edgespec.models.gguf.parts import open_gguf
from edgespec.models.gguf.splitting import layer_of
from edgespec.models.gguf.writing import gguf_text, write_gguf
from edgespec.models.layers import Moe
from edgespec.models.spec import ModelSpec
from edgespec.system.whole_file import whole_file

_FIRST_BYTES = 1 << 20
"""Of a tensor, that are copied: norms, biases, and the embeddings of the tokens to be timed."""
_PARTS = ("split.no", "split.count", "split.tensors.count")


def write_first_layers(path: Path, spec: ModelSpec, layers: int, out: Path) -> None:
    """Write the model in `path` with its first `layers` layers.

    Raises OSError, and ModelFileError for a file that cannot be read any more.
    """
    routers = {each.ffn.router.tensor for each in spec.layers if isinstance(each.ffn, Moe)}
    source, header = open_gguf(path)
    try:
        keys = list(_keys(source.read(0, header.keys_end).tobytes(), header, layers))
        kept = [info for info in header.tensors.values() if layer_of(info) < layers]
        copied = {info.name: _FIRST_BYTES for info in kept if info.name not in routers}
        with whole_file(out, lasting=False) as file:
            write_gguf(file, source, header, b"".join(keys), len(keys), kept, copied)
    finally:
        source.close()


def _keys(raw: bytes, header: GgufHeader, layers: int) -> Iterator[bytes]:
    """The keys and values of a model of fewer layers, in one file."""
    architecture = header.metadata["general.architecture"]
    blocks, extra = f"{architecture}.block_count", f"{architecture}.nextn_predict_layers"
    num_blocks = header.metadata[blocks]
    begin = KEYS_BEGIN
    for key, end in header.key_ends.items():
        value, stated = header.metadata[key], raw[begin:end]
        begin = end
        if key == blocks:
            assert isinstance(value, int)
            size = len(stated) - len(gguf_text(key)) - 4
            yield stated[:-size] + layers.to_bytes(size, "little")
        elif key.startswith(f"{architecture}.") and _has_each_layer(key, value, num_blocks):
            assert isinstance(value, np.ndarray)
            begins = len(gguf_text(key)) + 8  # after the numbers of both types
            numbers = stated[begins + 8 :][: layers * value.itemsize]
            yield stated[:begins] + struct.pack("<Q", layers) + numbers
        elif key not in _PARTS and key != extra:
            yield stated


def _has_each_layer(key: str, value: MetadataValue, num_blocks: MetadataValue) -> bool:
    """Whether a key has a number for each layer, not one for each part of a rotation."""
    return isinstance(value, np.ndarray) and len(value) == num_blocks and ".rope." not in key
