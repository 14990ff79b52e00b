"""What a random model file holds: keys, tensors with the spread of their noise, and its breakages.

A tensor's noise is seeded by its name, so that breaking one tensor leaves all others as they were.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray

from tests.support.gguf_models import (
    SPREADS,
    add_field,
    gpt2_vocabulary,
    llama_vocabulary,
    random_blocks,
)

Array = NDArray[np.float32]
Edit = Callable[[Array], Array]
VOCABULARY_SIZE = 512
WIDTH: ContextVar[int] = ContextVar("width", default=256)
"""Of the embeddings of recipes that are made meanwhile; only their weights become larger."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """Normal noise in NumPy order; `values` instead where noise makes no sense."""

    shape: tuple[int, ...]
    spread: float
    mean: float = 0.0
    exact: bool = False
    """Stays F32 in every file, as llama.cpp's converter and quantiser leave it."""
    alike: float = 0.0
    """Share of the variance that all of the first dimension, the experts, have in common."""
    values: Array | None = None

    def draw(self, rng: np.random.Generator) -> Array:
        """`shape` f32."""
        if self.values is not None:
            return self.values
        noise = rng.standard_normal(self.shape, dtype=np.float32)
        if self.alike:
            common = rng.standard_normal(self.shape[1:], dtype=np.float32)
            shares = np.sqrt(np.float32([1 - self.alike, self.alike]))
            noise = shares[0] * noise + shares[1] * common
        return noise * np.float32(self.spread) + np.float32(self.mean)


@dataclass(frozen=True, slots=True)
class Breakage:
    """One thing that an engine could get wrong, as a change of the file that does the same."""

    name: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    """Changed metadata, without the architecture's prefix; None leaves a key out."""
    edits: Mapping[str, Edit] = field(default_factory=dict)
    """By the end of a tensor's name, what happens to its values."""


