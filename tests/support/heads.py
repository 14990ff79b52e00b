"""Models with draft heads that agree with them by construction, and EAGLE-3 heads in both layouts.

In a model whose layers add little, a token's embedding decides the next token. An MTP block that
passes the embedding on then says what the model says, and so does a head of EAGLE-3 whose attention
finds the token.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray

from edgespec.models.open_model import open_model
from tests.support.gguf_models import add_field, gpt2_vocabulary
from tests.support.random_models import MODELS, write
from tests.support.random_models.recipe import VOCABULARY_SIZE, Array, Breakage

FAINT = 0.1
"""What is left of what layers add."""


def _faint(values: Array) -> Array:
    return values * np.float32(FAINT)


def _ones(values: Array) -> Array:
    return np.ones_like(values)


def _first_half(values: Array) -> Array:
    """[identity, 0]."""
    return np.eye(*values.shape, dtype=np.float32)


AGREEING = Breakage(
    "heads agree",
    edits={
        "attn_output.weight": _faint,
        "ssm_out.weight": _faint,
        "ffn_down.weight": _faint,
        "ffn_down_exps.weight": _faint,
        "ffn_down_shexp.weight": _faint,
        "nextn.eh_proj.weight": _first_half,
        "nextn.enorm.weight": _ones,
        "nextn.shared_head_norm.weight": _ones,
        "output_norm.weight": _ones,
    },
)


def write_model(name: str, path: Path, *, agreeing: bool = False, type: str = "F32") -> Path:
    """A random model, with a head if its architecture has one."""
    return write(MODELS[name](), path, type=type, breakage=AGREEING if agreeing else None)


def eagle3_tensors(
    model: Path,
    *,
    written: int = 300,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 64,
    ffn: int = 256,
    seed: int = 0,
) -> dict[str, NDArray[Any]]:
    """Noise as a head for a model, by GGUF's names, rotated by neighbours; d2t has the model's ids
    of the tokens that most often follow another.
    """
    rng = np.random.default_rng(seed)
    with open_model(model) as file:
        embedding = file.matrix_f32(file.spec.embedding)
        head = file.matrix_f32(file.spec.head)
    dim = embedding.shape[1]

    def noise(rows: int, columns: int, gain: float = 1.0) -> NDArray[np.float32]:
        spread = np.float32(gain / columns**0.5)
        return rng.standard_normal((rows, columns), dtype=np.float32) * spread

    def gains(width: int) -> NDArray[np.float32]:
        return (1 + 0.1 * rng.standard_normal(width)).astype(np.float32)

    normed = embedding / np.sqrt(np.mean(embedding**2, axis=1, keepdims=True))
    following = (normed @ head.T).argmax(axis=1)
    common = np.bincount(following, minlength=len(embedding)).argsort()[::-1]
    ids = np.sort(common[:written]).astype(np.int64)
    return {
        "fc.weight": noise(dim, 3 * dim),
        "d2t": ids,
        "output.weight": head[ids],
        "output_norm.weight": np.ones(dim, np.float32),
        "blk.0.attn_norm.weight": gains(dim),
        "blk.0.attn_norm_2.weight": gains(dim),
        "blk.0.attn_q.weight": noise(heads * head_dim, 2 * dim),
        "blk.0.attn_k.weight": noise(kv_heads * head_dim, 2 * dim),
        "blk.0.attn_v.weight": noise(kv_heads * head_dim, 2 * dim),
        "blk.0.attn_output.weight": noise(dim, heads * head_dim),
        "blk.0.ffn_norm.weight": gains(dim),
        "blk.0.ffn_gate.weight": noise(ffn, dim),
        "blk.0.ffn_up.weight": noise(ffn, dim),
        "blk.0.ffn_down.weight": noise(dim, ffn, 0.5),
    }


def agreeing_eagle3(model: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """A head for a model whose layers add little, and its metadata: attention finds the position's
    own token and passes its embedding on.
    """
    tensors = eagle3_tensors(model, kv_heads=4)
    dim = tensors["fc.weight"].shape[0]
    nothing, whole = np.zeros((dim, dim), np.float32), np.eye(dim, dtype=np.float32)
    rng = np.random.default_rng(1)
    matching = rng.standard_normal((dim, dim), dtype=np.float32) * np.float32(2 / dim**0.5)
    for name, matrix in (("q", matching), ("k", matching), ("v", whole)):
        tensors[f"blk.0.attn_{name}.weight"] = np.concatenate([matrix, nothing], axis=1)
    tensors["blk.0.attn_output.weight"] = whole
    tensors["blk.0.attn_norm.weight"] = np.ones(dim, np.float32)
    for name in ("attn_norm_2", "ffn_norm"):
        tensors[f"blk.0.{name}.weight"] = _faint(np.ones(dim, np.float32))
    return tensors, eagle3_keys(tensors, layers=4, norm_before_residual=True)


def eagle3_keys(
    tensors: dict[str, NDArray[Any]], *, layers: int, head_dim: int = 64, **more: Any
) -> dict[str, Any]:
    """Metadata of such a head, for a model of so many layers."""
    dim = tensors["fc.weight"].shape[0]
    keys = {
        "block_count": 1,
        "context_length": 1024,
        "embedding_length": dim,
        "feed_forward_length": tensors["blk.0.ffn_gate.weight"].shape[0],
        "attention.head_count": tensors["blk.0.attn_q.weight"].shape[0] // head_dim,
        "attention.head_count_kv": tensors["blk.0.attn_k.weight"].shape[0] // head_dim,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": head_dim,
        "rope.freq_base": 10000.0,
        "vocab_size": VOCABULARY_SIZE,
        "target_layers": [1, layers // 2, layers - 1],
        "target_hidden_size": tensors["fc.weight"].shape[1] // 3,
        "norm_before_residual": False,
    }
    return keys | more


def write_eagle3(
    path: Path, tensors: dict[str, NDArray[Any]], keys: dict[str, Any], *, type: str = "F32"
) -> Path:
    """As llama.cpp's converter writes it; matrices are of the `type`."""
    writer = GGUFWriter(path, "eagle3")
    for key, value in keys.items():
        if value is not None:
            add_field(writer, f"eagle3.{key}", value)
    for key, value in gpt2_vocabulary(VOCABULARY_SIZE).items():
        add_field(writer, key, value)
    for name, values in tensors.items():
        kind = GGMLQuantizationType.I64 if values.dtype == np.int64 else None
        if values.ndim == 2:
            kind = GGMLQuantizationType[type]
            values = quantize(values, kind)
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


