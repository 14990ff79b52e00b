"""Draft heads: those in files of their own, and the one that a model's file brings."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelFileError, OptionError
from edgespec.models.architectures.checks import named
from edgespec.models.architectures.eagle3 import describe_head
from edgespec.models.architectures.gemma4_assistant import describe_assistant
from edgespec.models.architectures.reader import Reader
from edgespec.models.architectures.registry import ASSISTANT, EAGLE3, HEADS
from edgespec.models.file import ModelFile
from edgespec.models.gguf.file_source import FileSource
from edgespec.models.gguf.header import GgufHeader
from edgespec.models.gguf.parts import JoinedSource, open_gguf
from edgespec.models.layers import RopeLayout
from edgespec.models.spec import ModelSpec, TensorType

CHECKPOINT = "model.safetensors"
_CONFIG = "config.json"
_ID_TYPES = {TensorType.I64: "<i8", TensorType.I32: "<i4"}


class HeadFile(ModelFile):
    """A head's part of a file, read like a model of its own."""

    def __init__(
        self,
        source: FileSource | JoinedSource,
        header: GgufHeader,
        spec: ModelSpec,
        *,
        ids_are_steps: bool = False,
    ) -> None:
        names = names_of(spec)
        tensors = {name: info for name, info in header.tensors.items() if name in names}
        super().__init__(source, GgufHeader(header.version, header.metadata, tensors), spec)
        self._ids_are_steps = ids_are_steps
        """Whether what is stored is how far each of the head's tokens is from the model's."""

    def token_ids(self, num_tokens: int) -> NDArray[np.int32] | None:
        """The model's ids, below `num_tokens`, of the head's tokens [n]; None where they are the
        same. Raises ModelFileError for ids that there cannot be.
        """
        name = self.spec.token_ids
        if not name:
            return None
        kind = _ID_TYPES.get(self.tensors[name].type)
        if kind is None:
            raise ModelFileError(
                f"cannot open {self.path}: {name} is {self.tensors[name].type.name} and should be "
                "whole numbers; convert the head again"
            )
        ids: NDArray[np.int64] = self.rows(name).reshape(-1).view(kind).astype(np.int64)
        if self._ids_are_steps:
            ids = ids + np.arange(len(ids))
        if len(np.unique(ids)) < len(ids) or ids.min() < 0 or ids.max() >= num_tokens:
            raise ModelFileError(
                f"cannot open {self.path}: {name} should list each token of the model, 0 to "
                f"{num_tokens - 1}, at most once; convert the head again"
            )
        return ids.astype(np.int32)


def names_of(head: ModelSpec) -> set[str]:
    """The tensors of a head's own, and those it shares with a model in the same file."""
    matrices, vectors = named(head)
    return {*matrices, *vectors, *filter(None, [head.token_ids])}


def own_head(file: ModelFile) -> ModelFile | None:
    """The head that a model's file brings, read from the same open file; None where it has none."""
    head = file.spec.draft_head
    if head is None:
        return None
    part = copy.copy(file)
    names = names_of(head)
    part.spec = head
    part.tensors = {name: info for name, info in file.tensors.items() if name in names}
    return part


def is_head(path: Path) -> bool:
    """Whether a file, or a folder with a checkpoint, is a head; one that cannot be read is none."""
    if path.is_dir():
        return (path / CHECKPOINT).exists() and (path / _CONFIG).exists()
    if path.suffix == ".safetensors":
        return True
    try:
        source, header = open_gguf(path)
    except (ModelFileError, OptionError):
        return False
    source.close()
    return header.metadata.get("general.architecture") in HEADS


def open_head(path: Path, model: ModelSpec) -> HeadFile:
    """Open a head that is to draft for a model; the caller closes it.

    Raises OptionError where the two do not fit, ModelFileError for a damaged file,
    UnsupportedModelError for one that is not supported.
    """
    layout: RopeLayout = "interleaved"
    source: FileSource | JoinedSource
    checkpoint = path.is_dir() or path.suffix == ".safetensors"
    if checkpoint:
        from edgespec.models.safetensors_file import open_checkpoint

        folder = path if path.is_dir() else path.parent
        place = path / CHECKPOINT if path.is_dir() else path
        source, header = open_checkpoint(place, folder / _CONFIG, EAGLE3, model.num_layers)
        layout = "halves"
    else:
        source, header = open_gguf(path)
    try:
        if header.metadata.get("general.architecture") == ASSISTANT:
            spec = describe_assistant(Reader(path, header, is_head=True), model)
        else:
            spec = describe_head(Reader(path, header), model, layout)
        return HeadFile(source, header, spec, ids_are_steps=checkpoint)
    except BaseException:
        source.close()
        raise
