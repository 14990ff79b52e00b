"""What a model file says about itself, as plain values."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import asdict
from typing import Any

import numpy as np

from edgespec.errors import EdgeSpecError
from edgespec.models.adapter import open_adapter, place_beside
from edgespec.models.file import ModelFile
from edgespec.models.layers import (
    Attention,
    GatedDeltaNet,
    LatentAttention,
    Mamba2,
    Moe,
    ShortConv,
)
from edgespec.models.open_model import open_model
from edgespec.models.registry import resolve
from edgespec.models.spec import ModelSpec

_LONGEST_ARRAY = 8
_MIXERS: dict[type, str] = {
    Attention: "attention",
    LatentAttention: "latent attention",
    GatedDeltaNet: "gated delta net",
    ShortConv: "short convolution",
    Mamba2: "Mamba-2",
}


def facts_of(model: str | None, *, tensors: bool = False) -> dict[str, Any]:
    """The facts of a file for `edgespec show --json`; None is the bundled model.

    A tokenizer or template that cannot be used does not hide the rest: its place holds the error.
    """
    with open_model(resolve(model), any_engine=True) as file:
        spec = file.spec
        facts: dict[str, Any] = {
            "path": str(file.path),
            "file_bytes": file.size_bytes,
            "name": spec.name,
            "architecture": spec.architecture,
            "parameters": spec.num_parameters,
            "quantisation": _types(file),
            "layers": spec.num_layers,
            "width": spec.dim,
            "feed_forward_width": spec.ffn_dim,
            "heads": spec.num_heads,
            "kv_heads": spec.num_kv_heads,
            "head_width": spec.head_dim,
            "context_length": spec.context_length,
            "vocabulary": spec.vocab_size,
            "tied_embeddings": spec.tied_embeddings,
            "experts": spec.num_experts,
            **_expert_facts(spec),
            "window": max((each.reach for each in spec.attentions), default=0),
            "layers_with_window": sum(1 for each in spec.attentions if each.reach),
            "mixers": dict(Counter(_MIXERS[type(layer.mixer)] for layer in spec.layers)),
            "rope_base": next((each.rope.base for each in spec.attentions if each.rope), 0.0),
            "tokenizer": _tokenizer(file),
            "chat_template": _template(file),
            "adapter": _adapter(file),
            "draft_head": spec.note,
            "metadata": {key: _plain(value) for key, value in file.metadata.items()},
        }
        if tensors:
            facts["tensors"] = [
                {
                    "name": info.name,
                    "type": info.type.name,
                    "shape": list(info.shape),
                    "bytes": info.size_bytes,
                }
                for info in file.tensors.values()
            ]
        return facts


def _expert_facts(spec: ModelSpec) -> dict[str, Any]:
    """Of the layers that mix experts."""
    mixtures = [layer.ffn for layer in spec.layers if isinstance(layer.ffn, Moe)]
    return {
        "active_experts": max((each.active for each in mixtures), default=0),
        "expert_width": max((each.width for each in mixtures), default=0),
        "shared_expert": any(each.shared is not None for each in mixtures),
        "layers_with_experts": len(mixtures),
    }


def _adapter(file: ModelFile) -> dict[str, Any] | None:
    """What lies beside the model for drafts that leave early; None where nothing does."""
    place = place_beside(file.path)
    if not place.is_file():
        return None
    facts: dict[str, Any] = {"path": str(place)}
    try:
        with closing(open_adapter(place)) as adapter:
            adapter.check(file)
            fits = [asdict(fit) for fit in adapter.fits.values()]
            return facts | {"judged_tokens": adapter.num_tokens, "exits": fits}
    except EdgeSpecError as error:
        return facts | {"error": str(error)}


def _types(file: ModelFile) -> dict[str, dict[str, int]]:
    """Tensors and bytes by element type, most bytes first."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for info in file.tensors.values():
        counts[info.type.name] += 1
        sizes[info.type.name] += info.size_bytes
    return {name: {"tensors": counts[name], "bytes": size} for name, size in sizes.most_common()}


def _tokenizer(file: ModelFile) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": str(file.metadata.get("tokenizer.ggml.model", "none"))}
    if "tokenizer.ggml.pre" in file.metadata:
        facts["pre"] = str(file.metadata["tokenizer.ggml.pre"])
    try:
        tokenizer = file.tokenizer
    except EdgeSpecError as error:
        return facts | {"error": str(error)}
    ends = {token: tokenizer.token_text(token) for token in sorted(tokenizer.end_ids)}
    return facts | {"adds_bos": tokenizer.add_bos, "end_tokens": ends}


def _template(file: ModelFile) -> str | None:
    try:
        template = file.chat_template
    except EdgeSpecError as error:
        return f"unusable: {error}"
    return None if template is None else template.source


def _plain(value: Any) -> Any:
    """A metadata value for JSON; of a long array only its length."""
    if isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if len(value) > _LONGEST_ARRAY:
        return f"array of {len(value)}"
    return [_plain(item) for item in value]
