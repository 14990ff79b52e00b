"""EAGLE-3 heads as they are published: `config.json` beside `model.safetensors`.

The layout is that of the method's own repository and of SpecForge: tensors `midlayer.*` (or
`layers.0.*`), `fc`, `norm`, `lm_head`, `d2t`, `t2d`. They are brought to the names and keys of
llama.cpp's architecture `eagle3`, so that one description reads both. The `safetensors` package
checks the file; rows are read by offset, like those of other files.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelFileError, UnsupportedModelError
from edgespec.models.gguf.file_source import FileSource
from edgespec.models.gguf.header import GgufHeader, MetadataValue
from edgespec.models.spec import TensorInfo, TensorType

_TYPES = {"F32": TensorType.F32, "F16": TensorType.F16, "BF16": TensorType.BF16,
          "I64": TensorType.I64, "I32": TensorType.I32}  # fmt: skip
_LAYER = re.compile(r"(?:model\.)?(?:midlayer|layers\.0)\.(.+)")
_OF_LAYER = {
    "input_layernorm": "attn_norm",
    "hidden_norm": "attn_norm_2",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OTHERS = {
    "fc.weight": "fc.weight",
    "input_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "embed_tokens.weight": "token_embd.weight",
    "d2t": "d2t",
}
_COUNTS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "num_hidden_layers": "block_count",
    "target_hidden_size": "target_hidden_size",
}
_NUMBERS = {"rms_norm_eps": "attention.layer_norm_rms_epsilon", "rope_theta": "rope.freq_base"}
_FLAGS = ("norm_before_residual", "norm_before_fc")
_LARGEST_CONFIG = 1 << 20
_FACTORS = "rope_freqs.weight"


class CheckpointSource(FileSource):
    """A file with a few numbers of our own behind its end."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.more: NDArray[np.uint8] = np.zeros(0, np.uint8)

    def read_into(self, offset: int, data: NDArray[np.uint8]) -> None:
        own = offset - self.size_bytes
        if own < 0 or not len(self.more):
            super().read_into(offset, data)
        else:
            data[:] = self.more[own : own + len(data)]


def open_checkpoint(
    path: Path, config: Path, architecture: str, num_layers: int
) -> tuple[FileSource, GgufHeader]:
    """Open a checkpoint for a model of so many layers; the caller closes it.

    Raises ModelFileError for a damaged file, UnsupportedModelError for what is not read.
    """
    said = _read_config(config)
    keys = _keys(config, said, architecture, num_layers)
    source = CheckpointSource(path)
    try:
        tensors = _tensors(source)
        factors = _factors(config, said)
        if factors is not None:
            source.more = factors.view(np.uint8)
            shape, end = (len(factors),), source.size_bytes
            tensors[_FACTORS] = TensorInfo(_FACTORS, shape, TensorType.F32, end, factors.nbytes)
        return source, GgufHeader(0, keys, tensors)
    except BaseException:
        source.close()
        raise


def _tensors(source: FileSource) -> dict[str, TensorInfo]:
    """Where the tensors are that we know, by our names."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise UnsupportedModelError(
            f"cannot open {source.path}: reading it needs the safetensors package; install it with "
            "`pip install edgespec[safetensors]`, or convert the head to .gguf"
        ) from None
    try:
        with safe_open(source.path, "np"):  # checks names, shapes and offsets
            pass
    except (SafetensorError, OSError) as error:
        raise ModelFileError(f"cannot open {source.path}: {error}; download it again") from None
    length = int(source.read(0, 8).view("<u8")[0])
    header: dict[str, Any] = json.loads(source.read(8, length).tobytes())
    found: dict[str, TensorInfo] = {}
    for name, entry in header.items():
        own = _own_name(name)
        if not own:
            continue
        kind = _TYPES.get(entry["dtype"])
        if kind is None:
            raise UnsupportedModelError(
                f"cannot open {source.path}: {name} is {entry['dtype']}; heads of "
                f"{', '.join(_TYPES)} are read, so convert it"
            )
        first, last = entry["data_offsets"]
        shape = tuple(entry["shape"])
        if not shape or last - first != math.prod(shape) * kind.block_bytes or own in found:
            raise ModelFileError(f"cannot open {source.path}: {name} is damaged; download it again")
        found[own] = TensorInfo(own, shape, kind, 8 + length + first, last - first)
    return found


def _own_name(name: str) -> str:
    """A tensor's name in a GGUF, "" for one that is not read."""
    inner = _LAYER.fullmatch(name)
    if inner is None:
        return _OTHERS.get(name.removeprefix("model."), "")
    part, _, kind = inner[1].rpartition(".")
    own = _OF_LAYER.get(part, "")
    return f"blk.0.{own}.{kind}" if own else ""


