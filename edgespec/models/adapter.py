"""The file that `edgespec adapt` writes beside a model: a matrix for some of its exits.

A GGUF file of the architecture `edgespec-adapter`, because that format is validated before it is
trusted and holds no code. It names the model it was fitted to by a hash of its contents, says for
every exit that was tried how often it predicted the model's next token before and after, and has
matrices, f16 [dim, dim], only for those that gained by it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelFileError, UnsupportedModelError
from edgespec.models.gguf.file_source import FileSource
from edgespec.models.gguf.header import DEFAULT_ALIGNMENT, GgufHeader, read_header
from edgespec.models.gguf.keys import Keys
from edgespec.models.spec import TensorInfo, TensorType
from edgespec.system.records import dataclass
from edgespec.system.whole_file import whole_file

if TYPE_CHECKING:
    from edgespec.models.file import ModelFile

ARCHITECTURE, VERSION = "edgespec-adapter", 1
_SUFFIX = ".adapter.gguf"
_ARCHITECTURE_KEY = "general.architecture"
_UINT32, _FLOAT32, _STRING = 4, 6, 8


@dataclass(frozen=True, slots=True)
class Fit:
    """How well one exit predicts the model's next token, on held-out text."""

    layer: int
    before: float
    """Part of the tokens, 0 to 1, that the exit's own best token is the model's."""
    after: float
    """The same through the adapter."""
    ridge: float
    """Strength of the ridge, as a part of the mean square of the inputs."""
    pays: bool
    """Whether the gain is more than chance, so that the file has the matrix."""


class Adapter:
    """An opened, validated file; the caller closes it, or uses it as a context manager."""

    def __init__(self, source: FileSource, header: GgufHeader) -> None:
        self._source = source
        keys = Keys(source.path, header.metadata)
        version = keys.count("edgespec.adapter.version")
        if version != VERSION:
            raise UnsupportedModelError(
                f"cannot use {source.path}: it is an adapter of version {version}, and only "
                f"version {VERSION} is supported; run `edgespec adapt` again"
            )
        self.model = keys.text("edgespec.adapter.model")
        """`ModelFile.content_fingerprint` of the model, in hex."""
        self.dim = keys.count("edgespec.adapter.width")
        self.num_tokens = keys.count("edgespec.adapter.tokens", least=0)
        """Tokens that the agreement was counted on."""
        fits = [
            _read_fit(keys, number)
            for number in range(keys.count("edgespec.adapter.fits", least=0))
        ]
        self.fits = {fit.layer: fit for fit in fits}
        self.tensors: Mapping[str, TensorInfo] = header.tensors
        expected = {_tensor(fit.layer) for fit in fits if fit.pays}
        sound = set(self.tensors) == expected and len(fits) == len(self.fits)
        shape = (self.dim, self.dim)
        if not sound or any(
            info.type is not TensorType.F16 or info.shape != shape for info in self.tensors.values()
        ):
            raise ModelFileError(
                f"cannot use {source.path}: its matrices do not match its metadata; run "
                "`edgespec adapt` again"
            )

    @property
    def path(self) -> Path:
        return self._source.path

    @property
    def layers(self) -> tuple[int, ...]:
        """Exits that have a matrix."""
        return tuple(sorted(layer for layer, fit in self.fits.items() if fit.pays))

    def rows(self, layer: int, start: int, stop: int) -> NDArray[np.float16]:
        """Rows of a layer's matrix, [stop - start, dim]; ModelFileError for one that is damaged."""
        info = self.tensors[_tensor(layer)]
        row_bytes = 2 * self.dim
        raw = self._source.read(info.offset + start * row_bytes, (stop - start) * row_bytes)
        rows = raw.view(np.float16).reshape(stop - start, self.dim)
        if not np.isfinite(rows).all():
            raise ModelFileError(
                f"cannot use {self.path}: the matrix of layer {layer} is not finite; "
                "run `edgespec adapt` again"
            )
        return rows

    def check(self, file: ModelFile) -> None:
        """Raise ModelFileError when this is another model's."""
        most = file.spec.num_layers - 1
        if (
            self.model != file.content_fingerprint().hex()
            or self.dim != file.spec.dim
            or any(layer > most for layer in self.fits)
        ):
            raise ModelFileError(
                f"{self.path} was fitted to another model than {file.path}; run `edgespec adapt` "
                "again, or delete it"
            )

    def close(self) -> None:
        self._source.close()


