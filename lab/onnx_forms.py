"""A model in the forms in which ONNX models are found."""

from __future__ import annotations

from pathlib import Path

from edgespec.models.open_model import open_model
from edgespec.system.size import GIB, MIB
from edgespec.tools.export.export import DATA, GRAPH, export
from tests.support.growing_onnx import write_growing

BUDGET = 8 * GIB
SMALL: dict[str, tuple[int, ...]] = {
    "genai-32": (256, 1024),
    "genai-16": (512,),
    "genai-8": (256, 1024),
    "genai-4": (512,),
    "genai-fp16": (512,),
    "optimum-32": (256, 1024),
    "optimum-fp16": (512,),
    "optimum-int8": (512, 1024),
    "optimum-4": (1024,),
}
"""Form and contexts: fp16 are those that compute with 16-bit floats throughout, as exporters for
other devices write them, int8 those of ONNX Runtime's own quantisation, others the exporter's.
"""
LARGE: dict[str, tuple[int, ...]] = {"genai-8": (512, 2048), "genai-4": (256, 4096)}
LARGE_BYTES = 100 * MIB


def forms(model: Path) -> dict[str, tuple[int, ...]]:
    """Forms that suit a model's size, each with contexts within the model's own."""
    found = LARGE if model.stat().st_size > LARGE_BYTES else SMALL
    with open_model(model) as file:
        most = file.spec.context_length
    return {form: tuple({min(n, most): n for n in contexts}) for form, contexts in found.items()}


def write_form(model: Path, form: str, folder: Path) -> Path:
    """A model in one of the forms; returns its graph."""
    layout, kind = form.split("-")
    if (folder / "done").exists():
        return Path((folder / "done").read_text())
    bits = {"fp16": 32, "int8": 32}.get(kind) or int(kind)
    graph = export(model, folder, bits=bits, check=False).path
    if layout == "optimum":
        with open_model(model) as file:
            write_growing(file, folder, bits)
    if kind in ("fp16", "int8"):
        graph = _convert(folder, kind)
    (folder / "done").write_text(str(graph))
    return graph


def _convert(folder: Path, kind: str) -> Path:
    """By the library's own tools; the source is removed."""
    import logging

    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.float16 import convert_float_to_float16

    logging.disable(logging.WARNING)
    graph = folder / f"{kind}.onnx"
    if kind == "int8":
        quantize_dynamic(
            folder / GRAPH,
            graph,
            weight_type=QuantType.QInt8,
            extra_options={"DefaultTensorType": 1},
        )
    else:
        model = convert_float_to_float16(onnx.load(folder / GRAPH), disable_shape_infer=True)
        onnx.save(model, str(graph))
    for name in (GRAPH, DATA):
        (folder / name).unlink()
    return graph
