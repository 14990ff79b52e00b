"""Adapters: the fit, the file, what drafts make of it; the text never changes."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import edgespec
from edgespec.drafting.model.early_exit import EarlyExitDrafter
from edgespec.errors import AdaptError, BudgetError, ModelFileError, OptionError
from edgespec.memory.plan.footprint import ADAPTER_ITEM
from edgespec.models.adapter import Fit, open_adapter, place_beside, write_adapter
from edgespec.models.open_model import open_model
from edgespec.terminal.model_facts import facts_of
from edgespec.tools.adapt.adapt import adapt
from edgespec.tools.adapt.ridge import Sums, normalised
from edgespec.tools.adapt.texts import windows
from tests.support.equality import Case, same
from tests.support.gguf_models import write_gguf

DIM = 64
DRAFTERS = "suffix-automaton,early-exit"


def make_model(folder: Path, name: str = "m.gguf") -> Path:
    return write_gguf(folder / name, type="Q8_0", layers=3, dim=DIM, vocab=300)


def give_adapter(model: Path, layers: tuple[int, ...] = (1, 2), seed: int = 5) -> Path:
    """Write an adapter of random matrices near the identity beside a model."""
    rng = np.random.default_rng(seed)
    matrices = {
        layer: (np.eye(DIM) + 0.1 * rng.standard_normal((DIM, DIM))).astype(np.float16)
        for layer in layers
    }
    fits = [Fit(layer, 0.25, 0.5, 0.01, layer in layers) for layer in (1, 2)]
    with open_model(model) as file:
        mark = file.content_fingerprint().hex()
    write_adapter(place_beside(model), mark, DIM, 100, fits, matrices)
    return place_beside(model)


def write_texts(folder: Path, count: int = 40) -> Path:
    place, rng = folder / "texts.jsonl", np.random.default_rng(1)
    words = ["the", "cat", "and", "hat", "a", "dog", "sat", "on"]
    texts = [" ".join(rng.choice(words, 40)) for _ in range(count)]
    place.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return place


def test_the_ridge_is_that_of_all_rows_at_once() -> None:
    rng = np.random.default_rng(3)
    inputs = rng.standard_normal((500, 12)).astype(np.float32)
    outputs = (inputs + inputs @ rng.standard_normal((12, 12)) * 0.3).astype(np.float32)
    sums = Sums(12)
    for first in range(0, 500, 70):
        sums.add(inputs[first : first + 70], outputs[first : first + 70])
    for strength, found in sums.solutions():
        gram = inputs.T @ inputs / 500 + strength * np.eye(12)
        expected = np.eye(12) + np.linalg.solve(gram, inputs.T @ (outputs - inputs) / 500)
        np.testing.assert_allclose(found, expected, atol=1e-3)


def test_fitting_a_file_of_texts(tmp_path: Path) -> None:
    """Every exit is judged, and the file tells the same as the report."""
    model, seen = make_model(tmp_path), []
    report = adapt(
        model,
        write_texts(tmp_path, 80),
        memory="auto",
        max_tokens=4000,
        progress=lambda stage, done, whole: seen.append(done / whole),
    )
    assert [fit.layer for fit in report.fits] == [1, 2]
    assert report.peak_memory_bytes > 0
    assert seen == sorted(seen)
    assert seen[-1] <= 1.0
    assert all(0.0 <= fit.before <= 1.0 and 0.0 <= fit.after <= 1.0 for fit in report.fits)
    with closing(open_adapter(report.path)) as adapter:
        assert adapter.layers == tuple(fit.layer for fit in report.fits if fit.pays)
        assert adapter.num_tokens == report.judged_tokens
    facts = facts_of(str(model))["adapter"]
    assert [fit["layer"] for fit in facts["exits"]] == [1, 2]


def test_an_exit_that_is_one_matrix_from_the_head_is_found(tmp_path: Path) -> None:
    """Where layers after the exit add nothing, nothing is gained and the file has no matrix."""
    model = write_gguf(tmp_path / "m.gguf", type="F32", layers=2, dim=DIM, vocab=300)
    raw = bytearray(model.read_bytes())
    with open_model(model) as file:
        for name in ("blk.1.attn_output.weight", "blk.1.ffn_down.weight"):
            info = file.tensors[name]
            raw[info.offset : info.offset + info.size_bytes] = bytes(info.size_bytes)
    model.write_bytes(raw)
    report = adapt(model, write_texts(tmp_path, 80), memory="auto", max_tokens=4000)
    assert [(fit.before, fit.pays) for fit in report.fits] == [(1.0, False)]
    assert report.fits[0].after > 0.9
    plan = edgespec.plan(model, drafters=DRAFTERS)
    assert any("no gain" in reason for reason in plan.reasons)
    assert ADAPTER_ITEM not in plan.footprint.exact


@pytest.mark.parametrize("threads", [1, 2])
def test_the_text_is_that_of_plain_decoding(tmp_path: Path, threads: int) -> None:
    """With drafts through an adapter and without, which the drafter compares."""
    model = make_model(tmp_path)
    give_adapter(model)
    with edgespec.load(model, drafters=DRAFTERS, threads=threads) as engine:
        drafter = engine.scheduler.slots[0].market._sources[1].drafter
        assert isinstance(drafter, EarlyExitDrafter)
        assert {tuple(way) for way in drafter.exits} == {
            (1, False),
            (1, True),
            (2, False),
            (2, True),
        }
        for temperature in (0.0, 0.9):
            case = Case("the cat and the hat", temperature, seed=3, max_tokens=50, ignore_eos=True)
            plain = case.plain(engine)
            assert same(plain, case.speculative(engine, "drafter", None, plain))
        assert drafter._probes > 0


def test_logits_through_an_adapter_are_those_of_its_definition(tmp_path: Path) -> None:
    """Norm without gain, the matrix, then norm and head as ever; early nodes stay as they were."""
    model = make_model(tmp_path)
    with closing(open_adapter(give_adapter(model))) as adapter:
        matrix = adapter.rows(1, 0, DIM).astype(np.float32)
    with edgespec.load(model, drafters=DRAFTERS) as engine:
        target, epsilon = engine.scheduler.target, engine.file.spec.norm_epsilon
        streams = np.random.default_rng(0).standard_normal((3, DIM)).astype(np.float32)
        through = target.head(streams, 1).copy()
        expected = target.head(normalised(streams, epsilon) @ matrix.T).copy()
        cosine = np.sum(through * expected, 1) / np.linalg.norm(through, axis=1)
        assert (cosine / np.linalg.norm(expected, axis=1)).min() > 0.9999
        target.own.prefill(np.array([1, 5, 7], np.int32))
        adapted = target.own.forward_until(1, [9], [-1], adapted=True).logits.copy()
        plain = target.own.deepen(1).logits.copy()
        assert not np.array_equal(adapted, plain)
        np.testing.assert_array_equal(target.own.deepen(1, adapted=True).logits, adapted)
        target.own.truncate(3)
        np.testing.assert_array_equal(target.own.forward_until(1, [9], [-1]).logits, plain)


def test_it_is_planned_to_the_byte(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    assert ADAPTER_ITEM not in edgespec.plan(model, drafters=DRAFTERS).footprint.exact
    give_adapter(model, layers=(2,))
    assert ADAPTER_ITEM not in edgespec.plan(model, drafters="trigram").footprint.exact
    plan = edgespec.plan(model, drafters=DRAFTERS)
    assert any("layer 2 25 -> 50 %" in reason for reason in plan.reasons)
    with edgespec.load(model, drafters=DRAFTERS) as engine:
        allocated = engine.scheduler.target.allocated_bytes()
        assert allocated[ADAPTER_ITEM] == plan.footprint[ADAPTER_ITEM] == 2 * DIM * DIM


def test_another_models_adapter_is_left_alone(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    other = write_gguf(tmp_path / "o.gguf", type="Q8_0", layers=3, dim=DIM, vocab=300, seed=9)
    place_beside(model).write_bytes(give_adapter(other).read_bytes())
    plan = edgespec.plan(model, drafters=DRAFTERS)
    assert any("fitted to another model" in reason for reason in plan.reasons)
    assert "another model" in facts_of(str(model))["adapter"]["error"]


def test_damaged_files_are_refused_in_a_sentence(tmp_path: Path) -> None:
    """Bytes changed and cut at random: an error of ours, or a file that still holds together."""
    model, rng = make_model(tmp_path), np.random.default_rng(7)
    place = give_adapter(model)
    whole = place.read_bytes()
    for trial in range(150):
        raw = bytearray(whole)
        for at in rng.integers(0, len(raw) if trial % 2 else 700, 3):
            raw[at] = rng.integers(256)
        place.write_bytes(raw[: rng.integers(1, len(raw))] if trial % 5 == 0 else raw)
        try:
            with closing(open_adapter(place)) as adapter:
                for layer in adapter.layers:
                    adapter.rows(layer, 0, adapter.dim)
        except ModelFileError as error:
            assert str(error)


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="edgespec-adapter"):
        open_model(give_adapter(make_model(tmp_path)))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", b"{", "line 1 is not JSON"),
        ("a.jsonl", b'{"text": "x"}\n{"prompt": "x"}', "line 2 has no text"),
        ("a.jsonl", b"\xff\xfe", "not UTF-8"),
        ("a.txt", b"\xff\xfe", "not UTF-8"),
        ("a.txt", b"the cat", "tokens, and fitting takes at least"),
        ("a.txt", b"the cat and the hat " * 999, "tokens, which leave 0 to judge by"),
    ],
)
def test_texts_that_cannot_be_used(
    tmp_path: Path, name: str, content: bytes, sentence: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(AdaptError, match=sentence):
        adapt(make_model(tmp_path), tmp_path / name, memory="auto", max_tokens=2000)


def test_arguments_that_mean_nothing(tmp_path: Path) -> None:
    model, texts = make_model(tmp_path), write_texts(tmp_path, 2)
    for changes, sentence in (
        ({"exit_layer": 3}, "layer 1 to 2"),
        ({"exit_layer": "first"}, "or auto"),
        ({"max_tokens": 5}, "raise --max-tokens"),
    ):
        with pytest.raises(OptionError, match=sentence):
            adapt(model, texts, **changes)  # type: ignore[arg-type]
    with pytest.raises(AdaptError, match="cannot read"):
        adapt(model, tmp_path / "none.txt", memory="auto")
    with pytest.raises(BudgetError):
        adapt(model, texts, memory="90MiB")


def test_a_plain_text_loses_nothing(tmp_path: Path, bundled_model: Path) -> None:
    """Read in parts, its windows decode to the file."""
    said = "".join(f"Sentence {number} of a long text, with é and 漢.\n" for number in range(4000))
    (tmp_path / "t.txt").write_text(said, encoding="utf-8")
    with open_model(bundled_model) as file:
        found = list(windows(tmp_path / "t.txt", file, 100))
        assert max(map(len, found)) == 100
        ids = [
            token for window in found for token in window.tolist() if token != file.tokenizer.bos_id
        ]
        text = file.tokenizer.decode(ids)
    assert text.strip().endswith("Sentence 3999 of a long text, with é and 漢.")
    assert abs(len(text) - len(said)) < 400  # single tokens left over at the end of a part