def place_beside(model: Path) -> Path:
    """Where the adapter of a model lies."""
    return model.with_name(model.name.removesuffix(".gguf") + _SUFFIX)


def open_adapter(path: Path) -> Adapter:
    """Open and validate an adapter; ModelFileError for a file that is none or is damaged."""
    source = FileSource(path)
    try:
        header = read_header(source)
        if header.metadata.get(_ARCHITECTURE_KEY) != ARCHITECTURE:
            raise ModelFileError(
                f"cannot use {path}: it is not an adapter; run `edgespec adapt` to make one"
            )
        return Adapter(source, header)
    except BaseException:
        source.close()
        raise


def find_adapter(file: ModelFile) -> tuple[Adapter | None, str]:
    """The adapter beside a model, and a sentence about it: why there is none to use, or "".

    A file that is damaged or another model's is reported and left alone: the text is the same
    without.
    """
    place = place_beside(file.path)
    if not place.is_file():
        return None, ""
    try:
        adapter = open_adapter(place)
        try:
            adapter.check(file)
        except BaseException:
            adapter.close()
            raise
    except ModelFileError as error:
        return None, f"adapter not used: {error}"
    if not adapter.layers:
        adapter.close()
        return None, f"adapter not used: {place.name} brings no gain for this model"
    return adapter, ""


def write_adapter(
    place: Path,
    model: str,
    dim: int,
    num_tokens: int,
    fits: list[Fit],
    matrices: Mapping[int, NDArray[np.float16]],
) -> None:
    """Write a file, whole or not at all: `model` is the model's fingerprint, `matrices` [dim, dim]
    those of the layers that pay. ModelFileError when it cannot be written.
    """
    keys = [
        _text_key(_ARCHITECTURE_KEY, ARCHITECTURE),
        _text_key("edgespec.adapter.model", model),
        _count_key("edgespec.adapter.version", VERSION),
        _count_key("edgespec.adapter.width", dim),
        _count_key("edgespec.adapter.tokens", num_tokens),
        _count_key("edgespec.adapter.fits", len(fits)),
    ]
    for number, fit in enumerate(fits):
        name = f"edgespec.adapter.{number}"
        keys.append(_count_key(f"{name}.layer", fit.layer))
        for part in ("before", "after", "ridge"):
            keys.append(_number_key(f"{name}.{part}", getattr(fit, part)))
        keys.append(_count_key(f"{name}.pays", int(fit.pays)))
    records, size = [], 2 * dim * dim
    padded = -(-size // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT
    layers = [fit.layer for fit in fits if fit.pays]
    for number, layer in enumerate(layers):
        records.append(
            _text(_tensor(layer))
            + struct.pack("<IQQ", 2, dim, dim)
            + struct.pack("<IQ", TensorType.F16.type_id, number * padded)
        )
    try:
        with whole_file(place, private=False) as file:
            file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(layers), len(keys)))
            file.write(b"".join((*keys, *records)))
            for layer in layers:
                _pad(file)
                file.write(np.ascontiguousarray(matrices[layer], "<f2").data)
            _pad(file)
    except OSError as error:
        raise ModelFileError(
            f"cannot write {place}: {error.strerror or error}; the adapter is written next to its "
            "model, so copy the model to a folder you can write to and adapt that"
        ) from None


def _tensor(layer: int) -> str:
    return f"exit.{layer}.weight"


def _read_fit(keys: Keys, number: int) -> Fit:
    name = f"edgespec.adapter.{number}"
    parts = {}
    for part in ("before", "after", "ridge"):
        value = keys.values.get(f"{name}.{part}")
        if not isinstance(value, float) or not math.isfinite(value) or value < 0.0:
            raise ModelFileError(
                f"cannot use {keys.path}: {name}.{part} is {value!r}; run `edgespec adapt` again"
            )
        parts[part] = value
    pays = bool(keys.count(f"{name}.pays", least=0))
    return Fit(keys.count(f"{name}.layer"), pays=pays, **parts)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _text_key(key: str, value: str) -> bytes:
    return _text(key) + struct.pack("<I", _STRING) + _text(value)


def _count_key(key: str, value: int) -> bytes:
    return _text(key) + struct.pack("<II", _UINT32, value)


def _number_key(key: str, value: float) -> bytes:
    return _text(key) + struct.pack("<If", _FLOAT32, value)


def _pad(file: IO[bytes]) -> None:
    file.write(bytes(-file.tell() % DEFAULT_ALIGNMENT))
