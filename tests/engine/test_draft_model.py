"""Drafting with a smaller model: the text stays, its memory is planned, its vocabulary checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec.backends.base import Target
from edgespec.backends.passes import TokenTree
from edgespec.engine.engine import Engine
from edgespec.engine.reply import Reply
from edgespec.errors import OptionError, UnsupportedModelError
from edgespec.loading.draft_model import DraftModel, translation
from edgespec.models.open_model import open_model
from edgespec.tools.export.export import export
from tests.support.equality import Case, same
from tests.support.gguf_models import CHATML, write_gguf
from tests.support.targets import ROUNDED_MARGIN, missing
from tests.support.vocabularies import bpe_vocabulary

PROMPT = "the cat and the hat and the cat and the"


def existing(*names: str) -> list[Any]:
    """Backends as parameters; those that are not installed are skipped."""
    return [
        pytest.param(name, marks=pytest.mark.skipif(bool(missing(name)), reason=missing(name)))
        for name in names
    ]


BACKENDS = existing("native", "reference", "llamacpp", "onnx")
DRAFTING = existing("native", "llamacpp", "onnx")
ONNX = pytest.mark.skipif(bool(missing("onnx")), reason=missing("onnx"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model, a smaller one with its vocabulary, and one with the same tokens in another order."""
    folder, found = tmp_path_factory.mktemp("models"), {}
    vocabulary = bpe_vocabulary("gpt-2", 400)
    order = np.random.default_rng(1).permutation(400)
    shuffled = dict(vocabulary)
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type"):
        shuffled[key] = [vocabulary[key][place] for place in order]
    places = {int(old): new for new, old in enumerate(order)}
    for key in ("tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"):
        shuffled[key] = places[vocabulary[key]]
    for name, layers, metadata in (
        ("large", 3, vocabulary), ("small", 1, vocabulary), ("shuffled", 1, shuffled)
    ):  # fmt: skip
        found[name] = write_gguf(
            folder / f"{name}.gguf", type="Q8_0", layers=layers, template=CHATML, vocab=400,
            tokenizer="gpt2", metadata=metadata,
        )  # fmt: skip
    found["other"] = write_gguf(folder / "other.gguf", type="Q8_0", template=CHATML)
    if not missing("onnx"):
        for name in ("large", "small", "shuffled"):
            made = export(found[name], folder / f"{name}-onnx", check=False)
            found[f"{name}-onnx"] = made.path.parent
        cut = export(found["large"], folder / "cut-onnx", exit_layer=2, check=False)
        found["cut-onnx"] = cut.path.parent
    return found


def in_format(models: dict[str, Path], name: str, backend: str) -> Path:
    """A model in the format that a backend reads."""
    return models[f"{name}-onnx" if backend == "onnx" else name]


def draft_model_of(engine: edgespec.Engine) -> DraftModel:
    (found,) = (one for one in engine._drafting if isinstance(one, DraftModel))
    return found


def options(models: dict[str, Path], draft: str, drafting: str, **others: Any) -> dict[str, Any]:
    path = in_format(models, draft, drafting)
    made = {"threads": 1, "draft_model": path, "draft_backend": drafting, "overlap": "off"}
    return made | others


def same_or_tied(engine: Engine, plain: Reply, found: Reply, prompt: str = PROMPT) -> bool:
    """Equal to the bit where rows are; else they part, if at all, where two tokens are as good."""
    if same(plain, found):
        return True
    target: Target = engine.scheduler.target
    if target.capabilities.bit_exact_rows:
        return False
    pairs = list(zip(plain.token_ids, found.token_ids, strict=False))
    first = next(at for at, (one, other) in enumerate(pairs) if one != other)
    ids = [*engine.tokenizer.encode(prompt), *plain.token_ids[:first]]
    target.own.truncate(0)
    target.own.prefill(ids[:-1])
    row = target.own.forward(TokenTree.chain(ids[-1:])).logits[0]
    target.own.truncate(0)
    return bool(abs(row[pairs[first][0]] - row[pairs[first][1]]) < ROUNDED_MARGIN)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("drafting", DRAFTING)
