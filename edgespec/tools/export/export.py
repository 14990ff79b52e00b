"""Models in other formats than the one they came in: GGUF to ONNX."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgespec.errors import ExportError, OptionError, UnsupportedModelError
from edgespec.models.file import ModelFile
from edgespec.models.open_model import open_model
from edgespec.models.registry import resolve
from edgespec.system.records import dataclass
from edgespec.system.whole_file import SUFFIX, whole_file

FORMATS = ("onnx",)
BITS = (4, 8, 16, 32)
GRAPH, DATA = "model.onnx", "model.onnx.data"
FILES = (GRAPH, DATA, "tokenizer.json", "tokenizer_config.json", "genai_config.json")
MOST_CONTEXT = 32_768
"""Positions whose rotation is written out, unless fewer or more are asked for."""
_LAST_LAYER = "blk.{}."


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written, and how it compares with where it came from."""

    path: Path
    size_bytes: int
    context_length: int
    num_layers: int
    agreement: Any
    """`check.Agreement`, None where ONNX Runtime is not installed."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        agreement = None if self.agreement is None else asdict(self.agreement)
        return asdict(replace(self, agreement=None)) | {
            "path": str(self.path),
            "agreement": agreement,
        }


def export(
    model: str | os.PathLike[str] | None,
    out: str | os.PathLike[str],
    *,
    format: str = "onnx",
    bits: int | None = None,
    exit_layer: int | None = None,
    context: int | None = None,
    check: bool = True,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Exported:
    """Write a model to the folder `out`, matrix by matrix, and compare its logits with the file's.

    `bits` are those of each weight (4, 8, 16, 32), None the nearest to what the file has;
    `exit_layer` keeps that many layers from the first on, for drafting; `context` is how many
    positions the model will take; with `overwrite` a model that is in `out` is replaced. Raises
    OptionError, ExportError, ModelFileError.
    """
    if format not in FORMATS:
        raise OptionError(f"no format is called {format!r}; choose {', '.join(FORMATS)}")
    if bits is not None and bits not in BITS:
        known = ", ".join(map(str, BITS))
        raise OptionError(f"weights of {bits} bits were asked for; choose {known}")
    if find_spec("onnx") is None:
        raise ExportError(
            "an ONNX model was asked for, and the package that writes it is not installed: "
            "pip install 'edgespec[onnx]'"
        )
    with open_model(resolve(model)) as file:
        _cut(file, exit_layer)
        length = _context(file, context)
        folder = _folder(Path(out), overwrite)
        try:
            _write(file, folder, bits, length, progress)
        except OSError as error:
            raise ExportError(
                f"cannot write to {folder}: {error.strerror or error}; give a folder with room"
            ) from None
        path = folder / GRAPH
        size = path.stat().st_size + (folder / DATA).stat().st_size
        agreement = _agreement(file, path) if check else None
        return Exported(path, size, length, file.spec.num_layers, agreement)


def _cut(file: ModelFile, exit_layer: int | None) -> None:
    """Leave only the first layers of an open file."""
    spec = file.spec
    if exit_layer is None:
        return
    if not 1 <= exit_layer <= spec.num_layers:
        raise OptionError(
            f"an exit after layer {exit_layer} was asked for; {spec.name} has {spec.num_layers}"
        )
    kept = tuple(_LAST_LAYER.format(layer) for layer in range(exit_layer))
    file.tensors = {
        name: info
        for name, info in file.tensors.items()
        if not name.startswith("blk.") or name.startswith(kept)
    }
    file.spec = spec.first_layers(exit_layer)


def _context(file: ModelFile, asked: int | None) -> int:
    most = file.spec.context_length
    if asked is not None and not 1 <= asked <= most:
        raise OptionError(
            f"a context of {asked} tokens was asked for; {file.spec.name} takes 1 to {most}"
        )
    return asked or min(most, MOST_CONTEXT)


def _folder(out: Path, overwrite: bool) -> Path:
    """A folder of its own for the model, made if it is not there."""
    if out.suffix == ".onnx":
        raise OptionError(
            f"{out} names a file, and an ONNX model is a folder with its weights and tokenizer; "
            f"give a folder, e.g. {out.with_suffix('')}"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        taken = [path.name for path in out.iterdir() if not _is_ours(path.name)]
    except OSError as error:
        raise ExportError(
            f"cannot write to {out}: {error.strerror or error}; give another folder"
        ) from None
    if (out / GRAPH).exists() and not overwrite:
        raise ExportError(
            f"{out} holds a model already; give another folder, or --overwrite to replace it"
        )
    if taken and not (out / GRAPH).exists():
        raise ExportError(f"{out} holds other files ({taken[0]}); give an empty or a new folder")
    return out


def _write(
    file: ModelFile,
    folder: Path,
    bits: int | None,
    context: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    from edgespec.tools.export.config import genai_config, tokenizer_config
    from edgespec.tools.export.graph import GraphWriter
    from edgespec.tools.export.matrices import DataFile
    from edgespec.tools.export.tokenizer_json import tokenizer_json

    described = {
        "tokenizer.json": tokenizer_json(file),
        "tokenizer_config.json": tokenizer_config(file, context),
        "genai_config.json": genai_config(file, GRAPH, context),
    }
    with ExitStack() as files:  # they take their places in the other order: the graph last
        graph, data = (
            files.enter_context(whole_file(folder / name, private=False)) for name in (GRAPH, DATA)
        )
        writer = GraphWriter(file, DataFile(data, DATA), bits, context)
        graph.write(writer.model(progress).SerializeToString())
        for name, values in described.items():
            text = json.dumps(
                values, indent=None if name == "tokenizer.json" else 2, ensure_ascii=False
            )
            out = files.enter_context(whole_file(folder / name, private=False))
            out.write(text.encode())
        for written in (graph, data):  # what takes long, or fails, comes before what cannot wait
            written.flush()
            os.fsync(written.fileno())
        # A graph says what the others mean: none is better than one of another model.
        files.callback((folder / GRAPH).unlink, missing_ok=True)


def _is_ours(name: str) -> bool:
    """Whether exports write files of this name, also those that were killed."""
    return name in FILES or (name.startswith(FILES) and name.endswith(SUFFIX))


def _agreement(file: ModelFile, path: Path) -> Any:
    from edgespec.backends.onnx.runtime_library import missing

    if missing():
        return None
    from edgespec.tools.export.check import compare

    try:
        return compare(file, path)
    except UnsupportedModelError as error:
        raise ExportError(f"{path} was written, but cannot be run: {error}") from None
