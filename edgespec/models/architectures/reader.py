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
    Moe,
    Norm,
    Recurrent,
    Rope,
    RopeLayout,
    Scoring,
)
from edgespec.models.spec import ModelSpec, TensorInfo

_WIDEST_HEAD = 1 << 16
ROPE_FACTORS = "rope_freqs.weight"


class Reader:
    """A file's header as an architecture sees it."""

    def __init__(self, path: Path, header: GgufHeader, *, is_head: bool = False) -> None:
        """`is_head`: all blocks are a draft head's, which predict further tokens."""
        self.path = path
        self.keys = Keys(path, header.metadata)
        self.tensors: Mapping[str, TensorInfo] = header.tensors
        self.architecture = self.keys.text("general.architecture")
        self.dim = self.count("embedding_length")
        self.num_extra = 0 if is_head else self.count("nextn_predict_layers", 0, least=0)
        """Blocks at the end that predict further tokens and take no part in an ordinary pass."""
        blocks = self.count("block_count")
        self.num_layers = blocks - self.num_extra
        if blocks > len(self.tensors) or self.num_layers < 1:
            raise self.wrong(
                f"{blocks} blocks, {self.num_extra} of them for further tokens, cannot be made of "
                f"{len(self.tensors)} tensors"
            )

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """An integer of the architecture's own, in [least, 2^31)."""
        return self.keys.count(f"{self.architecture}.{key}", default, least=least)

    def counts(self, key: str, default: int | None = None, *, least: int = 1) -> list[int]:
        """An integer for every layer, then for blocks beyond; a file may state it once for all."""
        value = self.keys.values.get(f"{self.architecture}.{key}")
        blocks = self.num_layers + self.num_extra
        if not isinstance(value, np.ndarray):
            return [self.count(key, default, least=least)] * blocks
        if len(value) < self.num_layers or value.dtype.kind not in "iu" or value.min() < least:
            raise self.wrong(f"{key} should be a whole number from {least} for every layer")
        stated = [int(each) for each in value[:blocks]]
        return stated + stated[-1:] * (blocks - len(stated))

    def number(self, key: str, default: float | None = None) -> float:
        """A finite, positive number of the architecture's own."""
        return self.keys.number(f"{self.architecture}.{key}", default)

    def factor(self, key: str, default: float = 1.0) -> float:
        """A number that is the default where the file says 0, or nothing."""
        stated = self.keys.values.get(f"{self.architecture}.{key}", 0)
        return default if isinstance(stated, int | float) and stated == 0 else self.number(key)

    def windowed(self, default: int) -> list[bool]:
        """For every layer whether it has a sliding window: all but the last of every `default`
        layers, or of as many as the file says, or as it lists them.
        """
        value = self.keys.values.get(f"{self.architecture}.attention.sliding_window_pattern")
        if isinstance(value, np.ndarray):
            if len(value) < self.num_layers or value.dtype.kind not in "iub":
                raise self.wrong("sliding_window_pattern should say yes or no for every layer")
            return [bool(each) for each in value[: self.num_layers]]
        period = self.count("attention.sliding_window_pattern", default, least=0)
        return [not period or layer % period < period - 1 for layer in range(self.num_layers)]

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

    def norm(self, name: str, width: int | None = None, *, groups: int = 1) -> Norm:
        return Norm(f"{name}.weight", self.dim if width is None else width, groups)

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
        """Of the layer that has most."""
        most = max(self.counts("attention.head_count", least=0))
        if not most:
            raise self.wrong("attention.head_count should be above 0 in some layer")
        return most

    def rope(
        self,
        layout: RopeLayout,
        *,
        width: int | None = None,
        base: float | None = None,
        factors: bool = False,
        scaled: bool = True,
        log_multiplier: float = 0.0,
        betas: bool = False,
    ) -> Rope:
        """The rotation that the keys tell of; `factors` where the file may hold divisors, `betas`
        where it may say where YaRN's ramp lies.

        Not `scaled`: that of layers which the extension of the context leaves out.
        """
        width = self.count("rope.dimension_count", self.head_dim()) if width is None else width
        if width % 2 or width > _WIDEST_HEAD:
            raise self.wrong(f"{width} rotated dimensions are no pairs of a head")
        base = self.number("rope.freq_base", 10000.0) if base is None else base
        if not scaled:
            return Rope(base, width, layout)
        kind = self.keys.text(f"{self.architecture}.rope.scaling.type", "linear")
        if kind not in ("none", "linear", "yarn", "longrope"):
            raise self.refuse(f"its rotary scaling is {kind!r}, which is not supported")
        scale = 1.0 if kind == "none" else 1.0 / self._stretch()
        magnitude = self.number("rope.scaling.attn_factor", 1.0)
        if kind == "yarn":
            if base <= 1.0:
                raise self.wrong(f"rope.freq_base is {base:g}, which YaRN cannot stretch")
            magnitude *= magnitude_of(scale, 1.0) / magnitude_of(scale, log_multiplier)
        divisors = self._divisors() if factors else ("", "")
        extended = kind == "yarn" or bool(divisors[1])
        return Rope(
            base,
            width,
            layout,
            scale,
            *divisors,
            original_context=self.original_context() if extended else 0,
            yarn=1.0 if kind == "yarn" else 0.0,
            beta_fast=self.number("rope.scaling.yarn_beta_fast", 32.0) if betas else 32.0,
            beta_slow=self.number("rope.scaling.yarn_beta_slow", 1.0) if betas else 1.0,
            magnitude=magnitude,
        )

    def original_context(self) -> int:
        """Positions before the context was extended."""
        stated = self.count("rope.scaling.original_context_length", 0, least=0)
        return stated or self.count("context_length")

    def _stretch(self) -> float:
        """By how much the context was extended; 0 is written for not at all."""
        old = self.factor("rope.scale_linear")
        return self.factor("rope.scaling.factor", old)

    def _divisors(self) -> tuple[str, str]:
        """Tensors of divisors, for short contexts (or all) and for long ones."""
        short, long = (f"rope_factors_{kind}.weight" for kind in ("short", "long"))
        if ROPE_FACTORS in self.tensors:
            return ROPE_FACTORS, ""
        if long in self.tensors or short in self.tensors:
            return short, long
        return "", ""

    def check_sections(self, rope: Rope, *, interleaved: bool) -> None:
        """Refuse sections that leave pairs out; a text has one position for all others."""
        sections = self.keys.values.get(f"{self.architecture}.rope.dimension_sections")
        if not isinstance(sections, np.ndarray) or not sections[:2].any():
            return
        if sections.dtype.kind not in "iu" or len(sections) < 3:
            raise self.wrong("rope.dimension_sections should be whole numbers, three or four")
        time, height, width = (int(each) for each in sections[:3])
        pairs = np.arange(rope.dim // 2) % max(1, int(sections.sum()))
        first = time + height + width
        if interleaved:
            lengths = np.array([time, height, width])
            first = int((pairs < 3 * lengths[pairs % 3]).sum())
        if first < len(pairs):
            raise self.refuse(
                f"its rotary sections {sections.tolist()} leave dimensions that do not turn, which "
                "is not supported"
            )

    def attention(
        self,
        layer: int,
        rope: Rope | None,
        *,
        width: int | None = None,
        biased: bool = False,
        **more: Any,
    ) -> Attention:
        """The usual attention of a layer, by the usual names, of heads so wide; `more` are further
        fields.
        """
        width, block = self.head_dim() if width is None else width, f"blk.{layer}."
        heads = self.counts("attention.head_count", least=0)[layer]
        kv_heads = self.counts("attention.head_count_kv", heads, least=0)[layer]
        if not heads or not kv_heads or heads % kv_heads:
            raise self.wrong(f"{heads} heads cannot share {kv_heads} key-value heads")
        if rope is not None and rope.dim > width:
            raise self.wrong(f"{rope.dim} rotated dimensions do not fit heads of {width}")
        query, key, value = self._projections(block, heads * width, kv_heads * width, biased)
        fields: dict[str, Any] = {
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": width,
            "query": query,
            "key": key,
            "value": value,
            "output": self.matrix(f"{block}attn_output", self.dim, heads * width),
            "rope": rope,
            "scale": 1.0 / math.sqrt(width),
        }
        return Attention(**fields | more)

    def _projections(self, block: str, rows: int, kv_rows: int, biased: bool) -> list[Matrix]:
        """Queries, keys and values, of tensors of their own or of one."""
        fused, sizes = f"{block}attn_qkv", (rows, kv_rows, kv_rows)
        if f"{fused}.weight" not in self.tensors:
            return [
                self.matrix(f"{block}attn_{part}", size, self.dim, biased=biased)
                for part, size in zip("qkv", sizes, strict=True)
            ]
        firsts = (0, rows, rows + kv_rows)
        return [
            self.matrix(fused, size, self.dim, biased=biased, first=first)
            for size, first in zip(sizes, firsts, strict=True)
        ]

    def head_norms(self, layer: int) -> dict[str, Any]:
        """The fields of an attention whose queries and keys are normed head by head."""
        return {
            f"{part}_norm": self.norm(f"blk.{layer}.attn_{part[0]}_norm", self.head_dim())
            for part in ("query", "key")
        }

    def dense(
        self,
        layer: int,
        activation: Activation = "silu",
        width: int | None = None,
        end: str = "",
        **more: Any,
    ) -> Dense:
        """The usual gated feed-forward part of a layer; `end` is that of its tensors' names."""
        width = self.counts("feed_forward_length")[layer] if width is None else width
        block = f"blk.{layer}.ffn_"
        return Dense(
            width,
            gate=self.matrix(f"{block}gate{end}", width, self.dim),
            up=self.matrix(f"{block}up{end}", width, self.dim),
            down=self.matrix(f"{block}down{end}", self.dim, width),
            activation=activation,
            **more,
        )

    def moe(self, layer: int, width: int | None = None, **more: Any) -> Moe:
        """The usual mixture of a layer; `more` are further fields."""
        block, experts = f"blk.{layer}.ffn_", self.count("expert_count")
        active = self.counts("expert_used_count")[layer]
        width = self.expert_width(layer) if width is None else width
        if active > experts:
            raise self.wrong(f"{active} of {experts} experts cannot be chosen")
        fused = f"{block}gate_up_exps"
        if f"{fused}.weight" in self.tensors:
            gate, up = (
                self.matrix(fused, width, self.dim, experts=experts, first=first)
                for first in (0, width)
            )
        else:
            gate, up = (
                self.matrix(f"{block}{part}_exps", width, self.dim, experts=experts)
                for part in ("gate", "up")
            )
        bias = f"blk.{layer}.exp_probs_b.bias"
        fields: dict[str, Any] = {
            "router": self.matrix(f"{block}gate_inp", experts, self.dim),
            "gate": gate,
            "up": up,
            "down": self.matrix(f"{block}down_exps", self.dim, width, experts=experts),
            "choice_bias": bias if bias in self.tensors else "",
        }
        return Moe(experts, active, width, **fields | more)

    def expert_width(self, layer: int) -> int:
        """Of an expert: its own key, or the share of the feed-forward width."""
        if self.has("expert_feed_forward_length"):
            return self.counts("expert_feed_forward_length")[layer]
        active = self.counts("expert_used_count")[layer]
        return max(1, self.counts("feed_forward_length")[layer] // active)

    def scoring(self, default: Scoring) -> Scoring:
        """How a router scores, by the number that files state; 0 and nothing are the default."""
        kinds: dict[int, Scoring] = {1: "softmax", 2: "sigmoid", 3: "softmax_of_chosen"}
        stated = self.count("expert_gating_func", 0, least=0)
        if stated and stated not in kinds:
            raise self.refuse(f"its experts' gating function {stated} is not supported")
        return kinds.get(stated, default)

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
        extra = self._extra()
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
            "note": "its blocks that predict further tokens are not used" if extra else "",
            "recurrent": any(isinstance(layer.mixer, Recurrent) for layer in layers),
            "num_parameters": sum(math.prod(info.shape) for info in self.tensors.values()),
        }
        return ModelSpec(**fields | more | {"unused": (*extra, *more.get("unused", ()))})

    def _extra(self) -> tuple[str, ...]:
        """Tensors of the blocks that take no part in an ordinary pass."""
        blocks = tuple(f"blk.{self.num_layers + number}." for number in range(self.num_extra))
        return tuple(name for name in self.tensors if blocks and name.startswith(blocks))


def magnitude_of(scale: float, multiplier: float) -> float:
    """What YaRN multiplies cosines and sines by where positions are scaled so; section 3.4."""
    return 1.0 if scale >= 1 else 1.0 - 0.1 * multiplier * math.log(scale)
