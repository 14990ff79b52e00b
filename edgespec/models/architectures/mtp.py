"""Blocks that predict the token after next (MTP, `nextn` in a file), as draft heads.

Conventions are llama.cpp's: the head reads what the model's last norm gives, and its own states are
what its last norm gives. Of several blocks the first is used, for every token of a chain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from edgespec.errors import EdgeSpecError
from edgespec.models.architectures.checks import check_head
from edgespec.models.architectures.reader import Reader
from edgespec.models.layers import LayerSpec
from edgespec.models.spec import HeadInput, ModelSpec


def with_next_token_head(
    read: Reader, model: ModelSpec, layer: Callable[[int], LayerSpec]
) -> ModelSpec:
    """The model with the head that its file brings; as it is where there is none. `layer` describes
    the block of a number.

    A block that cannot be used is left alone, and the model's note says why.
    """
    own = f"blk.{read.num_layers}.nextn."
    if not read.num_extra or f"{own}eh_proj.weight" not in read.tensors:
        return model
    try:
        head = _head(read, model, layer(read.num_layers), own)
        check_head(read.path, head, read.tensors)
    except EdgeSpecError as error:
        return replace(model, note=f"its block that predicts further tokens is not used: {error}")
    note = "its block that predicts further tokens drafts (--drafters mtp)"
    return replace(model, draft_head=head, note=note)


def _head(read: Reader, model: ModelSpec, layer: LayerSpec, own: str) -> ModelSpec:
    def lent(name: str, otherwise: str) -> str:
        """The block's own tensor if it has one."""
        return f"{own}{name}.weight" if f"{own}{name}.weight" in read.tensors else otherwise

    return replace(
        model,
        layers=(layer,),
        embedding=lent("embed_tokens", ""),
        head=lent("shared_head_head", ""),
        last_norm=lent("shared_head_norm", model.last_norm),
        recurrent=False,
        unused=(),
        note="",
        num_parameters=0,
        head_input=HeadInput(
            taps=(read.num_layers,),
            token_norm=read.norm(f"{own}enorm"),
            state_norm=read.norm(f"{own}hnorm"),
            projection=read.matrix(f"{own}eh_proj", read.dim, 2 * read.dim),
            normed_states=True,
        ),
    )