@pytest.mark.parametrize("draft", ["large", "small", "shuffled"])
def test_the_text_is_that_of_plain_decoding(
    models: dict[str, Path], backend: str, drafting: str, draft: str
) -> None:
    """Every pair of backends. A model that drafts for itself is right, and too costly for more than
    a token at a time.
    """
    others: dict[str, Any] = {"backend": backend, "drafters": "none", "overlap": "off"}
    with edgespec.load(
        in_format(models, "large", backend), **options(models, draft, drafting, **others)
    ) as engine:
        assert draft_model_of(engine).backend == drafting
        case = Case(PROMPT, 0.0, seed=3, max_tokens=40, ignore_eos=True)
        plain = case.plain(engine)
        found = case.speculative(engine, "drafter", None, plain)
        assert same_or_tied(engine, plain, found)
        assert found.stats.by_source["draft-model"]["drafted"] > 0
        if draft == "large":
            assert found.stats.tokens_per_step > 1.8
        assert engine.plan.footprint["draft model"] > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_beside_others_and_with_noise(models: dict[str, Path], backend: str) -> None:
    beside = "trigram,early-exit" if backend == "native" else "trigram"
    made = options(models, "small", "native", backend=backend, drafters=beside)
    with edgespec.load(in_format(models, "large", backend), **made) as engine:
        case = Case(PROMPT, 0.8, seed=3, max_tokens=40, ignore_eos=True)
        plain = case.plain(engine)
        found = case.speculative(engine, "drafter", None, plain)
        assert same(plain, found) or not engine.scheduler.target.capabilities.bit_exact_rows
        assert found.stats.by_source["draft-model"]["drafted"] > 0


@ONNX
def test_a_cut_export_drafts(models: dict[str, Path]) -> None:
    """What `edgespec export --exit-layer` wrote; its format chooses the backend."""
    with edgespec.load(
        models["large"], draft_model=models["cut-onnx"], drafters="none", threads=1
    ) as engine:
        assert draft_model_of(engine).backend == "onnx"
        assert draft_model_of(engine).file.spec.num_layers == 2
        case = Case(PROMPT, 0.0, seed=1, max_tokens=30, ignore_eos=True)
        plain = case.plain(engine)
        found = case.speculative(engine, "drafter", None, plain)
        assert same(plain, found)
        assert found.stats.by_source["draft-model"]["drafted"] > 0


@ONNX
def test_vocabularies_of_other_formats(models: dict[str, Path], bundled_model: Path) -> None:
    """Tokens of a sentencepiece vocabulary too are the same in a GGUF file and in its export."""
    spm = write_gguf(models["large"].parent / "spm.gguf", type="Q8_0", layers=1)
    made = export(spm, spm.with_suffix(""), check=False)
    for gguf, onnx in ((spm, made.path), (models["small"], models["small-onnx"])):
        with open_model(gguf) as main, open_model(onnx, any_engine=True) as draft:
            assert translation(main, draft) is None
            assert translation(draft, main) is None
    with (
        open_model(bundled_model) as main,
        open_model(made.path, any_engine=True) as draft,
        pytest.raises(OptionError, match="lacks"),
    ):
        translation(main, draft)


def test_each_text_of_a_batch_has_its_own(models: dict[str, Path]) -> None:
    prompts = [PROMPT, "a dog and", "a dog and a cat"]
    options: dict[str, Any] = {"temperature": 0.8, "seed": 5, "max_tokens": 30, "ignore_eos": True}
    with edgespec.load(
        models["large"], draft_model=models["small"], threads=2, sequences=3
    ) as engine:
        plain = [engine.generate(prompt, speculation=False, **options) for prompt in prompts]
        for _ in range(2):
            found = engine.generate_batch(prompts, **options)
            assert all(same(one, other) for one, other in zip(plain, found, strict=True))


