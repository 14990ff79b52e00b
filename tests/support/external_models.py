"""Tiny random models that only llama.cpp runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from tests.support.gguf_models import add_field, add_tensor, llama_vocabulary, write_gguf

_GEMMA = {"gemma.attention.key_length": 16, "gemma.attention.value_length": 16}


def write_gemma(path: Path, **options: object) -> Path:
    """Like Llama but for its norms and embedding scale."""
    metadata = {**_GEMMA, **options.pop("metadata", {})}  # type: ignore[dict-item]
    return write_gguf(path, arch="gemma", tied=True, metadata=metadata, **options)  # type: ignore[arg-type]


def write_mamba(path: Path, *, dim: int = 64, layers: int = 2, vocab: int = 300) -> Path:
    """A state-space model: no keys and values, a state for each sequence."""
    inner, state, kernel, rank = 2 * dim, 16, 4, 8
    fields = {
        "general.name": "random-mamba",
        "mamba.block_count": layers,
        "mamba.context_length": 512,
        "mamba.embedding_length": dim,
        "mamba.feed_forward_length": 0,
        "mamba.attention.head_count": 0,
        "mamba.attention.layer_norm_rms_epsilon": 1e-5,
        "mamba.ssm.conv_kernel": kernel,
        "mamba.ssm.inner_size": inner,
        "mamba.ssm.state_size": state,
        "mamba.ssm.time_step_rank": rank,
        "mamba.vocab_size": vocab,
    } | llama_vocabulary(vocab)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocab, dim),
        "output_norm.weight": (dim,),
        "output.weight": (vocab, dim),
    }
    for layer in range(layers):
        shapes |= {
            f"blk.{layer}.{name}": shape
            for name, shape in {
                "attn_norm.weight": (dim,),
                "ssm_in.weight": (2 * inner, dim),
                "ssm_conv1d.weight": (inner, kernel),
                "ssm_conv1d.bias": (inner,),
                "ssm_x.weight": (rank + 2 * state, inner),
                "ssm_dt.weight": (inner, rank),
                "ssm_dt.bias": (inner,),
                "ssm_a": (inner, state),
                "ssm_d": (inner,),
                "ssm_out.weight": (dim, inner),
            }.items()
        }
    writer, rng = GGUFWriter(path, "mamba"), np.random.default_rng(0)
    for key, value in fields.items():
        add_field(writer, key, value)
    for name, shape in shapes.items():
        add_tensor(writer, rng, name, shape, "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