_THEIRS = {
    "attn_norm": "input_layernorm",
    "attn_norm_2": "hidden_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER = {"output.weight": "lm_head.weight", "output_norm.weight": "norm.weight"}


def write_checkpoint(
    folder: Path, tensors: dict[str, NDArray[Any]], keys: dict[str, Any], **config: Any
) -> Path:
    """The same head as it is published: halves are rotated, d2t has steps."""
    from safetensors.numpy import save_file

    head_dim = keys["attention.key_length"]
    found: dict[str, NDArray[Any]] = {"t2d": np.zeros(VOCABULARY_SIZE, np.bool_)}
    for name, values in tensors.items():
        if name == "d2t":
            found[name] = values - np.arange(len(values))
            found["t2d"][values] = True
        elif name.startswith("blk.0."):
            part = name.removeprefix("blk.0.").removesuffix(".weight")
            if part in ("attn_q", "attn_k"):
                pairs = values.reshape(-1, head_dim // 2, 2, values.shape[1])
                values = pairs.swapaxes(1, 2).reshape(values.shape)
            found[f"midlayer.{_THEIRS[part]}.weight"] = np.ascontiguousarray(values)
        else:
            found[_OUTER.get(name, name)] = values
    folder.mkdir()
    save_file(found, folder / "model.safetensors")
    said = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": keys["embedding_length"],
        "intermediate_size": keys["feed_forward_length"],
        "num_attention_heads": keys["attention.head_count"],
        "num_key_value_heads": keys["attention.head_count_kv"],
        "head_dim": head_dim,
        "num_hidden_layers": 1,
        "max_position_embeddings": keys["context_length"],
        "rms_norm_eps": keys["attention.layer_norm_rms_epsilon"],
        "rope_theta": keys["rope.freq_base"],
        "draft_vocab_size": len(tensors["d2t"]) if "d2t" in tensors else VOCABULARY_SIZE,
        "vocab_size": VOCABULARY_SIZE,
        "norm_before_residual": keys["norm_before_residual"],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": keys["target_layers"]},
    }
    text = json.dumps(said | config)
    (folder / "config.json").write_text(text, "utf-8")
    return folder
