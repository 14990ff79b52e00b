"""`edgespec export`: what was written, and how much it is like what it was made from."""

from __future__ import annotations

from typing import Any

from edgespec.system.size import format_size
from edgespec.tools.export.export import export

LEAST = 0.999
"""A cosine of logits below this is worth a note."""


def export_model(
    model: str,
    out: str,
    format: str,
    bits: int | None,
    exit_layer: int | None,
    context: int | None,
    *,
    overwrite: bool = False,
    quiet: bool,
) -> dict[str, Any]:
    """Write a model and, unless `quiet`, say so; returns the facts for JSON."""
    made = export(
        model, out, format=format, bits=bits, exit_layer=exit_layer, context=context,
        overwrite=overwrite,
    )  # fmt: skip
    if quiet:
        return made.as_dict()
    layers = f"{made.num_layers} layer{'' if made.num_layers == 1 else 's'}"
    size = format_size(made.size_bytes)
    print(f"{made.path}: {layers}, context {made.context_length} tokens, {size}")
    found = made.agreement
    if found is None:
        print("not compared with the model: onnxruntime is not installed (pip install onnxruntime)")
        return made.as_dict()
    low = "; more --bits would bring it closer" if found.worst < LEAST else ""
    print(
        f"compared with the {found.backend} backend: cosine similarity of logits "
        f"{found.worst:.5f} at worst, {found.mean:.5f} on average; same best token in "
        f"{found.same_best} of {found.rows} rows{low}"
    )
    print(f"run it with: edgespec run --model {out}")
    return made.as_dict()