@dataclass(slots=True)
class Recipe:
    """A model to be: metadata and tensors, filled in by the functions of `parts`."""

    arch: str
    layers: int
    heads: int
    kv_heads: int | list[int]
    head_dim: int
    ffn: int | list[int] = 512
    dim: int = field(default_factory=WIDTH.get)
    rope_base: float = 10000.0
    rope_dim: int | None = None
    epsilon: float = 1e-6
    context: int = 1024
    vocabulary: str = "gpt2"
    keys: dict[str, Any] = field(default_factory=dict)
    """Further metadata, without the architecture's prefix."""
    tensors: dict[str, Tensor] = field(default_factory=dict)
    breakages: list[Breakage] = field(default_factory=list)
    num_tokens: int = 160
    """Tokens of a text that reaches what depends on position, beyond every window."""
    far_tokens: int = 0
    """Tokens of a text that reaches the rest of it, where that is far."""

    def add(self, name: str, tensor: Tensor) -> None:
        assert name not in self.tensors, name
        self.tensors[name] = tensor

    def matrix(
        self, name: str, *shape: int, gain: float = 1.0, exact: bool = False, alike: float = 0.0
    ) -> None:
        """Noise that makes rows of about `gain` from columns of about one."""
        self.add(f"{name}.weight", Tensor(shape, gain / shape[-1] ** 0.5, 0.0, exact, alike))

    def norm(self, name: str, *shape: int, mean: float = 1.0) -> None:
        """Gains around `mean`, far enough from it to be missed."""
        self.add(f"{name}.weight", Tensor(shape, 0.3 * mean, mean, exact=True))

    def gains(self, name: str, size: int) -> None:
        """Factors around one, under their whole name."""
        self.add(name, Tensor((size,), 0.3, 1.0, exact=True))

    def bias(self, name: str, *shape: int, spread: float = 0.5) -> None:
        self.add(f"{name}.bias", Tensor(shape, spread, exact=True))

    def given(self, name: str, values: Any) -> None:
        array = np.asarray(values, np.float32)
        self.add(name, Tensor(array.shape, 0.0, exact=True, values=array))

    def blocks(self) -> Iterator[str]:
        """Prefix of each layer's tensors."""
        return (f"blk.{layer}." for layer in range(self.layers))

    def breaks(self, name: str, edits: Mapping[str, Edit] | None = None, **keys: Any) -> None:
        """Note a breakage; a dot in a key is written as two underscores."""
        changed = {key.replace("__", "."): value for key, value in keys.items()}
        self.breakages.append(Breakage(name, changed, edits or {}))

    def metadata(self, breakage: Breakage | None = None) -> dict[str, Any]:
        """All metadata but the architecture itself."""
        own: dict[str, Any] = {
            "block_count": self.layers,
            "context_length": self.context,
            "embedding_length": self.dim,
            "feed_forward_length": self.ffn,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": self.epsilon,
            "rope.dimension_count": self.head_dim if self.rope_dim is None else self.rope_dim,
            "rope.freq_base": self.rope_base,
            "vocab_size": VOCABULARY_SIZE,
        }
        own |= self.keys | dict(breakage.keys if breakage else {})
        fields = {f"{self.arch}.{key}": value for key, value in own.items() if value is not None}
        spm = self.vocabulary == "llama"
        tokens = llama_vocabulary(VOCABULARY_SIZE) if spm else gpt2_vocabulary(VOCABULARY_SIZE)
        # llama.cpp treats the vocabularies of some names in ways of its own, e.g. of "phi3".
        return {"general.name": "random weights"} | fields | tokens

    def arrays(
        self,
        seed: int = 0,
        breakage: Breakage | None = None,
        drawn: Mapping[str, Array] | None = None,
    ) -> Iterator[tuple[str, Array]]:
        """Every tensor's values, edited where the breakage says so; `drawn` are all of them as they
        were, which spares drawing them again.
        """
        edits = dict(breakage.edits) if breakage else {}
        for name, tensor in self.tensors.items():
            if drawn is None:
                values = tensor.draw(np.random.default_rng([seed, zlib.crc32(name.encode())]))
            else:
                values = drawn[name]
            for end, edit in edits.items():
                if name.endswith(end):
                    values = np.ascontiguousarray(edit(values), np.float32)
            yield name, values


def write(
    recipe: Recipe,
    path: str | Path,
    *,
    type: str = "F32",
    types: Mapping[str, str] | None = None,
    seed: int = 0,
    breakage: Breakage | None = None,
    drawn: Mapping[str, Array] | None = None,
) -> Path:
    """Write the model and return its path.

    `type` is that of every matrix that may be quantised, and `types` overrides it by the end of a
    name, e.g. `{"_exps.weight": "MXFP4"}`. Types that the gguf package cannot quantise to are
    random blocks of the tensor's spread.
    """
    writer = GGUFWriter(path, recipe.arch)
    for key, value in recipe.metadata(breakage).items():
        add_field(writer, key, value)
    for name, values in recipe.arrays(seed, breakage, drawn):
        tensor = recipe.tensors[name]
        kind = next((t for end, t in (types or {}).items() if name.endswith(end)), type)
        if tensor.exact or values.ndim < 2:
            writer.add_tensor(name, values)
        elif kind in SPREADS:
            rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
            flat = (values.size // values.shape[-1], values.shape[-1])
            raw = random_blocks(rng, flat, kind).reshape(*values.shape[:-1], -1)
            writer.add_tensor(name, raw, raw_dtype=GGMLQuantizationType[kind])
        else:
            raw = quantize(values, GGMLQuantizationType[kind])
            writer.add_tensor(name, raw, raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)


def text(recipe: Recipe, length: int | None = None, seed: int = 0) -> list[int]:
    """Random ids of ordinary tokens, `num_tokens` of them."""
    rng = np.random.default_rng([seed, 7])
    ids = rng.integers(3, VOCABULARY_SIZE, recipe.num_tokens if length is None else length)
    return [int(token) for token in ids]
