"""Typed access to the metadata of a model file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from edgespec.errors import ModelFileError, UnsupportedModelError
from edgespec.models.gguf.header import MetadataValue
from edgespec.system.records import dataclass


@dataclass(frozen=True, slots=True)
class Keys:
    """Typed access to metadata; every complaint names the file and the key."""

    path: Path
    values: Mapping[str, MetadataValue]

    def text(self, key: str, default: str | None = None) -> str:
        value = self.values.get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a text", value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """An integer in [least, 2^31), also where the file repeats it for every layer."""
        value = self.values.get(key, default)
        if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "iu":
            if (value != value[0]).any():
                raise UnsupportedModelError(
                    f"cannot run {self.path}: {key} differs between layers; "
                    "only models whose layers are all alike are supported"
                )
            value = int(value[0])
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 1 << 31:
            raise self._wrong(key, f"a whole number from {least}, below 2^31", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite, positive number."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number", value)
        if not math.isfinite(value) or value <= 0:
            raise self._wrong(key, "a positive, finite number", value)
        return float(value)

    def _wrong(self, key: str, wanted: str, value: MetadataValue | None) -> ModelFileError:
        found = "nothing" if value is None else repr(value)[:60]
        return ModelFileError(
            f"cannot open {self.path}: {key} should be {wanted}, found {found}; "
            "convert the model again with a current convert_hf_to_gguf.py"
        )
