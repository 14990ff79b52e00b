"""Write the first layers of a model, with its norm and head, as a model of their own: early exit
that lives in another file, and so in another target.

    python benchmarks/cut_model.py OUT.gguf [--of MODEL] [--layers N]

Without `--layers`, as many as the model was trained to be left after. Needs gguf.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from gguf import GGUFReader, GGUFWriter

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.sibling_model import add_field
from edgespec.loading.model_drafters import EXIT_LAYER_KEY
from edgespec.models.registry import resolve

_LAYER = re.compile(r"blk\.(\d+)\.")


def write(path: Path, source: Path, layers: int | None = None) -> None:
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
            add_field(writer, name, layers if name == count else value, reader)
    for tensor in reader.tensors:
        layer = _LAYER.match(tensor.name)
        if layer is None or int(layer[1]) < layers:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--of", type=Path)
    parser.add_argument("--layers", type=int)
    options = parser.parse_args()
    write(options.out, options.of or resolve(), options.layers)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
