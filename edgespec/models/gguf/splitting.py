"""A GGUF model in two files, so that its first layers alone are a model, too.

Part 1 holds everything but the layers from an exit layer up, part 2 those layers. llama.cpp opens
part 1 as the whole model, whose other part it finds beside it; told that there are only so many
layers and no other part, it opens part 1 as a model of the first layers, with the head of the
whole. Mapped into memory, both are the same pages.
"""

from __future__ import annotations

import re
import struct
from contextlib import ExitStack
from pathlib import Path

from edgespec.errors import ModelFileError, OptionError
from edgespec.models.gguf.file_source import FileSource
from edgespec.models.gguf.header import KEYS_BEGIN, read_header
from edgespec.models.gguf.writing import gguf_text, write_gguf
from edgespec.models.spec import TensorInfo
from edgespec.system.whole_file import whole_file

_LAYER = re.compile(r"blk\.(\d+)\.")
_UINT16, _INT32 = 2, 5


def split_model(path: Path, exit_layer: int, out: Path) -> tuple[Path, Path]:
    """Write both parts of a model as `OUT-00001-of-00002.gguf` and `OUT-00002-of-00002.gguf`.

    Tensors are copied in pieces, so this holds little memory. Raises ModelFileError for a file that
    cannot be read or written, OptionError for a layer that the model does not have.
    """
    with FileSource(path) as source:
        header = read_header(source)
        if "split.count" in header.metadata:
            raise ModelFileError(
                f"cannot split {path}: it is a part of a model already; give the whole file"
            )
        lower = [info for info in header.tensors.values() if layer_of(info) < exit_layer]
        upper = [info for info in header.tensors.values() if layer_of(info) >= exit_layer]
        if exit_layer < 1 or not upper:
            layers = 1 + max(map(layer_of, header.tensors.values()))
            raise OptionError(
                f"exit layer {exit_layer} was asked for, and {path.name} has {layers} layers; "
                f"choose 1 to {layers - 1}"
            )
        parts = tuple(Path(f"{out}-{number:05}-of-00002.gguf") for number in (1, 2))
        keys = source.read(KEYS_BEGIN, header.keys_end - KEYS_BEGIN).tobytes()
        both = ((keys, header.num_keys, lower), (b"", 0, upper))
        try:
            with ExitStack() as files:  # neither takes its place before both are written
                for number, (raw, num_keys, tensors) in enumerate(both):
                    raw += _split_keys(number, len(header.tensors))
                    file = files.enter_context(whole_file(parts[number], private=False))
                    write_gguf(file, source, header, raw, num_keys + 3, tensors)
        except OSError as error:
            why = error.strerror or error
            raise ModelFileError(f"cannot write {parts[0]}: {why}; check folder and disk") from None
        return parts[0], parts[1]


def first_layers(path: Path) -> int:
    """How many layers part 1 of a model written by `split_model` has; 0 for any other file.

    Raises ModelFileError for a file that cannot be read.
    """
    with FileSource(path) as source:
        header = read_header(source)
    if header.metadata.get("split.count") != 2 or header.metadata.get("split.no") != 0:
        return 0
    inner = [layer_of(info) for info in header.tensors.values()]
    architecture = header.metadata.get("general.architecture")
    num_layers = header.metadata.get(f"{architecture}.block_count")
    layers = max(inner, default=-1) + 1
    per_layer = {inner.count(layer) for layer in range(layers)}
    whole = per_layer == {inner.count(0)} and "output_norm.weight" in header.tensors
    return layers if whole and isinstance(num_layers, int) and 0 < layers < num_layers else 0


def layer_of(info: TensorInfo) -> int:
    """The layer a tensor belongs to, -1 for those of none."""
    found = _LAYER.match(info.name)
    return int(found[1]) if found else -1


def _split_keys(number: int, num_tensors: int) -> bytes:
    """What llama.cpp wants to know of a part."""
    return b"".join(
        (
            gguf_text("split.no") + struct.pack("<IH", _UINT16, number),
            gguf_text("split.count") + struct.pack("<IH", _UINT16, 2),
            gguf_text("split.tensors.count") + struct.pack("<Ii", _INT32, num_tensors),
        )
    )
