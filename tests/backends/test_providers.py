"""ONNX Runtime's execution providers: what is asked for, tried, planned and remembered."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import edgespec
from edgespec.backends.onnx import provider_trial, providers
from edgespec.backends.onnx.provider_trial import Trial, measure, trial_of
from edgespec.backends.onnx.session_memory import ask_onnx
from edgespec.control.curve_cache import remember_curve, remembered_curve
from edgespec.errors import BackendError, OptionError, UnsupportedModelError
from edgespec.memory.plan.settings import Settings
from edgespec.models.onnx.folder import OnnxFile
from edgespec.models.open_model import open_model
from edgespec.system.size import GIB, MIB
from tests.support.targets import exported, missing, model_path

WHY = missing("onnx")
pytestmark = pytest.mark.skipif(bool(WHY), reason=WHY)
SETTINGS = {"threads": 1, "context": 256}


@pytest.fixture(scope="module")
def folder() -> Path:
    return exported(model_path("llama-Q8_0"))


def _is_there(provider: str) -> bool:
    from edgespec.backends.onnx.runtime_library import library

    there = not WHY and library().get_available_providers()
    return bool(there) and providers.PROVIDERS[provider].class_name in there


def _open(folder: Path) -> OnnxFile:
    file = open_model(folder, any_engine=True)
    assert isinstance(file, OnnxFile)
    return file


@pytest.mark.parametrize("layout", ["shared", "growing"])
def test_a_provider_is_tried_in_a_process(layout: str) -> None:
    """The processor, which is always there, as any other."""
    growing = layout == "growing"
    source = exported(model_path("llama-F32" if growing else "llama-Q8_0"), growing)
    with _open(source) as file:
        found = provider_trial._try_out(file, providers.CPU, 1, 2 * GIB)
        longest = file.spec.context_length
    assert found.parts > 10 and found.left == ()
    assert found.opening_bytes >= found.opened_bytes > 4 * MIB  # the library is among them
    assert found.rows == (1, 256) and found.positions == (256, min(longest, 1024))
    one_near, one_far, many_near, many_far = found.passes_bytes
    assert max(one_near, one_far, many_near) <= many_far + MIB
    assert found.pass_bytes(1, 256) == one_near
    assert found.pass_bytes(256, longest) == many_far
    assert found.pass_bytes(512, longest) == 2 * many_far
    assert Trial.of(provider_trial._values(found)) == found


def test_what_lies_between_corners_is_no_less() -> None:
    tried = Trial("cpu", 0, 0, (1, 101), (100, 1100), (100, 1100, 200, 4200), 1, ())
    assert tried.pass_bytes(51, 100) == 150
    assert tried.pass_bytes(1, 600) == 600
    assert tried.pass_bytes(51, 600) == 1400
    assert tried.pass_bytes(101, 2200) == 8400


def test_the_most_of_several_sums_is_bounded() -> None:
    """Each linear in rows and in positions, as what operators allocate is."""

    def allocated(rows: int, positions: int) -> int:
        return max(700 + 9 * positions, 40 * rows * positions, 5000 * rows + 3 * positions)

    few, many, near, far = 1, 101, 100, 1100
    corners = tuple(allocated(rows, positions) for rows in (few, many) for positions in (near, far))
    tried = Trial("cpu", 0, 0, (few, many), (near, far), corners, 1, ())
    for rows in (1, 2, 20, 60, 101, 200):
        for positions in (100, 130, 300, 1100, 3000):
            assert tried.pass_bytes(rows, positions) + 1 >= allocated(rows, positions)


def test_a_trial_counts_in_the_plan(folder: Path) -> None:
    tried = Trial("openvino", 300 * MIB, 350 * MIB, (1, 256), (256, 512), (MIB,) * 4, 3, ())
    settings = Settings(context=512, prefill_chunk=256, max_nodes=8, drafter_bytes=0)
    with _open(folder) as file:
        plain, found = (ask_onnx(file, one)(settings, 1) for one in (None, tried))
    assert found.provider + found.library + (found.weights or 0) >= 300 * MIB
    assert found.loading == 50 * MIB
    assert found.compute >= MIB
    assert (found.cache, plain.provider) == (plain.cache, 0)


def test_what_an_answer_may_not_be(folder: Path) -> None:
    with _open(folder) as file:
        good = provider_trial._values(measure(file, providers.CPU, 1))
    assert Trial.of(good) is not None
    for name, value in (
        ("rows", [1]),
        ("passes_bytes", [1, 2, 3]),
        ("opened_bytes", -1),
        ("parts", "many"),
        ("positions", [0, 4]),
        ("provider", "abacus"),
        ("opening_bytes", 1e300),
    ):
        assert Trial.of(good | {name: value}) is None, name
    assert Trial.of(None) is None and Trial.of([good]) is None


def test_a_process_that_fails_is_a_sentence(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _open(folder) as file:
        monkeypatch.setattr(provider_trial, "_LIMIT_S", 0.01)
        monkeypatch.setattr(provider_trial, "_BYTES_PER_S", 1 << 60)
        with pytest.raises(BackendError, match=r"the processor on model.onnx took longer"):
            provider_trial._try_out(file, providers.CPU, 1, 2 * GIB)


@pytest.mark.skipif(sys.platform != "linux", reason="the system has no such limit")
def test_a_trial_stays_inside_the_budget(folder: Path) -> None:
    with _open(folder) as file, pytest.raises(BackendError, match=r"raise --memory|leave out --pr"):
        provider_trial._try_out(file, providers.CPU, 1, -100 * MIB)


def test_a_trial_is_remembered_by_provider_and_threads(folder: Path) -> None:
    with _open(folder) as file:
        first = trial_of(file, providers.CPU, 1, 2 * GIB)
        assert trial_of(file, providers.CPU, 1, 2 * GIB) == first
        places = {
            provider_trial._place(file, provider, threads)
            for provider in ("cpu", "openvino")
            for threads in (1, 2)
        }
    assert len(places) == 4


def test_curves_are_kept_apart(folder: Path) -> None:
    plan = edgespec.plan(folder, **SETTINGS)
    other = replace(plan, provider="openvino")
    graph = folder / "model.onnx"
    remember_curve(graph, plan, {1: 0.5})
    remember_curve(graph, other, {1: 0.25})
    assert remembered_curve(graph, plan) == {1: 0.5}
    assert remembered_curve(graph, other) == {1: 0.25}


def test_the_default_is_the_processor(folder: Path) -> None:
    plan = edgespec.plan(folder, **SETTINGS)
    assert plan.provider == "cpu"
    same = edgespec.plan(folder, provider="cpu", **SETTINGS)
    assert plan.footprint["ONNX Runtime"] == same.footprint["ONNX Runtime"]
    assert plan.footprint["weights"] == same.footprint["weights"]
    assert "provider" not in plan.footprint.names


def test_what_cannot_be_is_refused(folder: Path, bundled_model: Path) -> None:
    with pytest.raises(OptionError, match=r"unknown provider 'gpu'; choose cpu, cuda"):
        edgespec.plan(folder, provider="gpu")
    with pytest.raises(OptionError, match=r"--provider cuda is for ONNX models.*edgespec export"):
        edgespec.plan(bundled_model, provider="cuda")
    with pytest.raises(UnsupportedModelError, match=r"is no ONNX model.*edgespec export"):
        edgespec.plan(bundled_model, provider="cuda", backend="onnx")
    with pytest.raises(OptionError, match=r"leave out --isolate, or .*--provider"):
        edgespec.plan(folder, provider="openvino", isolate="on")


@pytest.mark.parametrize(
    ("provider", "words"),
    [
        ("cuda", r"pip uninstall onnxruntime && pip install onnxruntime-gpu"),
        ("directml", r"pip install onnxruntime-directml \(on Windows\)"),
        ("openvino", r"pip install onnxruntime-openvino"),
        ("qnn", r"pip install onnxruntime-qnn"),
        ("coreml", r"comes with onnxruntime on macOS"),
        ("xnnpack", r"a build of your own with --use_xnnpack"),
    ],
)
def test_a_provider_that_is_not_there(provider: str, words: str, folder: Path) -> None:
    if _is_there(provider):
        pytest.skip(f"{provider} is there")
    with pytest.raises(BackendError, match=rf"here has .*CPUExecutionProvider.* only; .*{words}"):
        edgespec.load(folder, provider=provider)


def test_the_command_line_knows_providers(folder: Path) -> None:
    command = [sys.executable, "-m", "edgespec", "run", "-m", str(folder), "--provider", "gpu", "x"]
    paths = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    found = subprocess.run(command, capture_output=True, text=True, env=paths)
    assert (found.returncode, found.stdout) == (2, "")
    assert "unknown provider 'gpu'" in found.stderr


@pytest.mark.skipif(not _is_there("openvino"), reason="onnxruntime-openvino is not installed")
def test_openvino_writes_what_it_writes_plainly(folder: Path) -> None:
    texts = []
    for drafters in ("auto", "none"):
        with edgespec.load(folder, provider="openvino", drafters=drafters, **SETTINGS) as engine:
            assert "OpenVINO runs" in engine.plan.explain()
            assert engine.plan.footprint["provider"] > MIB
            reply = engine.generate("Hello, hello,", max_tokens=48, temperature=0.0)
            texts.append(reply.text)
    assert texts[0] == texts[1]
