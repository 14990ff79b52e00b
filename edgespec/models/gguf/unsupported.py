"""What planning needs to know of a model that only llama.cpp may be able to run."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from edgespec.errors import ModelFileError, UnsupportedModelError
from edgespec.models.external_sizes import external_layers
from edgespec.models.gguf.header import GgufHeader
from edgespec.models.gguf.keys import Keys
from edgespec.models.gguf.strings import StringArray
from edgespec.models.spec import ModelSpec

_STATE_KEYS = (".ssm.", ".wkv.", ".shortconv.", ".kda.")
"""Parts of metadata keys that only models with a recurrent state have."""


def unsupported_spec(path: Path, header: GgufHeader, refused: UnsupportedModelError) -> ModelSpec:
    """The sizes of a model that the native backend refused, with its reason.

    What does not concern planning (norms, rotation) is left at values that mean nothing. Raises
    `refused` for a file that no backend can take, ModelFileError for contradictions.
    """
    keys = Keys(path, header.metadata)
    arch = keys.text("general.architecture")
    tokens = keys.values.get("tokenizer.ggml.tokens")
    if not keys.flag(f"{arch}.attention.causal", True):
        raise refused
    if not isinstance(tokens, StringArray):
        raise ModelFileError(
            f"cannot open {path}: it has no tokenizer.ggml.tokens; convert the model again, with "
            "its tokenizer files beside it"
        )
    dim = keys.count(f"{arch}.embedding_length")
    heads = _largest(keys, f"{arch}.attention.head_count", 1)
    return ModelSpec(
        architecture=arch,
        name=keys.text("general.name", path.stem) or path.stem,
        dim=dim,
        vocab_size=len(tokens),
        context_length=keys.count(f"{arch}.context_length"),
        norm_epsilon=0.0,
        layers=external_layers(
            keys.count(f"{arch}.block_count"),
            dim=dim,
            heads=heads,
            kv_heads=_largest(keys, f"{arch}.attention.head_count_kv", heads),
            head_dim=_largest(keys, f"{arch}.attention.key_length", max(1, dim // heads)),
            ffn_dim=_largest(keys, f"{arch}.feed_forward_length", 0),
        ),
        head="output.weight" if "output.weight" in header.tensors else "token_embd.weight",
        num_parameters=sum(math.prod(info.shape) for info in header.tensors.values()),
        refusal=str(refused),
        recurrent=any(part in key for part in _STATE_KEYS for key in keys.values),
    )


def _largest(keys: Keys, key: str, default: int) -> int:
    """A count, the largest where layers differ; layers without attention have none."""
    value = keys.values.get(key)
    if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "iu":
        return max(1, int(value.max()))
    return max(1, keys.count(key, default, least=0))
