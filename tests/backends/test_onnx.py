"""What is ONNX Runtime's alone: layouts, types, memory, and files that are not what they say."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import edgespec
from edgespec.backends import registry as backends
from edgespec.backends.base import Target
from edgespec.backends.onnx import runtime_library
from edgespec.backends.onnx.session_memory import OPENING_BYTES, Weights
from edgespec.backends.passes import TokenTree
from edgespec.errors import BackendError, EdgeSpecError, ModelFileError, UnsupportedModelError
from edgespec.models.onnx.graph_file import read_graph
from edgespec.models.open_model import open_model
from edgespec.tools.export.export import DATA, GRAPH, export
from tests.support.gguf_models import write_gguf
from tests.support.targets import (
    PLAN,
    cosines,
    decode,
    exported,
    missing,
    model_path,
    open_target,
    score,
    tokens,
)

WHY = missing("onnx")
pytestmark = pytest.mark.skipif(bool(WHY), reason=WHY)

BRANCHES = TokenTree(tokens(6, 1), np.array([-1, 0, 0, 1, 2, 2], np.int16))


def open_onnx(path: Path, **changes: Any) -> Target:
    with open_model(path, any_engine=True) as file:
        return backends.open_target(file, replace(PLAN, backend="onnx", **changes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An exported model of one's own, to be damaged."""
    return Path(shutil.copytree(exported(model_path("llama-Q8_0")), tmp_path / "model"))


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    """The same as Optimum lays it out."""
    source = exported(model_path("llama-F32"), True)
    return Path(shutil.copytree(source, tmp_path / "growing"))


def test_a_tree_on_an_empty_text() -> None:
    """Its first pass counts positions by itself: branches must not be counted on."""
    for model in ("llama-Q8_0", "qwen3-Q4_0"):
        with open_target("onnx", model) as target, open_target("native", model) as native:
            found = cosines(
                target.own.forward(BRANCHES).logits.copy(),
                native.own.forward(BRANCHES).logits.copy(),
            )
            assert found.min() > 0.999
            for opened in (target, native):
                opened.own.commit([0, 2, 4])
            after = tokens(3, 2)
            assert cosines(score(target, after), score(native, after)).min() > 0.999


def test_chains_only_says_so() -> None:
    with open_target("onnx-growing", "llama-F32") as target:
        assert not target.capabilities.trees
        with pytest.raises(BackendError, match="can only score chains"):
            target.own.forward(BRANCHES)
        assert score(target, tokens(3)).shape[0] == 3


