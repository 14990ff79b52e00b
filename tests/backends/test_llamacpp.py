"""What is llama.cpp's alone: models of other architectures, its memory, its crashes, its words."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec.backends import registry as backends
from edgespec.backends.llamacpp import library, probe
from edgespec.backends.llamacpp.memory_need import CELL_BYTES, scratch_bytes
from edgespec.backends.llamacpp.model import Context, ContextSettings, Model, buffers, cache_bytes
from edgespec.backends.llamacpp.pass_batch import Batch
from edgespec.backends.llamacpp.probe import Verdict
from edgespec.backends.llamacpp.survey import Survey
from edgespec.backends.passes import TokenTree
from edgespec.errors import (
    BackendError,
    BudgetError,
    ModelFileError,
    OptionError,
    UnsupportedModelError,
)
from edgespec.models.open_model import open_model
from edgespec.system.resident_memory import resident_bytes
from edgespec.system.size import MIB
from tests.support.external_models import write_gemma, write_mamba
from tests.support.gguf_models import CHATML, write_gguf
from tests.support.targets import PLAN, decode, missing, score, tokens

WHY = missing("llamacpp")
installed = pytest.mark.skipif(bool(WHY), reason=WHY)
ROUNDING = 3 * 1024**2 // 100
"""Bytes: three log lines that tell MiB with two decimals."""


@pytest.fixture
def gemma(tmp_path: Path) -> Path:
    return write_gemma(tmp_path / "gemma.gguf", template=CHATML)


@pytest.fixture
def mamba(tmp_path: Path) -> Path:
    return write_mamba(tmp_path / "mamba.gguf")


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "package_folder", lambda: None)


@installed
def test_another_architecture_is_run_by_llamacpp(gemma: Path) -> None:
    with edgespec.load(gemma, threads=1) as engine:
        assert engine.plan.backend == "llamacpp"
        assert any("not native: " in reason for reason in engine.plan.reasons)
        one, two = (engine.generate("the cat", max_tokens=20, seed=3) for _ in range(2))
        assert one.token_ids == two.token_ids
        assert one.stats.backend == "llamacpp"
        with engine.chat() as chat:
            assert chat.send("the hat", max_tokens=4).stats.output_tokens > 0


@pytest.mark.usefixtures("absent")
def test_what_is_missing_is_told_only_where_it_would_help(gemma: Path, tmp_path: Path) -> None:
    native = write_gguf(tmp_path / "m.gguf")
    with open_model(native, any_engine=True) as file:
        found = backends.offer("auto", file)
        assert found.names == ("native",)
        assert "pip install 'edgespec[llamacpp]'" in found.refused["llamacpp"]
        with pytest.raises(BackendError, match=r"pip install 'edgespec\[llamacpp\]'"):
            backends.offer("llamacpp", file)
    with open_model(gemma, any_engine=True) as file:
        for name in ("auto", "native", "reference"):
            with pytest.raises(UnsupportedModelError, match=r"'gemma'.*may run it.*pip install"):
                backends.offer(name, file)


def test_old_versions_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "package_folder", lambda: Path())
    monkeypatch.setattr(library, "version", lambda: "0.3.9")
    assert "0.3.9 is too old, 0.3.36 is the oldest" in library.missing()


@installed
def test_odd_widths_go_to_llamacpp(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "odd.gguf", dim=72, heads=4, ffn=96)
    with open_model(path, any_engine=True) as file:
        assert backends.offer("auto", file).names == ("llamacpp",)
        with pytest.raises(UnsupportedModelError, match=r"72 wide.*--backend llamacpp"):
            backends.offer("native", file)


@installed
def test_memory_is_what_was_planned(gemma: Path) -> None:
    for kv_type in ("f16", "int8", "q4"):
        path = gemma if kv_type == "f16" else _wide_heads(gemma.parent)
        with edgespec.load(path, backend="llamacpp", threads=1, kv_type=kv_type) as engine:
            held = engine.scheduler.target.allocated_bytes()  # type: ignore[attr-defined]
            assert held == pytest.approx(engine.plan.footprint.exact, abs=ROUNDING)


def _wide_heads(folder: Path) -> Path:
    """int8 and q4 keys and values come in blocks of 32."""
    return write_gguf(folder / "wide.gguf", dim=64, heads=2, kv_heads=1)


@installed
def test_more_memory_than_planned_is_an_error(gemma: Path) -> None:
    plan = edgespec.plan(gemma, threads=1)
    items = tuple(
        replace(item, size_bytes=0) if item.name == "KV cache" else item for item in plan.footprint
    )
    footprint = replace(plan.footprint, items=items)
    tight = replace(plan, footprint=footprint, budget_bytes=footprint.total_bytes)
    with open_model(gemma, any_engine=True) as file:
        with pytest.raises(BudgetError, match="more than was planned .*KV cache"):
            backends.open_target(file, tight)
        backends.open_target(file, plan).close()


@installed
def test_recurrent_models_are_computed_again(mamba: Path) -> None:
    ids, after = tokens(30), tokens(1, 1)
    with edgespec.load(mamba, threads=1) as engine:
        plan, target = engine.plan, engine.scheduler.target
        assert plan.max_nodes == 1
        assert not target.capabilities.trees
        assert any("recurrent state" in reason for reason in plan.reasons)
        target.own.truncate(0)
        target.own.prefill(ids[:20])
        expected = score(target, after)
        kept = target.own.snapshot()
        np.testing.assert_array_equal(score(target, after), expected)  # a pass without a commit
        target.own.prefill(ids[20:])
        target.own.truncate(20)
        np.testing.assert_array_equal(score(target, after), expected)
        decode(target, ids[:5])
        target.own.restore(kept)
        assert target.own.length == 20
        np.testing.assert_allclose(score(target, after), expected, rtol=0, atol=1e-4)


@installed
def test_recurrent_models_refuse_drafts(mamba: Path) -> None:
    with (
        open_model(mamba, any_engine=True) as file,
        pytest.raises(BackendError, match=r"recurrent state.*--no-speculation"),
    ):
        backends.open_target(file, replace(PLAN, backend="llamacpp", max_nodes=4))


@installed
def test_a_file_that_makes_llamacpp_abort(tmp_path: Path) -> None:
    """Four heads cannot share three key heads: an assertion of its own, in a process of its own."""
    path = write_gemma(
        tmp_path / "bad.gguf", kv_heads=3, metadata={"gemma.attention.head_count_kv": 3}
    )
    with pytest.raises(ModelFileError, match=r"bad.gguf: llama.cpp (crashed|failed)"):
        edgespec.load(path, threads=1)


@installed
@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"metadata": {"gemma.attention.layer_norm_rms_epsilon": None}}, "key not found in model"),
        ({"shapes": {"blk.0.attn_q.weight": (32, 64)}}, "blk.0.attn_q.weight' has wrong shape"),
        ({"metadata": {"split.count": 2}}, "part 1 of 2, and is not called"),
        ({"metadata": {"gemma.attention.causal": False}}, "not causal"),
    ],
    ids=["missing key", "wrong shape", "split", "not causal"],
)
def test_files_that_llamacpp_refuses(tmp_path: Path, options: dict[str, Any], found: str) -> None:
    path = write_gemma(tmp_path / "bad.gguf", **options)
    with pytest.raises(ModelFileError, match=found):
        edgespec.plan(path)


@installed
def test_recurrent_models_take_one_text_at_a_time(mamba: Path) -> None:
    with pytest.raises(OptionError, match="one reply at a time.*sequences=1"):
        edgespec.load(mamba, sequences=2)
    with (
        open_model(mamba, any_engine=True) as file,
        pytest.raises(BackendError, match="one reply at a time.*sequences=1"),
    ):
        backends.open_target(file, replace(PLAN, backend="llamacpp", max_nodes=2, sequences=2))


@installed
def test_several_texts_hold_what_was_planned(gemma: Path) -> None:
    with edgespec.load(gemma, threads=1, sequences=3) as engine:
        held = engine.scheduler.target.allocated_bytes()  # type: ignore[attr-defined]
        assert held == pytest.approx(engine.plan.footprint.exact, abs=ROUNDING)
        prompts = ["the cat", "the hat", "the cat and the hat", "a"]
        replies = engine.generate_batch(prompts, max_tokens=12, temperature=0)
        alone = [engine.generate(prompt, max_tokens=12, temperature=0) for prompt in prompts]
        assert [one.token_ids for one in replies] == [one.token_ids for one in alone]


@installed
def test_loading_can_be_interrupted(gemma: Path) -> None:
    def stop(stage: str, done: int, total: int) -> None:
        if stage == "load":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        edgespec.load(gemma, threads=1, progress=stop)


@installed
def test_nothing_is_written_to_the_terminal(gemma: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with edgespec.load(gemma, threads=1) as engine:
        engine.generate("the cat", max_tokens=3, seed=1)
    assert capfd.readouterr() == ("", "")


@installed
def test_its_tokenizer_where_ours_does_not_know_the_kind(tmp_path: Path) -> None:
    """Checked on a kind that both know: only the name in the file differs."""
    ours = write_gguf(tmp_path / "ours.gguf", tokenizer="gpt2", pre="gpt-2")
    theirs = write_gguf(tmp_path / "theirs.gguf", tokenizer="gpt2", pre="jina-v2-de")
    text = "the cat and  the hat: 12.5% <|im_start|>user\n\u00fcber \U0001f600"
    with edgespec.load(ours, threads=1) as one, edgespec.load(theirs, threads=1) as two:
        assert (one.plan.backend, two.plan.backend) == ("native", "llamacpp")
        for special in (False, True):
            ids = two.tokenizer.encode(text, parse_special=special)
            assert ids == one.tokenizer.encode(text, parse_special=special)
            assert two.tokenizer.decode(ids) == one.tokenizer.decode(ids)
        assert two.tokenizer.end_ids == one.tokenizer.end_ids
        with pytest.raises(IndexError):
            two.tokenizer.token_bytes(300)
        left = two.tokenizer
    with pytest.raises(BackendError, match="closed"):
        left.encode("the")


def test_verdicts_are_remembered(tmp_path: Path) -> None:
    place, verdict = tmp_path / "folder" / "v.json", Verdict(True, False, "it crashed")
    assert probe._read(place) is None
    probe._write(place, verdict)
    assert probe._read(place) == verdict
    place.write_text(json.dumps({"runs": True}), encoding="utf-8")
    assert probe._read(place) is None


def test_what_a_build_that_crashes_says() -> None:
    assert Verdict(True).note() == ""
    assert "it crashed; it is faster built without AMX" in Verdict(True, False, "it crashed").note()
    with pytest.raises(BackendError, match=r"\(it crashed\); build it without AMX: CMAKE_ARGS"):
        Verdict(False, False, "it crashed").require()


def test_a_library_that_tells_no_sizes() -> None:
    assert buffers(["x: CPU_REPACK compute buffer size = 1.50 MiB"], "compute") == {
        "CPU_REPACK": 3 << 19
    }
    with pytest.raises(BackendError, match="does not tell the size of its model buffer"):
        buffers(["x: CPU compute buffer size = 1.50 MiB"], "model")
    with pytest.raises(BackendError, match="KV cache"):
        cache_bytes([])


@installed
def test_survey_answers_match_what_is_then_held(gemma: Path) -> None:
    settings = ContextSettings(context=256, rows=64, nodes=4, threads=1)
    with Survey(gemma, extra_buffers=True) as survey:
        first = survey.bytes_of(settings)
        assert survey.bytes_of(settings) == first
        larger = survey.bytes_of(replace(settings, context=512))
    assert larger.cache == pytest.approx(2 * first.cache, abs=ROUNDING)
    assert first.vocabulary > 0
    assert not survey.has_state


def fill(path: Path) -> tuple[int, int, int]:
    """Bytes that filling a context of 4,096 took, that are counted, and of them the scratch."""
    with open_model(path) as file:
        settings = ContextSettings(context=4096, rows=256, nodes=4, threads=1)
        scratch = scratch_bytes(file.spec, settings)
    model = Model(library.library(), path, extra_buffers=True)
    context = Context(model, settings)
    batch, before = Batch(context.api, rows=256, nodes=4), resident_bytes()
    for start in range(0, 4096, 256):
        batch.fill_chain(tokens(256), start)
        assert batch.run(context.handle) == 0
    grown, told = resident_bytes() - before, context.compute_bytes + scratch
    context.close()
    model.close()
    return grown, told, scratch


@installed
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere freed pages stay resident")
def test_what_filling_a_long_context_takes_is_counted(tmp_path: Path) -> None:
    """The scratch of products, which is in no log line, is as large as a third of what is."""
    path = write_gguf(tmp_path / "m.gguf", layers=1, context=4096)
    # Of its own process: what other tests freed would be taken again and not seen to grow.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        grown, told, scratch = pool.submit(fill, path).result()
    assert told - scratch // 2 < grown < told + 4096 * CELL_BYTES + 3 * MIB


@installed
def test_a_pass_that_fails_leaves_the_target_usable(
    gemma: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(PLAN, backend="llamacpp")
    with open_model(gemma, any_engine=True) as file, backends.open_target(file, plan) as target:
        target.own.prefill(tokens(5))
        expected = score(target, tokens(2, 1))
        batch = target._batch  # type: ignore[attr-defined]
        with monkeypatch.context() as patch:
            patch.setattr(batch, "run", lambda context: 1)
            with pytest.raises(BackendError, match=r"failed in a pass \(code 1\)"):
                target.own.forward(TokenTree.chain([1, 2]))
        np.testing.assert_array_equal(score(target, tokens(2, 1)), expected)
