"""What to start from: the weights and the tokenizer of an exported file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, models
from torch import Tensor

from training.data import SPECIAL_TOKENS, byte_level
from training.model import TinyLlama
from training.siblings import from_gguf, gguf_name, to_gguf

DENSE_NET = re.compile(r"(blk\.\d+\.ffn_(?:gate|up|down))\.weight")
ROUTED = re.compile(r"ffn_gate_inp\.|_shexp\.")
MIXER = re.compile(r"\.(?:ssm_|attn_(?!norm))")


def load_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a GGUF file that `export` wrote: weights fit one vocabulary only."""
    fields = gguf.GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"].contents()]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = byte_level(models.BPE(vocab=vocab, merges=merges))
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    return tokenizer


def upcycled(stored: dict[str, Tensor], model: TinyLlama) -> dict[str, Tensor]:
    """Return the weights of a dense file as those of another architecture of the same widths.

    A mixture gets experts that are alike, and random routers ("Sparse Upcycling: Training
    Mixture-of-Experts from Dense Checkpoints", section 2.1): since a token's weights add up to 1,
    and an expert for all tokens begins by writing zeros, it computes what the dense model does,
    until the experts, of which each reads other tokens, grow apart. A hybrid gets everything of a
    Llama but the mixers, which start at random: attention and delta nets have no weights in common.
    What a hybrid's file brings to draft for it is left.
    """
    shape = model.shape
    state = {gguf_name(n): to_gguf(n, values, shape) for n, values in model.state_dict().items()}
    if shape.is_hybrid and not any("post_attention_norm" in name for name in stored):
        stored = {name.replace("ffn_norm", "post_attention_norm"): stored[name] for name in stored}
        mixers = {name: values for name, values in state.items() if MIXER.search(name)}
        kept = {name: values for name, values in stored.items() if not MIXER.search(name)}
        stored = kept | mixers
    stored = {n: v for n, v in stored.items() if not n.startswith(f"blk.{shape.num_layers}.")}
    if not shape.num_experts:
        return stored
    mixture = {
        name: torch.zeros_like(values) if "ffn_down_shexp" in name else values
        for name, values in state.items()
        if ROUTED.search(name)
    }
    for name, values in stored.items():
        net = DENSE_NET.fullmatch(name)
        if net is None:
            mixture[name] = values
        else:
            mixture[f"{net[1]}_exps.weight"] = values.expand(shape.num_experts, -1, -1)
    return mixture


def load_weights(model: TinyLlama, path: Path, tokenizer: Path, upcycle: bool = False) -> None:
    """Copy the weights of the GGUF file `path`, as Q8_0 left them, into `model`.

    With `upcycle`, the file is dense and `model` a mixture of experts, a hybrid or both. The
    optimizers start afresh.
    Raises SystemExit where the file has another vocabulary than `tokenizer`, a `tokenizer.json`, or
    other tensors than the model.
    """
    reader = gguf.GGUFReader(path)
    vocab = json.loads(tokenizer.read_text(encoding="utf-8"))["model"]["vocab"]
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    if tokens != sorted(vocab, key=vocab.__getitem__):
        raise SystemExit(f"{path} has another vocabulary than {tokenizer}: run prepare again")
    stored = {
        tensor.name: torch.from_numpy(
            gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        )
        for tensor in reader.tensors
    }
    if upcycle:
        stored = upcycled(stored, model)
    names = {gguf_name(name): name for name in model.state_dict()}
    if names.keys() != stored.keys():
        raise SystemExit(f"{path} holds another model than the one to be trained")
    state = {names[name]: from_gguf(names[name], values) for name, values in stored.items()}
    if any(state[name].shape != values.shape for name, values in model.state_dict().items()):
        raise SystemExit(f"{path} holds a model of another shape than the one to be trained")
    model.load_state_dict(state)
