"""Recipes of random models as opened files, without a file: for tests of headers and of layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edgespec.models.architectures.registry import build_spec
from edgespec.models.file import ModelFile
from edgespec.models.gguf.header import GgufHeader
from edgespec.models.spec import ModelSpec, TensorInfo, TensorType
from tests.support.random_models.recipe import Recipe

PATH = Path("random.gguf")
ABSURD: tuple[Any, ...] = (
    0, 1, 3, 2**31 - 1, 2**40, -1, 0.0, -2.5, float("nan"), float("inf"), 1e-30, "text", True, None,
    [0, 0], [1] * 64, [2.5] * 64, [-1] * 64, [True] * 64,
)  # fmt: skip
"""Values that a key of a header may claim to have."""


def header(
    recipe: Recipe,
    keys: Mapping[str, Any] | None = None,
    shapes: Mapping[str, tuple[int, ...] | None] | None = None,
) -> GgufHeader:
    """A recipe's header; `keys`, without prefix, and `shapes` replace what they name."""
    metadata = recipe.metadata() | {"general.architecture": recipe.arch}
    metadata |= {f"{recipe.arch}.{key}": value for key, value in (keys or {}).items()}
    found = {name: tensor.shape for name, tensor in recipe.tensors.items()} | dict(shapes or {})
    tensors = {
        name: TensorInfo(name, shape, TensorType.F32, 0, 4 * math.prod(shape))
        for name, shape in found.items()
        if shape is not None
    }
    values = {key: _as_read(value) for key, value in metadata.items() if value is not None}
    return GgufHeader(3, values, tensors)


def _as_read(value: Any) -> Any:
    """Lists of numbers are arrays when a file is read."""
    numbers = isinstance(value, list) and not isinstance(value[0], str)
    return np.array(value) if numbers else value


def spec_of(recipe: Recipe, **changes: Any) -> ModelSpec:
    """What is said of the model; raises what opening such a file raises."""
    return build_spec(PATH, header(recipe, **changes))


class RecipeFile:
    """What a backend asks of a file that was opened, F32."""

    def __init__(self, recipe: Recipe, **changes: Any) -> None:
        self.spec = spec_of(recipe, **changes)
        self.tensors = header(recipe, **changes).tensors
        self._values = dict(recipe.arrays())

    def matrix_f32(self, name: str) -> NDArray[np.float32]:
        return self._values[name]


def opened(recipe: Recipe, **changes: Any) -> ModelFile:
    """A recipe as an opened file."""
    return cast(ModelFile, RecipeFile(recipe, **changes))
