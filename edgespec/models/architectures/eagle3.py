"""EAGLE-3 heads: one layer over the streams of three of another model's layers.

"EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test". Keys
and tensors are named as llama.cpp's architecture `eagle3` does, and mean the same; checkpoints that
are published as safetensors are brought to these names (`models/safetensors_file.py`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgespec.errors import OptionError
from edgespec.models.architectures.checks import check_head
from edgespec.models.architectures.reader import Reader
from edgespec.models.layers import Attention, LayerSpec, Matrix, Norm, RopeLayout
from edgespec.models.spec import HeadInput, ModelSpec

ARCHITECTURE = "eagle3"
NUM_TAPS = 3
TOKEN_IDS = "d2t"
"""The tensor of the model's ids of the head's tokens."""
_EMBEDDING, _OUTPUT, _LAYER = "token_embd.weight", "output.weight", "blk.0."


def describe_head(read: Reader, model: ModelSpec, layout: RopeLayout = "interleaved") -> ModelSpec:
    """A head that is to draft for `model`; OptionError where the two do not fit, ModelFileError
    where the file contradicts itself.
    """
    if read.num_layers != 1 or read.num_extra:
        raise read.wrong(f"a head of {read.num_layers} layers, where EAGLE-3 has one")
    taps, width = _taps(read), read.count("target_hidden_size", read.dim)
    _check_fit(read, model, taps, width)
    num_written = _num_written(read, model)
    own_embedding = _EMBEDDING in read.tensors
    fused = NUM_TAPS * width
    norm_fused = read.flag("norm_before_fc", False)
    head = ModelSpec(
        architecture=ARCHITECTURE,
        name=read.keys.text("general.name", read.path.stem) or read.path.stem,
        dim=read.dim,
        vocab_size=num_written,
        context_length=max(read.count("context_length", model.context_length), 1),
        norm_epsilon=read.number("attention.layer_norm_rms_epsilon"),
        layers=(_layer(read, layout),),
        embedding=_EMBEDDING if own_embedding else "",
        head=_OUTPUT if _OUTPUT in read.tensors else "",
        embedded_tokens=_num_embedded(read, model) if own_embedding else model.vocab_size,
        token_ids=TOKEN_IDS if TOKEN_IDS in read.tensors else "",
        head_input=HeadInput(
            taps=taps,
            token_norm=read.norm(f"{_LAYER}attn_norm"),
            state_norm=read.norm(f"{_LAYER}attn_norm_2"),
            normed_stream=read.flag("norm_before_residual", False),
            fusion=Matrix("fc.weight", read.dim, fused),
            fusion_norm=Norm("enc.output_norm.weight", fused) if norm_fused else None,
        ),
    )
    check_head(read.path, head, read.tensors)
    return head


def _taps(read: Reader) -> tuple[int, ...]:
    """The layers whose inputs are read, as the file lists them."""
    listed = read.keys.values.get(f"{read.architecture}.target_layers")
    if not isinstance(listed, np.ndarray) or listed.dtype.kind not in "iu":
        raise read.wrong("target_layers should list the layers that the head reads")
    taps = tuple(int(each) for each in listed)
    if len(taps) != NUM_TAPS or min(taps) < 0:
        raise read.wrong(f"target_layers should be three layers, and is {list(taps)}")
    return taps


def _check_fit(read: Reader, model: ModelSpec, taps: tuple[int, ...], width: int) -> None:
    path, name = read.path, model.name
    if width != model.dim:
        raise OptionError(
            f"{path} cannot draft for {name}: it reads streams {width} wide and the model's are "
            f"{model.dim}; choose a head that was trained for this model"
        )
    if max(taps) > model.num_layers:
        raise OptionError(
            f"{path} cannot draft for {name}: it reads layer {max(taps)} and the model has "
            f"{model.num_layers}; choose a head that was trained for this model"
        )
    lends = [n for n in (_EMBEDDING, _OUTPUT) if n not in read.tensors]
    if lends and read.dim != model.dim:
        raise OptionError(
            f"{path} cannot draft for {name}: it has no {lends[0]} of its own and is {read.dim} "
            f"wide, where the model's is {model.dim}; choose a head that was trained for this model"
        )
    if _OUTPUT not in read.tensors and TOKEN_IDS in read.tensors:
        raise read.wrong(f"it lists tokens of its own and has no {_OUTPUT} for them")


def _num_written(read: Reader, model: ModelSpec) -> int:
    """Tokens that the head can draft."""
    if TOKEN_IDS in read.tensors:
        shape = read.tensors[TOKEN_IDS].shape
        if len(shape) != 1 or not 1 <= shape[0] <= model.vocab_size:
            raise OptionError(
                f"{read.path} cannot draft for {model.name}: it lists {shape[0]} tokens and the "
                f"model has {model.vocab_size}; choose a head that was trained for this model"
            )
        return shape[0]
    if _OUTPUT in read.tensors and read.tensors[_OUTPUT].shape[0] != model.vocab_size:
        raise OptionError(
            f"{read.path} cannot draft for {model.name}: it drafts "
            f"{read.tensors[_OUTPUT].shape[0]} tokens without saying which, and the model has "
            f"{model.vocab_size}; choose a head that was trained for this model"
        )
    return model.vocab_size


def _num_embedded(read: Reader, model: ModelSpec) -> int:
    """Tokens that the head's own embedding knows."""
    rows = read.tensors[_EMBEDDING].shape[0]
    if rows < model.vocab_size:
        raise OptionError(
            f"{read.path} cannot draft for {model.name}: it knows {rows} tokens and the model "
            f"{model.vocab_size}; choose a head that was trained for this model"
        )
    return rows


def _layer(read: Reader, layout: RopeLayout) -> LayerSpec:
    """A layer of a Llama whose queries, keys and values are made of twice the width."""
    attention = read.attention(0, read.rope(layout, factors=True))
    return LayerSpec(
        _widened(attention, 2 * read.dim),
        read.dense(0),
        ffn_norm=read.norm(f"{_LAYER}ffn_norm"),
    )


def _widened(attention: Attention, columns: int) -> Attention:
    assert attention.key is not None and attention.value is not None
    query, key, value = (
        replace(each, columns=columns) for each in (attention.query, attention.key, attention.value)
    )
    return replace(attention, query=query, key=key, value=value)
