"""Opening a model: which reader a path needs, and what it must hold."""

from __future__ import annotations

import os
from pathlib import Path

from edgespec.errors import UnsupportedModelError
from edgespec.models.architectures.registry import build_spec
from edgespec.models.file import ModelFile
from edgespec.models.gguf.header import GgufHeader
from edgespec.models.gguf.parts import open_gguf
from edgespec.models.spec import ModelSpec


def open_model(path: str | os.PathLike[str], *, any_engine: bool = False) -> ModelFile:
    """Open and validate a model file; the caller closes it, or uses it as a context manager.

    GGUF, of an architecture that our own engine supports; of a model in several files, any of them
    stands for all. With `any_engine` also what only an
    external engine may run: other GGUF files, whose `spec.refusal` says why ours does not, and ONNX
    decoders, by their file or folder.
    Raises ModelFileError for a missing or damaged file, UnsupportedModelError for a sound one that
    is not supported. Reads the header only: no tensor data, no tokenizer.
    """
    path = Path(path)
    if any_engine and (path.is_dir() or path.suffix == ".onnx"):
        from edgespec.models.onnx.folder import open_onnx

        return open_onnx(path)
    source, header = open_gguf(path)
    try:
        spec = _spec(source.path, header, any_engine)
    except BaseException:
        source.close()
        raise
    return ModelFile(source, header, spec)


def _spec(path: Path, header: GgufHeader, any_engine: bool) -> ModelSpec:
    try:
        return build_spec(path, header)
    except UnsupportedModelError as refused:
        if not any_engine:
            raise
        from edgespec.models.gguf.unsupported import unsupported_spec

        return unsupported_spec(path, header, refused)
