"""From a checkpoint to the GGUF file that ships: Q8_0 matrices, F32 norms, tokenizer, template."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

from training.data import CHAT_TEMPLATE, SPECIAL_TOKENS
from training.model import TinyLlama
from training.shape import Shape
from training.siblings import gguf_name, to_gguf

EXIT_LAYER_KEY = "edgespec.early_exit.layer"


def load_model(checkpoint: Path) -> TinyLlama:
    """Return the model of a checkpoint, ready to use."""
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    model = TinyLlama(Shape(**state["shape"]))
    model.load_state_dict(state["model"])
    model.eval()
    return model


def add_architecture(writer: gguf.GGUFWriter, shape: Shape, num_nextn: int = 0) -> None:
    """Write the hyper-parameters that a file of the architecture needs.

    `num_nextn` layers follow those of the shape, and predict what comes after the next token.
    """
    writer.add_block_count(shape.num_layers + num_nextn)
    if num_nextn:
        writer.add_nextn_predict_layers(num_nextn)
    writer.add_context_length(shape.context_tokens)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.ffn_width)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    writer.add_key_length(shape.head_width)
    writer.add_value_length(shape.head_width)
    writer.add_rope_dimension_count(shape.rope_width)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_vocab_size(shape.vocab_size)
    writer.add_uint32(EXIT_LAYER_KEY, shape.exit_layer)
    if shape.is_hybrid:
        # Pairs that turn with each of three positions, which are one and the same for text. A
        # fourth position is 0 there, so the sections must hold all pairs.
        pairs = shape.rope_width // 2
        thirds = [(pairs + 2 - part) // 3 for part in range(3)]
        writer.add_rope_dimension_sections([*thirds, 0])
        writer.add_full_attention_interval(shape.attention_interval)
        writer.add_ssm_conv_kernel(shape.conv_tokens)
        writer.add_ssm_state_size(shape.state_width)
        writer.add_ssm_group_count(shape.num_key_heads)
        writer.add_ssm_time_step_rank(shape.num_value_heads)
        writer.add_ssm_inner_size(shape.num_value_heads * shape.state_width)
    if shape.num_experts:
        writer.add_expert_count(shape.num_experts)
        writer.add_expert_used_count(shape.num_experts_used)
    if shape.architecture in ("qwen3moe", "qwen35moe"):
        writer.add_expert_feed_forward_length(shape.ffn_width)
    if shape.shared_width:
        writer.add_expert_shared_feed_forward_length(shape.shared_width)


def add_tokenizer(writer: gguf.GGUFWriter, path: Path) -> None:
    """Write the byte-level BPE of a `tokenizer.json` and the chat template."""
    model = json.loads(path.read_text(encoding="utf-8"))["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in SPECIAL_TOKENS else normal for token in tokens])
    writer.add_token_merges(merges)
    end_of_text, _, turn_end = (model["vocab"][token] for token in SPECIAL_TOKENS)
    # A reply ends with <|im_end|>, a plain text with <|endoftext|>: both end generation.
    writer.add_eos_token_id(turn_end)
    writer.add_eot_token_id(end_of_text)
    writer.add_bos_token_id(end_of_text)
    writer.add_pad_token_id(end_of_text)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def add_matrix(writer: gguf.GGUFWriter, name: str, values: NDArray[np.float32]) -> None:
    """Write matrices [..., rows, columns] as Q8_0; vectors, short rows and routers as F32."""
    if values.ndim == 1 or "ssm_conv1d" in name or "ffn_gate_inp" in name:
        writer.add_tensor(name, values)
        return
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def open_file(path: Path, architecture: str, description: str, tokenizer: Path) -> gguf.GGUFWriter:
    """Return a writer that has been told what the file is and which tokens it knows."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(path.stem.removesuffix("-q8_0"))
    writer.add_license("Apache-2.0")
    writer.add_description(description)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_tokenizer(writer, tokenizer)
    return writer


def add_tensors(
    writer: gguf.GGUFWriter, module: torch.nn.Module, shape: Shape, prefix: str = ""
) -> None:
    """Write the tensors of a model, or of a layer behind its `prefix`."""
    for name, parameter in module.state_dict().items():
        values = to_gguf(name, parameter.float(), shape)
        add_matrix(writer, gguf_name(prefix + name), values.cpu().numpy())


def close_file(writer: gguf.GGUFWriter, path: Path) -> str:
    """Write what the writer was told and return the file's SHA-256 in hexadecimal."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return hashlib.sha256(path.read_bytes()).hexdigest()


def export(checkpoint: Path, tokenizer: Path, path: Path) -> str:
    """Write the GGUF file and return its SHA-256 in hexadecimal."""
    model = load_model(checkpoint)
    description = (
        f"A small model for trying EdgeSpec; early-exit loss at layer {model.shape.exit_layer}"
    )
    writer = open_file(path, model.shape.architecture, description, tokenizer)
    add_architecture(writer, model.shape)
    add_tensors(writer, model, model.shape)
    return close_file(writer, path)