def converted(growing: Path, how: str) -> None:
    """Other types, made by the library's own tools."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.float16 import convert_float_to_float16

    graph = growing / GRAPH
    if how == "int8":
        quantize_dynamic(
            graph,
            growing / "int8.onnx",
            weight_type=QuantType.QInt8,
            extra_options={"DefaultTensorType": 1},
        )
    else:
        model = convert_float_to_float16(onnx.load(graph), disable_shape_infer=True)
        onnx.save(model, str(growing / "fp16.onnx"))
    for name in (GRAPH, DATA):
        (growing / name).unlink()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize(("how", "least"), [("int8", 0.97), ("fp16", 0.9999)])
def test_types_of_other_exporters(how: str, least: float, growing: Path) -> None:
    converted(growing, how)
    ids = tokens(20)
    with open_onnx(growing / f"{how}.onnx") as target, open_target("native", "llama-F32") as native:
        assert cosines(decode(target, ids), decode(native, ids)).min() > least
        target.own.truncate(9)
        native.own.truncate(9)
        after = tokens(5, 1)
        assert cosines(score(target, after), score(native, after)).min() > least


def test_the_community_layout(growing: Path, tmp_path: Path) -> None:
    """`onnx/model.onnx` with its JSON files in the folder above, sizes in config.json."""
    root = tmp_path / "repository"
    (root / "onnx").mkdir(parents=True)
    for name in (GRAPH, DATA):
        shutil.move(growing / name, root / "onnx" / name)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.move(growing / name, root / name)
    values = {"model_type": "llama", "num_attention_heads": 4, "max_position_embeddings": 300}
    (root / "config.json").write_text(json.dumps(values))
    with edgespec.load(root, threads=1, max_nodes=4) as engine:
        assert engine.plan.context_length == 300
        assert engine.generate("Hello", max_tokens=3, ignore_eos=True).stats.output_tokens == 3


def edit_json(folder: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    values = json.loads((folder / name).read_text())
    change(values)
    (folder / name).write_text(json.dumps(values))


def edit_graph(folder: Path, change: Callable[[Any], None]) -> None:
    import onnx

    model = onnx.load(str(folder / GRAPH), load_external_data=False)
    change(model)
    (folder / GRAPH).write_bytes(model.SerializeToString())


def set_location(model: Any, place: str) -> None:
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = place


def hide_location(model: Any, place: str) -> None:
    """In a constant inside a node, where few look."""
    from onnx import TensorProto, helper

    tensor = TensorProto(name="hidden", data_type=1, dims=[1], data_location=1)
    tensor.external_data.add(key="location", value=place)
    model.graph.node.append(helper.make_node("Constant", [], ["hidden"], value=tensor))


def make_classifier(folder: Path) -> None:
    from onnx import TensorProto, helper

    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ports[:1], ports[1:])
    (folder / GRAPH).write_bytes(helper.make_model(graph).SerializeToString())


def cut_vocabulary(values: dict[str, Any]) -> None:
    model = values["model"]
    model["vocab"] = dict(list(model["vocab"].items())[:100])
    model["merges"] = []


def add_tokens(values: dict[str, Any]) -> None:
    values["model"]["vocab"] |= {f"more{i}": 300 + i for i in range(9)}


def cut(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "not a decoder": (make_classifier, r"not a decoder.*past_key_values.*export"),
    "an empty file": (lambda f: (f / GRAPH).write_bytes(b""), "it is empty"),
    "no ONNX at all": (lambda f: (f / GRAPH).write_bytes(b"<html>404</html>"), "not an ONNX model"),
    "a graph cut short": (lambda f: cut(f, GRAPH), "not an ONNX model"),
    "no weights": (lambda f: (f / DATA).unlink(), f"weights are in {DATA}.*not beside it"),
    "weights cut short": (lambda f: cut(f, DATA), f"ends at byte .* of {DATA}"),
    "weights from above": (
        lambda f: edit_graph(f, lambda m: set_location(m, "../secret")), "outside its folder"
    ),
    "weights from anywhere": (
        lambda f: edit_graph(f, lambda m: set_location(m, "/etc/passwd")), "outside its folder"
    ),
    "weights from a drive": (
        lambda f: edit_graph(f, lambda m: set_location(m, "C:\\secret")), "outside its folder"
    ),
    "hidden weights from above": (
        lambda f: edit_graph(f, lambda m: hide_location(m, "a/../../b")), "outside its folder"
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer.json beside it"),
    "pairs that are none": (
        lambda f: (f / "tokenizer.json").write_text('{"model": {"vocab": [["a", 0.0], 4]}}'),
        "not tokens and their scores",
    ),
    "a tokenizer cut short": (lambda f: cut(f, "tokenizer.json"), "cannot use .*tokenizer.json"),
    "a smaller tokenizer": (
        lambda f: edit_json(f, "tokenizer.json", cut_vocabulary), "logits for 300"
    ),
    "a larger tokenizer": (lambda f: edit_json(f, "tokenizer.json", add_tokens), "logits for 300"),
    "no vocabulary": (
        lambda f: (f / "tokenizer.json").write_text("{}"), "no model with a vocabulary"
    ),
    "a list for a configuration": (
        lambda f: (f / "tokenizer_config.json").write_text("[]"), "no JSON object"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_models_are_refused(case: str, folder: Path) -> None:
    damage, words = DAMAGE[case]
    damage(folder)
    with pytest.raises(ModelFileError, match=words) as caught:
        edgespec.plan(folder / GRAPH)
    assert "\n" not in str(caught.value)


WRONG_GRAPHS: dict[str, tuple[Callable[[Any], object], str]] = {
    "an unknown input": (
        lambda m: m.graph.input.add(name="pixel_values").type.CopyFrom(m.graph.input[0].type),
        "asks for pixel_values",
    ),
    "no present": (lambda m: m.graph.output.pop(), "returns no present"),
    "bfloat16": (
        lambda m: [
            setattr(port.type.tensor_type, "elem_type", 16)
            for port in m.graph.input
            if port.name.startswith("past")
        ],
        "bfloat16",
    ),
    "an operator nobody has": (
        lambda m: setattr(m.graph.node[5], "op_type", "Teleport"), "ONNX Runtime cannot open"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_GRAPHS)
def test_graphs_that_cannot_run_are_refused(case: str, folder: Path) -> None:
    change, words = WRONG_GRAPHS[case]
    edit_graph(folder, change)
    with pytest.raises(ModelFileError, match=words):
        edgespec.load(folder, threads=1)


def test_a_folder_is_resolved(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelFileError, match="directory without an ONNX model"):
        edgespec.plan(tmp_path / "empty")
    (folder / "genai_config.json").unlink()
    (folder / GRAPH).rename(folder / "decoder.onnx")
    assert edgespec.plan(folder).backend == "onnx"
    shutil.copy(folder / "decoder.onnx", folder / "decoder_q4.onnx")
    with pytest.raises(ModelFileError, match=r"decoder.onnx, decoder_q4.onnx.*name one"):
        edgespec.plan(folder)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_damage_to_a_graph_breaks_its_reader(data: st.DataObject) -> None:
    source = exported(model_path("llama-Q8_0"))
    raw = bytearray((source / GRAPH).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place : place + data.draw(st.integers(1, 3))] = data.draw(st.binary(max_size=4))
    path = source / "damaged.onnx"
    path.write_bytes(raw)
    try:
        read_graph(path)
    except ModelFileError as error:
        assert "\n" not in str(error)
    finally:
        path.unlink()


_TRIALS = 60
_ODD = (0, 1, 2, 3, 7, 8, 16, 33, 64, 255, 300, 1 << 20, (1 << 31) - 1, 1 << 31, -1, 1 << 40)


def damaged(model: Any, rng: random.Random) -> None:
    """A wrong number, name or operator at a random place of a sound graph."""
    graph, node = model.graph, rng.choice(model.graph.node)
    kind = rng.randrange(4)
    numbers = [entry for entry in node.attribute if entry.type == 2]
    if kind == 0 and numbers:
        rng.choice(numbers).i = rng.choice(_ODD)
    elif kind == 1:
        tensor = rng.choice([tensor for tensor in graph.initializer if tensor.dims])
        tensor.dims[rng.randrange(len(tensor.dims))] = abs(rng.choice(_ODD))
    elif kind == 2 and node.input:
        others = [other.output[0] for other in graph.node] + [port.name for port in graph.input]
        node.input[rng.randrange(len(node.input))] = rng.choice([*others, ""])
    else:
        node.op_type = rng.choice(graph.node).op_type


def try_out(folder: Path, seed: int) -> None:
    """Open a damaged model and run it; errors of ours are what is wanted."""
    import onnx

    model = onnx.load(str(folder / GRAPH), load_external_data=False)
    damaged(model, random.Random(seed))
    path = folder / f"damaged{seed}.onnx"
    path.write_bytes(model.SerializeToString())
    try:
        with open_onnx(path) as target:
            target.own.forward(BRANCHES if target.capabilities.trees else TokenTree.chain([1, 2]))
            target.own.commit([0])
            target.own.forward(TokenTree.chain([3]))
    except (EdgeSpecError, MemoryError):
        pass


def test_no_damaged_graph_ends_the_process(folder: Path) -> None:
    """In a process of its own, so that one that did would be told with its number."""
    code = (
        "import sys; from pathlib import Path; from tests.backends import test_onnx as t\n"
        f"for seed in range({_TRIALS}): print(seed, flush=True); "
        "t.try_out(Path(sys.argv[1]), seed)"
    )
    paths = os.pathsep.join(filter(None, sys.path))
    found = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
        cwd=Path(__file__).parents[2],
    )
    assert found.returncode == 0, (found.stdout[-20:], found.stderr[-2000:])
    assert found.stdout.split() == [str(seed) for seed in range(_TRIALS)]
    assert found.stderr == ""


def test_other_backends_say_what_to_do(folder: Path, bundled_model: Path) -> None:
    for backend in ("native", "llamacpp", "reference"):
        with pytest.raises(UnsupportedModelError, match="leave --backend"):
            edgespec.plan(folder, backend=backend)
    with pytest.raises(UnsupportedModelError, match="edgespec export .*--format onnx"):
        edgespec.plan(bundled_model, backend="onnx")


def test_without_the_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_library, "find_spec", lambda name: None)
    with pytest.raises(BackendError, match=r"pip install 'edgespec\[onnx\]'"):
        edgespec.plan(folder)


def test_an_older_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_library, "version", lambda: "1.16.3")
    with pytest.raises(BackendError, match=r"onnxruntime 1.16.3 is too old, 1.23"):
        edgespec.plan(folder)


def test_nothing_but_the_reply_is_printed(folder: Path) -> None:
    command = [sys.executable, "-m", "edgespec", "run", "-m", str(folder), "--threads", "1"]
    found = subprocess.run(
        [*command, "--raw", "--ignore-eos", "-n", "3", "Hello"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert (found.returncode, found.stderr) == (0, "")


def test_memory_is_known_before(bundled_model: Path, tmp_path: Path) -> None:
    made = export(bundled_model, tmp_path / "out", check=False)
    code = (
        "import sys, edgespec\n"
        "with edgespec.load(sys.argv[1], threads=1, context=512) as engine:\n"
        "    ids = [3 + 7 * i % 97 for i in range(470)]\n"
        "    stats = engine.generate(ids, max_tokens=16, ignore_eos=True).stats\n"
        "print(stats.peak_memory_bytes / stats.planned_memory_bytes)"
    )
    for _ in range(2):  # the first may compile
        found = subprocess.run(
            [sys.executable, "-c", code, str(made.path)],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        )
    assert 0.9 < float(found.stdout) <= 1.0


def test_a_weight_counts_by_what_reads_it(tmp_path: Path) -> None:
    """An embedding that is the head too is held twice, as it is and repacked; one that is not, is
    not read before the first pass.
    """
    for name, tied in (("tied", True), ("apart", False)):
        made = export(
            write_gguf(tmp_path / f"{name}.gguf", vocab=5000, type="Q8_0", tied=tied),
            tmp_path / name,
            bits=32,
            check=False,
        )
        graph = read_graph(made.path)
        held = sum(tensor.size_bytes for tensor in graph.constants.values())
        found = Weights.of(graph, patched=True)
        embedding = graph.constants["token_embd.weight"].size_bytes
        assert abs(found.kept_bytes - held - embedding * tied) < 0.05 * held
        assert found.opening_bytes - OPENING_BYTES < embedding * 1.1 * tied + 0.1 * held


def test_planned_as_allocated(folder: Path) -> None:
    made = edgespec.plan(folder, context=512, threads=1, max_nodes=8)
    with open_model(folder, any_engine=True) as file, backends.open_target(file, made) as target:
        held = target.allocated_bytes()  # type: ignore[attr-defined]
        assert held["KV cache"] == made.footprint["KV cache"]
        assert held["masks"] < made.footprint["activations"] + made.footprint["logits"]


def test_two_texts_at_once_are_refused(folder: Path) -> None:
    with pytest.raises(BackendError, match="the onnx backend computes one"):
        edgespec.load(folder, sequences=2)


def test_a_large_vocabulary_is_not_multiplied_for_a_prompt(tmp_path: Path) -> None:
    """A prompt's rows have no logits: the room is for a node's, and the prompt is longer. The head
    is given the rows that are asked for, which are those of a whole pass.
    """
    path = write_gguf(tmp_path / "m.gguf", vocab=5000, type="Q8_0", ffn=128)
    made = export(path, tmp_path / "out", check=False)
    with open_onnx(made.path, max_nodes=2, prefill_chunk=64) as target:
        target.own.prefill(tokens(200))
        assert target._layout.picks  # type: ignore[attr-defined]
        assert target.own.length == 200
        tree = TokenTree.chain(tokens(2, 1))
        both = target.own.forward(tree).logits.copy()
        assert both.shape == (2, 5000)
        last = target.own.forward(tree, rows="last").logits
        assert last.shape == (1, 5000)
        assert np.allclose(last[0], both[1], atol=1e-5)
        assert target.own.forward(tree, rows="none").logits.shape == (0, 5000)