def test_its_memory_is_planned(models: dict[str, Path]) -> None:
    with edgespec.load(
        models["large"], draft_model=models["small"], threads=2, sequences=2
    ) as engine:
        draft_model = draft_model_of(engine)
        target = draft_model._target
        for session in engine.scheduler.take_slots(2):
            assert session.market.size_bytes <= engine.plan.drafter_bytes
        for text in (target.own, target.open_sequence()) if target._num_sequences < 2 else ():
            text.state.reserve(0, target.context_length)
        target.own.state.reserve(0, target.context_length)
        planned = engine.plan.footprint["draft model"]
        assert sum(target.allocated_bytes().values()) <= planned
    without = edgespec.plan(models["large"])
    assert "draft model" not in [item.name for item in without.footprint]


def test_vocabularies_are_compared(models: dict[str, Path]) -> None:
    with open_model(models["large"]) as large, open_model(models["shuffled"]) as shuffled:
        ids = translation(large, shuffled)
        assert ids is not None
        ours, theirs = (file.tokenizer.token_text for file in (large, shuffled))
        assert all(ours(token) == theirs(int(ids[token])) for token in range(400))
        with open_model(models["small"]) as small:
            assert translation(large, small) is None
        with open_model(models["other"]) as other, pytest.raises(OptionError, match="lacks"):
            translation(large, other)


def test_who_cannot_draft_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="name it: --draft-model FILE"):
        edgespec.plan(models["large"], drafters="draft-model")
    wide = write_gguf(tmp_path / "wide.gguf", type="Q8_K", dim=256, ffn=256, vocab=300)
    with pytest.raises(
        UnsupportedModelError,
        match="be a draft model: .*(--draft-backend llamacpp|llama-cpp-python is not installed)",
    ):
        edgespec.plan(models["large"], draft_model=wide, draft_backend="native")
    with pytest.raises(OptionError, match="add --draft-model FILE"):
        edgespec.plan(models["large"], draft_backend="onnx")
    with pytest.raises(OptionError, match="choose auto, native, llamacpp, onnx"):
        edgespec.plan(models["large"], draft_model=models["small"], draft_backend="reference")
    with pytest.raises(UnsupportedModelError, match="cannot be a draft model: .*edgespec export"):
        edgespec.plan(models["large"], draft_model=models["small"], draft_backend="onnx")


@ONNX
def test_an_export_that_cannot_draft_is_refused(models: dict[str, Path]) -> None:
    small = models["small-onnx"]
    with pytest.raises(UnsupportedModelError, match="leave --draft-backend native out"):
        edgespec.plan(models["large"], draft_model=small, draft_backend="native")
    with pytest.raises(OptionError, match="onnx backend runs one"):
        edgespec.plan(models["large"], draft_model=small, sequences=2)
    with pytest.raises(OptionError, match="lacks"):
        edgespec.plan(models["other"], draft_model=small)


@pytest.mark.skipif(bool(missing("llamacpp")), reason=missing("llamacpp"))
def test_llama_cpp_drafts_from_what_native_cannot_read(
    models: dict[str, Path], tmp_path: Path
) -> None:
    """Embeddings that are no multiple of 16 wide."""
    vocabulary = bpe_vocabulary("gpt-2", 400)
    odd = write_gguf(
        tmp_path / "odd.gguf", type="F16", dim=72, ffn=128, layers=1, vocab=400,
        tokenizer="gpt2", metadata=vocabulary,
    )  # fmt: skip
    with edgespec.load(models["large"], draft_model=odd, drafters="none", threads=1) as engine:
        assert draft_model_of(engine).backend == "llamacpp"
        case = Case(PROMPT, 0.0, seed=1, max_tokens=20, ignore_eos=True)
        plain = case.plain(engine)
        assert same(plain, case.speculative(engine, "drafter", None, plain))
