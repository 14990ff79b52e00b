"""The files beside the graph, by the names that onnxruntime-genai and others look for."""

from __future__ import annotations

from typing import Any

from edgespec.models.file import ModelFile
from edgespec.tools.export.graph import fuses_rotation
from edgespec.tools.export.plain_model import plain_attention


def genai_config(file: ModelFile, graph: str, context: int) -> dict[str, Any]:
    """`genai_config.json`."""
    spec, tokenizer = file.spec, file.tokenizer
    ends = sorted(tokenizer.end_ids)
    decoder = {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
        "filename": graph,
        "head_size": spec.head_dim,
        "hidden_size": spec.dim,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            **({} if fuses_rotation(plain_attention(spec)) else {"position_ids": "position_ids"}),
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
        "num_attention_heads": spec.num_heads,
        "num_hidden_layers": spec.num_layers,
        "num_key_value_heads": spec.num_kv_heads,
    }
    bos = tokenizer.bos_id
    return {
        "model": {
            **({} if bos is None else {"bos_token_id": bos}),
            "context_length": context,
            "decoder": decoder,
            "eos_token_id": ends or [0],
            "pad_token_id": ends[0] if ends else 0,
            "type": spec.architecture,
            "vocab_size": spec.vocab_size,
        },
        "search": {"max_length": context, "past_present_share_buffer": True},
    }


def tokenizer_config(file: ModelFile, context: int) -> dict[str, Any]:
    """`tokenizer_config.json`, with the chat template as the file has it."""
    tokenizer = file.tokenizer
    values: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": tokenizer.add_bos,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
    }
    for name, token in (("bos_token", tokenizer.bos_id), ("eos_token", tokenizer.eos_id)):
        if token is not None:
            values[name] = tokenizer.token_text(token)
    template = file.metadata.get("tokenizer.chat_template")
    if isinstance(template, str) and template:
        values["chat_template"] = template
    return values
