"""Which function describes which architecture, by the name that files state."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from edgespec.errors import ModelFileError, UnsupportedModelError
from edgespec.models.architectures.checks import check_tensors
from edgespec.models.architectures.reader import Reader
from edgespec.models.gguf.header import GgufHeader
from edgespec.models.gguf.keys import Keys
from edgespec.models.gguf.strings import StringArray
from edgespec.models.spec import ModelSpec

ARCHITECTURES = {
    "llama": "llama.describe",
    "qwen2": "qwen.describe_qwen2",
    "qwen3": "qwen.describe_qwen3",
    "qwen3moe": "qwen.describe_qwen3moe",
    "gpt-oss": "gpt_oss.describe",
    "gemma3": "gemma.describe_gemma3",
    "qwen35": "qwen35.describe",
    "qwen35moe": "qwen35.describe_moe",
    "lfm2": "lfm2.describe",
    "lfm2moe": "lfm2.describe",
    "gemma4": "gemma4.describe",
    "granite": "granite.describe",
    "granitehybrid": "granite.describe",
    "phi3": "phi3.describe",
    "smollm3": "llama.describe_smollm3",
    "mistral3": "llama.describe_mistral3",
    "gemma2": "gemma.describe_gemma2",
    "olmo2": "olmo2.describe",
    "llama4": "llama4.describe",
    "glm4moe": "glm4moe.describe",
    "qwen2moe": "qwen.describe_qwen2moe",
    "gemma3n": "gemma3n.describe",
    "deepseek2": "deepseek2.describe",
}
"""Module and function; a start imports the one that its model needs."""
EAGLE3, ASSISTANT = HEADS = ("eagle3", "gemma4-assistant")
"""Draft heads in files of their own (`models/draft_heads.py`)."""


def build_spec(path: Path, header: GgufHeader) -> ModelSpec:
    """Read the hyper-parameters, then check every tensor's name, shape and type against them.

    Raises UnsupportedModelError for what this build cannot run, ModelFileError for contradictions.
    """
    keys = Keys(path, header.metadata)
    arch = keys.text("general.architecture")
    _refuse_external(keys, arch)
    _check_vocabulary(keys, arch, header)
    spec = _describer(arch)(Reader(path, header))
    check_tensors(path, spec, header.tensors)
    return spec


def _describer(arch: str) -> Callable[[Reader], ModelSpec]:
    module, _, function = ARCHITECTURES[arch].partition(".")
    found = import_module(f"edgespec.models.architectures.{module}")
    made: Callable[[Reader], ModelSpec] = getattr(found, function)
    return made


def _refuse_external(keys: Keys, arch: str) -> None:
    """Say no to what would load but run wrongly."""
    path = keys.path
    if not keys.flag(f"{arch}.attention.causal", True):
        raise UnsupportedModelError(
            f"cannot run {path}: its attention is not causal (an embedding model); "
            "choose a text generation model"
        )
    if arch in HEADS:
        raise UnsupportedModelError(
            f"cannot run {path}: it is a draft head; give it with --draft-model beside the model "
            "that it was trained for"
        )
    if arch not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"cannot run {path}: its architecture is {arch!r}; the native and reference backends "
            f"run {', '.join(ARCHITECTURES)}, so choose such a model"
        )


def _check_vocabulary(keys: Keys, arch: str, header: GgufHeader) -> None:
    """The embedding's rows must agree with the vocabulary and the metadata."""
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelFileError(
            f"cannot open {keys.path}: it has no token_embd.weight matrix; "
            "is it a vocabulary-only file? download the whole model"
        )
    rows = embedding.shape[0]
    tokens = keys.values.get("tokenizer.ggml.tokens")
    if isinstance(tokens, StringArray) and len(tokens) != rows:
        raise ModelFileError(
            f"cannot open {keys.path}: its vocabulary has {len(tokens)} tokens and "
            f"token_embd.weight {rows} rows; convert the model again"
        )
    stated = keys.count(f"{arch}.vocab_size", rows)
    if stated != rows:
        raise ModelFileError(
            f"cannot open {keys.path}: {arch}.vocab_size is {stated} and token_embd.weight has "
            f"{rows} rows; convert the model again"
        )
