"""From a head's checkpoint to GGUF: a file of its own (`eagle3`), or one more layer of its trunk's.

Keys, names and layouts are those that llama.cpp reads.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from training.export import (
    add_architecture,
    add_matrix,
    add_tensors,
    close_file,
    open_file,
)
from training.heads.eagle import EagleHead
from training.heads.mtp import MtpBlock
from training.model import TinyLlama


def export_eagle(head: EagleHead, trunk: TinyLlama, tokenizer: Path, path: Path) -> str:
    """Write an `eagle3` file, whose embedding is its target's; return its SHA-256."""
    writer = open_file(path, "eagle3", "A head that drafts for EdgeSpec Tiny", tokenizer)
    shape = trunk.shape
    writer.add_block_count(1)
    writer.add_context_length(shape.context_tokens)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(head.shape.ffn_width)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(head.shape.num_kv_heads)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    writer.add_key_length(shape.head_width)
    writer.add_value_length(shape.head_width)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_vocab_size(shape.vocab_size)
    writer.add_array("eagle3.target_layers", list(head.shape.taps))
    writer.add_uint32("eagle3.target_hidden_size", shape.width)
    writer.add_bool("eagle3.norm_before_residual", False)
    for name, values in head.state_dict().items():
        if name == "d2t":
            writer.add_tensor(name, values.cpu().numpy().astype(np.int64))
        else:
            add_matrix(writer, name, values.float().cpu().numpy())
    return close_file(writer, path)


def export_with_mtp(block: MtpBlock, trunk: TinyLlama, tokenizer: Path, path: Path) -> str:
    """Write the trunk with its MTP block behind the last layer; return the file's SHA-256."""
    shape = trunk.shape
    description = "A small hybrid for trying EdgeSpec, with a block that drafts for it"
    writer: gguf.GGUFWriter = open_file(path, shape.architecture, description, tokenizer)
    add_architecture(writer, shape, num_nextn=1)
    add_tensors(writer, trunk, shape)
    add_tensors(writer, block, shape, f"blk.{shape.num_layers}.")
    return close_file(writer, path)
