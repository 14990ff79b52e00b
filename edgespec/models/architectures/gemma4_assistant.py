"""Gemma 4's assistants: draft heads of several layers that read the model's keys and values.

Keys and tensors are named as llama.cpp's architecture `gemma4-assistant` does, and mean the same: a
layer with a window reads the last of the model's layers that have one, others the last that sees
all. Tables that would let it write the likeliest clusters of tokens only are not used, as there.
"""

from __future__ import annotations

from edgespec.errors import OptionError
from edgespec.models.architectures.checks import check_head
from edgespec.models.architectures.gemma import sandwiched
from edgespec.models.architectures.gemma4 import attention, full_rope, local_rope, shared
from edgespec.models.architectures.reader import Reader
from edgespec.models.layers import Attention, LayerSpec
from edgespec.models.spec import HeadInput, ModelSpec

_EMBEDDING = "token_embd.weight"


def describe_assistant(read: Reader, model: ModelSpec) -> ModelSpec:
    """A head that is to draft for `model`; `read` takes all blocks for its own. OptionError where
    the two do not fit, ModelFileError where the file contradicts itself.
    """
    width = read.count("embedding_length_out")
    if width != model.dim:
        raise _misfit(read, model, f"it reads states {width} wide and the model's are {model.dim}")
    num_tokens = _num_tokens(read)
    if num_tokens != model.vocab_size:
        raise _misfit(read, model, f"it knows {num_tokens} tokens and the model {model.vocab_size}")
    head = ModelSpec(
        architecture=read.architecture,
        name=read.keys.text("general.name", read.path.stem) or read.path.stem,
        dim=read.dim,
        vocab_size=num_tokens,
        context_length=read.count("context_length", model.context_length),
        norm_epsilon=read.number("attention.layer_norm_rms_epsilon"),
        layers=_layers(read, model),
        embedding="",
        head=_EMBEDDING,
        embedding_scale=model.embedding_scale,
        embedded_tokens=model.num_readable,
        head_input=HeadInput(
            taps=(model.num_layers,),
            projection=read.matrix("nextn.pre_projection", read.dim, 2 * width),
            normed_states=True,
            state_projection=read.matrix("nextn.post_projection", width, read.dim),
            lent_keys=True,
        ),
    )
    check_head(read.path, head, read.tensors)
    return head


def _num_tokens(read: Reader) -> int:
    info = read.tensors.get(_EMBEDDING)
    if info is None or len(info.shape) != 2:
        raise read.wrong(f"it has no matrix {_EMBEDDING}")
    return info.shape[0]


def _layers(read: Reader, model: ModelSpec) -> tuple[LayerSpec, ...]:
    full, local = full_rope(read), local_rope(read)
    layers = []
    for layer, windowed in enumerate(read.windowed(1)):
        mixer = attention(read, layer, windowed, local if windowed else full)
        scale = f"blk.{layer}.layer_output_scale.weight"
        layers.append(
            sandwiched(
                read,
                layer,
                shared(mixer, _source(read, model, layer, mixer)),
                read.dense(layer, "gelu"),
                output_scale=scale if scale in read.tensors else "",
            )
        )
    return tuple(layers)


def _source(read: Reader, model: ModelSpec, layer: int, own: Attention) -> int:
    """The model's layer whose keys and values one reads."""
    kind = "a window" if own.window else "no window"
    for number in reversed(range(model.num_layers)):
        mixer = model.layers[number].mixer
        if isinstance(mixer, Attention) and bool(mixer.reach) == bool(own.window):
            break
    else:
        raise _misfit(read, model, f"its layer {layer} has {kind}, and so has none of the model's")
    if (mixer.kv_heads, mixer.head_dim) != (own.kv_heads, own.head_dim):
        raise _misfit(
            read,
            model,
            f"its layer {layer} reads {own.kv_heads} heads of keys that are {own.head_dim} wide, "
            f"and the model's layer {number} has {mixer.kv_heads} of {mixer.head_dim}",
        )
    if own.window and not 1 < own.window <= mixer.window:
        raise _misfit(
            read,
            model,
            f"its layer {layer} sees {own.window} positions, and the model's layer {number} keeps "
            f"{mixer.window}",
        )
    return number if mixer.shares is None else mixer.shares


def _misfit(read: Reader, model: ModelSpec, why: str) -> OptionError:
    return OptionError(
        f"{read.path} cannot draft for {model.name}: {why}; choose a head that was trained for "
        "this model"
    )
