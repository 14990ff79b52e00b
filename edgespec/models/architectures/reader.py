"""What all architectures read a file with: its keys by their short names, and the usual parts.

Key and tensor names are GGUF's; conventions and defaults are llama.cpp's, so that a file means the
same here as there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.errors import ModelFileError, UnsupportedModelError
from edgespec.models.gguf.header import GgufHeader
from edgespec.models.gguf.keys import Keys
from edgespec.models.layers import (
    Activation,
    Attention,
    Dense,
    LayerSpec,
    Matrix,
    Norm,
    Rope,
    RopeLayout,
)
from edgespec.models.spec import ModelSpec, TensorInfo

ROPE_FACTORS = "rope_freqs.weight"


class Reader:
    """A file's header as an architecture sees it."""

    def __init__(self, path: Path, header: GgufHeader) -> None:
        self.path = path
        self.keys = Keys(path, header.metadata)
        self.tensors: Mapping[str, TensorInfo] = header.tensors
        self.architecture = self.keys.text("general.architecture")
        self.dim = self.count("embedding_length")
        self.num_layers = self.count("block_count")

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """An integer of the architecture's own, in [least, 2^31)."""
        return self.keys.count(f"{self.architecture}.{key}", default, least=least)

    def counts(self, key: str, default: int | None = None, *, least: int = 1) -> list[int]:
        """An integer for every layer; a file may state it once for all."""
        value = self.keys.values.get(f"{self.architecture}.{key}")
        if not isinstance(value, np.ndarray):
            return [self.count(key, default, least=least)] * self.num_layers
        if len(value) < self.num_layers or value.dtype.kind not in "iu" or value.min() < least:
            raise self.wrong(f"{key} should be a whole number from {least} for every layer")
        return [int(each) for each in value[: self.num_layers]]

    def number(self, key: str, default: float | None = None) -> float:
        """A finite, positive number of the architecture's own."""
        return self.keys.number(f"{self.architecture}.{key}", default)

    def flag(self, key: str, default: bool) -> bool:
        return self.keys.flag(f"{self.architecture}.{key}", default)

    def has(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self.keys.values

    def wrong(self, what: str) -> ModelFileError:
        """The error of a file that contradicts itself."""
        return ModelFileError(f"cannot open {self.path}: {what}; convert the model again")

    def refuse(self, what: str) -> UnsupportedModelError:
        """The error of a file that needs a part we do not have."""
        return UnsupportedModelError(f"cannot run {self.path}: {what}, so choose another model")

    def matrix(
        self, name: str, rows: int, columns: int, *, biased: bool = False, **where: Any
    ) -> Matrix:
        """`name`.weight, with `name`.bias if the file has it, or must have it."""
        bias = f"{name}.bias" if biased or f"{name}.bias" in self.tensors else ""
        return Matrix(f"{name}.weight", rows, columns, bias=bias, **where)

    def norm(self, name: str, width: int | None = None) -> Norm:
        return Norm(f"{name}.weight", self.dim if width is None else width)

    def optional_norm(self, name: str, width: int | None = None) -> Norm | None:
        """The norm where the file has one."""
        return self.norm(name, width) if f"{name}.weight" in self.tensors else None

    def head_dim(self) -> int:
        """Width of a head's keys, which values must share."""
        width = self.count("attention.key_length", max(1, self.dim // self.heads()))
        values = self.count("attention.value_length", width)
        if values != width:
            raise self.refuse(
                f"keys are {width} wide and values {values}; only equal widths are supported"
            )
        return width

    def heads(self) -> int:
        return max(self.counts("attention.head_count", least=0))

    def rope(self, layout: RopeLayout, *, factors: bool = False) -> Rope:
        """Plain rotation with linear scaling; `factors` where the file may hold divisors."""
        width = self.count("rope.dimension_count", self.head_dim())
        if width % 2 or width > self.head_dim():
            raise self.wrong(f"{width} rotated dimensions do not fit heads of {self.head_dim()}")
        return Rope(
            base=self.number("rope.freq_base", 10000.0),
            dim=width,
            layout=layout,
            scale=self._linear_scale(),
            factors=ROPE_FACTORS if factors and ROPE_FACTORS in self.tensors else "",
        )

    def _linear_scale(self) -> float:
        kind = self.keys.text(f"{self.architecture}.rope.scaling.type", "linear")
        if kind not in ("none", "linear"):
            raise self.refuse(
                f"its rotary scaling is {kind!r}, which is not supported for this architecture"
            )
        if self.has("rope.scaling.attn_factor") and self.number("rope.scaling.attn_factor") != 1.0:
            raise self.refuse("its rope.scaling.attn_factor is not 1, which is not supported")
        for key in ("rope.scaling.factor", "rope.scale_linear"):
            value = self.keys.values.get(f"{self.architecture}.{key}")
            if value is not None and kind == "linear":
                return 1.0 if value in (0, 1) else 1.0 / self.number(key)
        return 1.0

    def attention(
        self, layer: int, rope: Rope | None, *, biased: bool = False, **more: Any
    ) -> Attention:
        """The usual attention of a layer, by the usual names; `more` are further fields."""
        heads = self.counts("attention.head_count")[layer]
        kv_heads = self.counts("attention.head_count_kv", heads)[layer]
        width, block = self.head_dim(), f"blk.{layer}."
        if heads % kv_heads:
            raise self.wrong(f"{heads} heads cannot share {kv_heads} key-value heads")
        fields: dict[str, Any] = {
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": width,
            "query": self.matrix(f"{block}attn_q", heads * width, self.dim, biased=biased),
            "key": self.matrix(f"{block}attn_k", kv_heads * width, self.dim, biased=biased),
            "value": self.matrix(f"{block}attn_v", kv_heads * width, self.dim, biased=biased),
            "output": self.matrix(f"{block}attn_output", self.dim, heads * width),
            "rope": rope,
            "scale": 1.0 / math.sqrt(width),
        }
        return Attention(**fields | more)

    def head_norms(self, layer: int) -> dict[str, Any]:
        """The fields of an attention whose queries and keys are normed head by head."""
        return {
            f"{part}_norm": self.norm(f"blk.{layer}.attn_{part[0]}_norm", self.head_dim())
            for part in ("query", "key")
        }

    def dense(self, layer: int, activation: Activation = "silu", width: int | None = None) -> Dense:
        """The usual gated feed-forward part of a layer."""
        width = self.counts("feed_forward_length")[layer] if width is None else width
        block = f"blk.{layer}.ffn_"
        return Dense(
            width,
            gate=self.matrix(f"{block}gate", width, self.dim),
            up=self.matrix(f"{block}up", width, self.dim),
            down=self.matrix(f"{block}down", self.dim, width),
            activation=activation,
        )

    def pre_normed(self, layer: int, mixer: Any, ffn: Any, **more: Any) -> LayerSpec:
        """A layer with a norm before the mixer and one before the feed-forward part."""
        return LayerSpec(
            mixer,
            ffn,
            mixer_norm=self.norm(f"blk.{layer}.attn_norm"),
            ffn_norm=self.norm(f"blk.{layer}.ffn_norm"),
            **more,
        )

    def model(self, layers: Sequence[LayerSpec], **more: Any) -> ModelSpec:
        """The whole model with these layers; `more` are further fields."""
        embedding = "token_embd.weight"
        fields: dict[str, Any] = {
            "architecture": self.architecture,
            "name": self.keys.text("general.name", self.path.stem) or self.path.stem,
            "dim": self.dim,
            "vocab_size": self.tensors[embedding].shape[0],
            "context_length": self.count("context_length"),
            "norm_epsilon": self.number("attention.layer_norm_rms_epsilon"),
            "layers": tuple(layers),
            "embedding": embedding,
            "head": "output.weight" if "output.weight" in self.tensors else embedding,
            "num_parameters": sum(math.prod(info.shape) for info in self.tensors.values()),
        }
        return ModelSpec(**fields | more)
