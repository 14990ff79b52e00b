"""ONNX graphs that write more than they declare: the buffers they are given are ours."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgespec.tools.export.export import GRAPH
from tests.support.command_line import environment
from tests.support.targets import exported, missing, model_path

WHY = missing("onnx")
pytestmark = pytest.mark.skipif(bool(WHY), reason=WHY)

RUN = """
import sys
import edgespec
try:
    with edgespec.load(sys.argv[1], backend="onnx", threads=1, context=64) as engine:
        engine.generate("a b c", max_tokens=8, ignore_eos=True)
    print("a reply")
except edgespec.EdgeSpecError as error:
    print("told:", error)
"""


def doubled(folder: Path, name: str, axis: int) -> None:
    """Let an output be twice as long as declared, which only shows when it is computed."""
    import onnx
    from onnx import helper

    model = onnx.load(folder / GRAPH, load_external_data=False)
    for node in model.graph.node:
        node.output[:] = [f"{one}_once" if one == name else one for one in node.output]
        node.input[:] = [f"{one}_once" if one == name else one for one in node.input]
    once, ids = f"{name}_once", "input_ids"
    model.graph.node.extend([
        helper.make_node("Shape", [ids], ["shape_of_ids"]),
        helper.make_node("ReduceMin", ["shape_of_ids"], ["least"], keepdims=1),  # 1, at run time
        helper.make_node("Add", ["least", "least"], ["two"]),
        helper.make_node("Concat", [*("least" if place != axis else "two" for place in
                                      range(3 + (name != "logits")))], ["times"], axis=0),
        helper.make_node("Tile", [once, "times"], [name]),
    ])  # fmt: skip
    onnx.save(model, folder / GRAPH)


@pytest.mark.parametrize("growing", [False, True], ids=["shared", "growing"])
@pytest.mark.parametrize(("output", "axis"), [("logits", 2), ("logits", 1), ("present", 2)])
def test_no_output_leaves_its_buffer(growing: bool, output: str, axis: int, tmp_path: Path) -> None:
    import onnx

    source = exported(model_path("llama-F32"), growing)
    folder = Path(shutil.copytree(source, tmp_path / "model"))
    outputs = [one.name for one in onnx.load(folder / GRAPH, load_external_data=False).graph.output]
    doubled(folder, next(name for name in outputs if name.startswith(output)), axis)
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(folder)],
        capture_output=True, text=True, env=environment(), check=False,
    )  # fmt: skip
    told = "told: ONNX Runtime failed in a pass"
    assert done.stdout.startswith(told), (done.returncode, done.stdout, done.stderr[-2000:])
