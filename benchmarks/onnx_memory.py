"""What is planned for ONNX Runtime against what it takes: precisions, layouts and contexts.

    python benchmarks/onnx_memory.py [MODEL.gguf...] [--only NAME,...] [--keep FOLDER] [--out FILE]

Each GGUF model (the bundled one if none is given) is exported in every form below that suits its
size, to a folder that is deleted at the end unless `--keep` names one. In a process of its own each
is planned, loaded, and given two prompts that fill the context with tokens from all over the
vocabulary, and a turn of a chat. The peak is VmHWM. Exit code 1: a peak over its plan.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
from edgespec.models.open_model import open_model
from edgespec.models.registry import resolve
from edgespec.system.resident_memory import peak_resident_bytes
from edgespec.system.size import GIB, MIB
from edgespec.tools.export.export import DATA, GRAPH, export
from tests.conformance.growing import write_growing

BUDGET = 8 * GIB
REPLY_TOKENS = 24
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


def write(model: Path, form: str, folder: Path) -> Path:
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


def measure(model: Path, only: list[str], root: Path) -> Iterator[dict[str, Any]]:
    """One row for each form and context."""
    forms = LARGE if model.stat().st_size > LARGE_BYTES else SMALL
    with open_model(model) as file:
        most = file.spec.context_length
    for form, contexts in forms.items():
        if only and form not in only:
            continue
        folder = root / f"{model.stem}-{form}"
        graph = write(model, form, folder)
        seen = set()
        for asked in contexts:
            context = min(asked, most)
            if context not in seen:
                seen.add(context)
                row = {"model": model.name, "form": form, "context": context}
                yield row | _child(graph, context)


def fill(graph: str, context: int) -> dict[str, Any]:
    """What one engine planned and took, in this process."""
    with edgespec.load(graph, memory=BUDGET, context=context) as engine:
        prompt_tokens, vocab_size = context - REPLY_TOKENS - 1, engine.tokenizer.vocab_size
        for turn in range(2):
            ids = [3 + (turn + 7919 * i) % (vocab_size - 3) for i in range(prompt_tokens)]
            stats = engine.generate(ids, max_tokens=REPLY_TOKENS, ignore_eos=True, seed=1).stats
        if engine.file.chat_template:
            engine.chat().send("Hello", max_tokens=4)
        return {
            "planned_bytes": engine.plan.planned_bytes,
            "peak_bytes": peak_resident_bytes(),
            "tokens_per_second": stats.tokens_per_second,
        }


def _child(graph: Path, context: int) -> dict[str, Any]:
    """One run in a fresh process: its numbers, or the sentence it ended with."""
    command = [sys.executable, __file__, "--task", str(graph), str(context)]
    found = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if found.returncode:
        return {"error": (found.stderr.strip().splitlines() or ["no message"])[-1]}
    values: dict[str, Any] = json.loads(found.stdout)
    return values


def line(row: dict[str, Any]) -> str:
    start = f"{row['model']:<26} {row['form']:<13} {row['context']:>6}"
    if "error" in row:
        return f"{start} {row['error']}"
    planned, peak = row["planned_bytes"], row["peak_bytes"]
    return (
        f"{start} {planned / MIB:>9.1f} {peak / MIB:>9.1f} {planned / peak:>12.3f} "
        f"{row['tokens_per_second']:>7.1f}"
    )


def main() -> None:
    if sys.argv[1:2] == ["--task"]:
        print(json.dumps(fill(sys.argv[2], int(sys.argv[3]))))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="*")
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    only = [name for name in options.only.split(",") if name]
    found = []
    print(
        f"{'model':<26} {'form':<13} {'context':>6} {'planned':>8} {'peak':>9} planned/peak   tok/s"
    )
    with ExitStack() as stack:
        root = options.keep or Path(stack.enter_context(TemporaryDirectory(prefix="edgespec-")))
        for model in map(resolve, options.models or [None]):
            for row in measure(Path(model), only, root):
                found.append(row)
                print(line(row), flush=True)
                if options.out:
                    with options.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")
    ratios = [row["planned_bytes"] / row["peak_bytes"] for row in found if "error" not in row]
    within, over = sum(1 <= ratio <= 1.05 for ratio in ratios), sum(ratio < 1 for ratio in ratios)
    failed = len(found) - len(ratios)
    print(f"runs={len(found)} failed={failed} over their plan={over} within 5 % above={within}")
    sys.exit(1 if over or failed else 0)


if __name__ == "__main__":
    main()