def _read_config(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _LARGEST_CONFIG:
            raise ValueError("it is too long")
        said = json.loads(path.read_text("utf-8"))
        if not isinstance(said, dict):
            raise ValueError("it is no object")
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(
            f"cannot open {path}, which says what the head beside it is made of: {error}; "
            "download it again"
        ) from None
    inner = said.get("transformer_layer_config")
    return {**said, **inner} if isinstance(inner, dict) else said


def _keys(
    path: Path, said: dict[str, Any], architecture: str, num_layers: int
) -> dict[str, MetadataValue]:
    """What a GGUF's metadata would be; their readers check it."""
    keys: dict[str, MetadataValue] = {
        "general.architecture": architecture,
        "general.name": path.parent.name,
    }
    for theirs, ours in _COUNTS.items():
        if said.get(theirs) is not None:
            keys[f"{architecture}.{ours}"] = said[theirs]
    for theirs, ours in _NUMBERS.items():
        if said.get(theirs) is not None:
            keys[f"{architecture}.{ours}"] = said[theirs]
    for name in _FLAGS:
        if said.get(name) is not None:
            keys[f"{architecture}.{name}"] = said[name]
    taps = _stated_taps(said) or [2, num_layers // 2, num_layers - 3]
    if not all(isinstance(tap, int) and abs(tap) < 1 << 31 for tap in taps):
        raise ModelFileError(
            f"cannot open {path}: eagle_aux_hidden_state_layer_ids should be the numbers of "
            "layers; download it again"
        )
    keys[f"{architecture}.target_layers"] = np.array(taps, np.int64)
    return keys


def _stated_taps(said: dict[str, Any]) -> list[Any]:
    """The layers that are read, if the file lists them."""
    for part in (said, said.get("eagle_config")):
        taps = part.get("eagle_aux_hidden_state_layer_ids") if isinstance(part, dict) else None
        if isinstance(taps, list) and taps:
            return taps
    return []


def _factors(path: Path, said: dict[str, Any]) -> NDArray[np.float32] | None:
    """Divisors of the rotation's frequencies f32 [pairs], as Llama 3.1 stretches its context; None
    where it is not stretched.
    """
    scaling = said.get("rope_scaling")
    if not isinstance(scaling, dict):
        return None
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind in (None, "default"):
        return None
    if kind != "llama3":
        raise UnsupportedModelError(
            f"cannot open {path}: its rotary scaling is {kind!r}, and of a head only llama3's is "
            "read; convert the head to .gguf"
        )
    try:
        base = float(said.get("rope_theta", 10000.0))
        heads, width = int(said["num_attention_heads"]), int(said["hidden_size"])
        pairs = int(said.get("head_dim") or width // heads) // 2
        factor, low, high = (
            float(scaling[name]) for name in ("factor", "low_freq_factor", "high_freq_factor")
        )
        context = float(scaling["original_max_position_embeddings"])
        if not (0 < pairs <= 1 << 15 and base > 0 and factor > 0 and high > low > 0):
            raise ValueError("numbers that make no sense")
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelFileError(
            f"cannot open {path}: its rope_scaling is incomplete ({error}); download it again"
        ) from None
    frequencies = base ** -(np.arange(pairs) / pairs)
    wavelengths = 2 * np.pi / frequencies
    smooth = np.clip((context / wavelengths - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / factor + smooth)).astype(np.float32)
