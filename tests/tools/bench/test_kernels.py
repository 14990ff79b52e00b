"""`edgespec bench kernels` as a user runs it: real passes, real limits, real peers. No times."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgespec.models.open_model import open_model
from edgespec.models.spec import TensorType
from edgespec.system.child_process import PeerError
from edgespec.tools.bench import peers
from edgespec.tools.bench.curve import matrices
from edgespec.tools.bench.llamacpp import LlamaProcess
from edgespec.tools.bench.onnx_matmuls import OnnxProcess, kind_of, needed_bytes
from tests.support.command_line import ROOT, edgespec, environment
from tests.support.gguf_models import write_gguf

SHORT = ("bench", "kernels", "--rounds", 1, "--nodes", "2,4", "--context", 16)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("bench") / "tiny.gguf", type="Q8_0", ffn=128)


def test_the_bundled_model_is_measured_against_the_limits(bundled_model: Path) -> None:
    found = edgespec(*SHORT, "--peers", "none", "--json")
    assert (found.code, found.err) == (0, "")
    values: dict[str, Any] = json.loads(found.out)
    assert values["model"]["path"] == str(bundled_model)
    assert (values["context"], values["rounds"], values["peers"]) == (16, 1, [])
    assert [point["nodes"] for point in values["curve"]] == [1, 2, 4]
    with open_model(bundled_model) as file:
        parts = matrices(file)
        weight_bytes = sum(info.size_bytes for info in parts)
        count = sum(info.shape[0] * info.shape[1] for info in parts)
    assert values["model"]["weight_bytes"] == weight_bytes
    assert values["model"]["multiplications_per_token"] == count
    read, multiply = values["roofs"]["read"], values["roofs"]["multiply"]
    read_bytes = weight_bytes + values["model"]["kv_bytes"]
    for point in values["curve"]:
        seconds = point["seconds"]
        assert point["low_seconds"] <= seconds <= point["high_seconds"]
        assert point["ratio"] == pytest.approx(seconds / values["curve"][0]["seconds"])
        assert point["gigabytes_per_second"] == pytest.approx(read_bytes / seconds / 1e9)
        assert point["read_share"] == pytest.approx(
            point["gigabytes_per_second"] / read["gigabytes_per_second"]
        )
        assert point["multiply_share"] == pytest.approx(
            point["nodes"] * count / seconds / 1e9 / multiply["gigamultiplications_per_second"]
        )
        assert point["bound"] in ("memory", "multiply", "neither")


def test_a_missing_compiler_is_one_sentence() -> None:
    program = (
        "import sys; sys.modules['llvmlite'] = None; sys.argv[1:] = ['bench', 'kernels'];"
        "from edgespec.__main__ import main; main()"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment()
    )
    assert (found.returncode, found.stdout) == (2, "")
    assert "llvmlite is not installed: pip install 'edgespec[jit]'" in found.stderr
    assert "Traceback" not in found.stderr


def test_the_text_and_the_plot(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    place = tmp_path / "kernels.svg"
    found = edgespec(*SHORT, model, "--threads", 1, "--peers", "none", "--plot", place)
    assert (found.code, found.err) == (0, "")
    for word in ("tiny.gguf, Q8_0", "1 thread;", "read", "copy", "multiply", "T(n)/T(1)", "bound"):
        assert word in found.out
    assert found.out.endswith(f"plot: {place}\n")
    assert place.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--peers", "gpt"), ("'gpt'", "llamacpp, onnx")),
        (("--nodes", "4,2"), ("ascend", "4,2")),
        (("--nodes", "0,2"), ("ascend", "0,2")),
        (("--nodes", "1,x"), ("whole numbers", "1,x")),
        (("--nodes", "1,1000"), ("none above 256", "1000")),
        (("--nodes", ",".join(map(str, range(1, 40)))), ("up to 32 numbers", "39")),
        (("--context", "-1"), ("--context", "-1")),
        (("--context", "510", "--nodes", "1,4"), ("514 positions", "512")),
        (("--rounds", "0"), ("0 rounds",)),
        (("--threads", "1000"), ("1000 threads",)),
        (("--plot", "curve.pdf"), (".png or .svg", "--plot curve.png")),
    ],
    ids=lambda value: " ".join(value)[:20],
)
def test_bad_input_is_one_sentence(
    arguments: tuple[str, ...], words: tuple[str, ...], model: Path
) -> None:
    edgespec("bench", "kernels", model, *arguments).assert_refused(2, *words)


def test_a_missing_model_is_one_sentence() -> None:
    edgespec("bench", "kernels", "nothing.gguf").assert_refused(1, "nothing.gguf")


def test_a_peer_asked_for_by_name_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = peers.Peer(
        "Absent", "absent", ("no_such_module",), "pip install absent", peers._open_onnx
    )
    monkeypatch.setitem(peers.PEERS, "absent", absent)
    with pytest.raises(PeerError, match="Absent is not installed: pip install absent"):
        peers.choose("onnx,absent" if peers.PEERS["onnx"].installed else "absent")
    assert "absent" in peers.choose("auto")


@pytest.mark.skipif(os.name == "nt", reason="sends a signal")
@pytest.mark.parametrize(
    ("stand_in", "said"),
    [
        ("import os, signal\nos.kill(os.getpid(), signal.SIGILL)", "crashed with SIGILL"),
        ("raise ImportError('libgomp is missing')", "failed: ImportError: libgomp is missing"),
    ],
    ids=["crash", "error"],
)
def test_a_peer_that_dies_costs_a_line(
    stand_in: str, said: str, model: Path, tmp_path: Path
) -> None:
    """A stand-in for llama.cpp that does not live to see the model."""
    (tmp_path / "llama_cpp.py").write_text(stand_in)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    arguments = (*SHORT, model, "--peers", "llamacpp")
    found = edgespec(*arguments, PYTHONPATH=path)
    assert (found.code, found.err) == (0, "")
    assert f"! llama.cpp {said}" in found.out
    values = json.loads(edgespec(*arguments, "--json", PYTHONPATH=path).out)
    assert len(values["curve"]) == 3
    assert said in values["peers"][0]["error"]


def test_llama_cpp_answers_the_same_questions(model: Path) -> None:
    """Where it is installed and does not crash."""
    if importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("llama-cpp-python is not installed")
    try:
        with LlamaProcess(model, 1, 64) as process:
            answers = [process.forward(2, 16), process.prefill(8), process.decode(3, 16)]
            answers.append(process.forward(2, 16))
    except PeerError as error:
        pytest.skip(str(error))
    assert all(seconds > 0 for answer in answers for seconds in answer)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "F32"])
def test_onnx_runtime_multiplies_matrices_of_the_same_shapes(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    path = write_gguf(tmp_path / "model.gguf", type=kind, ffn=128)
    with open_model(path) as file, OnnxProcess(matrices(file), 1) as process:
        assert process.operators == kind_of(TensorType[kind])
        assert 2 * process.weight_bytes == needed_bytes(matrices(file))
        folder = Path(process._folder.name)
        assert all(seconds > 0 for n in (1, 3) for seconds in process.forward(n))
    assert not folder.exists()


def test_types_find_their_stand_in() -> None:
    found = {kind.name: kind_of(kind) for kind in TensorType}
    assert {found[name] for name in ("Q4_0", "Q4_1", "Q4_K", "IQ4_NL")} == {"MatMulNBits 4 bit"}
    assert {found[name] for name in ("Q5_K", "Q6_K", "Q8_0")} == {"MatMulNBits 8 bit"}
    assert {found[name] for name in ("F32", "F16", "BF16")} == {"MatMul float32"}


def test_the_group_shows_its_commands() -> None:
    found = edgespec("bench")
    assert found.code == 2
    assert "\n  kernels " in found.out + found.err
