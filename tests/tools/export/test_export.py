"""What is exported computes what its file does, and carries its tokenizer and template along."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec.errors import EdgeSpecError, ExportError, OptionError
from edgespec.models.open_model import open_model
from edgespec.tools.export import export as exporting
from edgespec.tools.export.export import export
from tests.support.gguf_models import CHATML, write_gguf
from tests.support.targets import missing
from tests.support.vocabularies import TRICKY, bpe_vocabulary, random_texts, spm_vocabulary

WHY = missing("onnx")
pytestmark = pytest.mark.skipif(bool(WHY), reason=WHY)

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "tied": {"tied": True},
    "biases": {"arch": "qwen2"},
    "normed heads": {"arch": "qwen3", "head_dim": 32},
    "rotation factors": {"rope_factors": True},
    "narrow heads": {"heads": 8},
    "half of each head rotated": {"metadata": {"llama.rope.dimension_count": 8}},
    "half of narrow heads rotated": {"heads": 8, "metadata": {"llama.rope.dimension_count": 4}},
    "half of wide heads rotated": {"dim": 128, "metadata": {"llama.rope.dimension_count": 16}},
    "scaled positions": {
        "metadata": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    },
    "odd columns": {"ffn": 100},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape(shape: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", **SHAPES[shape])
    made = export(path, tmp_path / "out")
    found = made.agreement
    assert found.worst > 0.99999
    assert found.same_best == found.rows
    with open_model(path) as file, open_model(made.path, any_engine=True) as other:
        assert other.spec.ffn_dim == file.spec.ffn_dim, "which a pass's memory is counted by"


@pytest.mark.parametrize(
    ("kind", "bits", "least"),
    [
        ("F32", 4, 0.95), ("F32", 8, 0.999), ("F32", 16, 0.99999), ("BF16", None, 0.99999),
        ("Q8_0", None, 0.999), ("Q4_0", None, 0.999), ("Q4_0", 8, 0.999), ("Q8_0", 32, 0.999),
        ("Q5_1", None, 0.999), ("Q6_K", None, 0.999), ("Q4_K", 16, 0.999),
    ],
)  # fmt: skip
def test_every_width(kind: str, bits: int | None, least: float, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", type=kind, dim=256, ffn=256, tied=True)
    made = export(path, tmp_path / "out", bits=bits)
    assert made.agreement.worst > least
    weights = (tmp_path / "out" / exporting.DATA).stat().st_size
    with open_model(path) as file:
        largest = 4.5 * file.spec.num_parameters
    per_weight = {4: 0.7, 8: 1.2, 16: 2.1}.get(bits or 0, 4.5)
    assert weights < largest * per_weight / 4.5 + 3e5


@pytest.mark.parametrize(("kind", "bits"), [("Q8_0", 8), ("Q4_0", 4)])
def test_blocks_are_copied_exactly(kind: str, bits: int, tmp_path: Path) -> None:
    from edgespec.tools.export.matrices import quantised_rows, scale_rows

    with open_model(write_gguf(tmp_path / "m.gguf", type=kind, ffn=128)) as file:
        name = "blk.0.ffn_down.weight"
        raw = np.concatenate(list(quantised_rows(file, name, bits)))
        scales = np.concatenate(list(scale_rows(file, name, bits)))
        expected = file.matrix_f32(name)
    whole = raw if bits == 8 else np.stack([raw & 15, raw >> 4], axis=2).reshape(len(raw), -1)
    weights = (whole.astype(np.float32) - (1 << (bits - 1))).reshape(len(raw), -1, 32)
    np.testing.assert_array_equal((weights * scales[..., None]).reshape(expected.shape), expected)


def test_an_exit_layer_leaves_the_rest_out(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", layers=3)
    made = export(path, tmp_path / "out", exit_layer=2)
    assert made.num_layers == 2
    assert made.agreement.worst > 0.99999  # with the same two layers on the native backend
    with open_model(made.path, any_engine=True) as file:
        assert file.spec.num_layers == 2
        assert not any("blk.2." in name for name in file.tensors)


def test_matrices_pass_through_memory_a_part_at_a_time(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", type="Q8_0", vocab=60_000, dim=256, ffn=256)
    tracemalloc.start()
    export(path, tmp_path / "out", bits=16, check=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "out" / exporting.DATA).stat().st_size > 60 << 20
    assert peak < 55 << 20  # most of it the vocabulary and its merges


def test_writing_twice_replaces_the_first(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", layers=1)
    export(path, tmp_path / "out", bits=8)
    with pytest.raises(ExportError, match="--overwrite"):
        export(path, tmp_path / "out")
    assert export(path, tmp_path / "out", overwrite=True).agreement.worst > 0.99999


VOCABULARIES: dict[str, Callable[[], dict[str, Any]]] = {
    "spm": spm_vocabulary,
    "spm without space prefix": lambda: spm_vocabulary(space_prefix=False),
    "spm with phrases": lambda: spm_vocabulary(phrases=True),
    "gpt-2": lambda: bpe_vocabulary("gpt-2"),
    "llama-bpe": lambda: bpe_vocabulary("llama-bpe"),
    "qwen2": lambda: bpe_vocabulary("qwen2"),
    "smollm": lambda: bpe_vocabulary("smollm"),
    "deepseek-llm": lambda: bpe_vocabulary("deepseek-llm"),
    "tiny_aya": lambda: bpe_vocabulary("tiny_aya"),
    "superbpe": lambda: bpe_vocabulary("superbpe"),
}


@pytest.mark.parametrize("case", VOCABULARIES)
def test_tokenizers_are_the_same(case: str, tmp_path: Path) -> None:
    vocabulary = VOCABULARIES[case]()
    path = write_gguf(
        tmp_path / "m.gguf",
        vocab=len(vocabulary["tokenizer.ggml.tokens"]),
        layers=1,
        template=CHATML,
        metadata=vocabulary,
        tokenizer=vocabulary["tokenizer.ggml.model"],
    )
    check_tokenizers(path, tmp_path / "out")


def test_tokenizers_of_real_files_are_the_same(bundled_model: Path, tmp_path: Path) -> None:
    check_tokenizers(bundled_model, tmp_path / "out")


def check_tokenizers(path: Path, out: Path) -> None:
    made = export(path, out, bits=8, check=False)
    with open_model(path) as file, open_model(made.path, any_engine=True) as other:
        ours, theirs = file.tokenizer, other.tokenizer
        for text in (*TRICKY, *random_texts(200, seed=5), "<|im_end|> forged </s>"):
            assert theirs.encode(text) == ours.encode(text), repr(text)
            parsed = ours.encode(text, add_bos=False, parse_special=True)
            assert theirs.encode(text, add_bos=False, parse_special=True) == parsed, repr(text)
        every = range(ours.vocab_size)
        assert [theirs.token_bytes(i) for i in every] == [ours.token_bytes(i) for i in every]
        assert (theirs.bos_id, theirs.eos_id, theirs.end_ids, theirs.add_bos) == (
            ours.bos_id, ours.eos_id, ours.end_ids, ours.add_bos
        )  # fmt: skip
        messages = [{"role": "user", "content": "Hello <|im_end|>"}]
        prompts = [
            None if opened.chat_template is None else opened.chat_template.render(messages)
            for opened in (file, other)
        ]
        assert prompts[0] == prompts[1]
        assert other.spec.context_length == file.spec.context_length
        assert (other.spec.name, other.spec.architecture) == (
            file.spec.name, file.spec.architecture
        )  # fmt: skip


def test_the_text_is_that_of_the_gguf_file(bundled_model: Path, tmp_path: Path) -> None:
    made = export(bundled_model, tmp_path / "out", check=False)
    options: dict[str, Any] = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
    texts = []
    for model in (bundled_model, made.path, tmp_path / "out"):
        with edgespec.load(model, threads=1, context=256) as engine:
            texts.append(engine.generate("Tell me a story about a cat.", **options).text)
    assert texts[0] == texts[1] == texts[2]


REFUSALS: dict[str, tuple[dict[str, Any], type[EdgeSpecError], str]] = {
    "another format": ({"format": "pt"}, OptionError, "'pt'; choose onnx"),
    "odd bits": ({"bits": 5}, OptionError, "5 bits.*4, 8, 16, 32"),
    "no layer": ({"exit_layer": 0}, OptionError, "layer 0.*has 2"),
    "too many layers": ({"exit_layer": 3}, OptionError, "layer 3.*has 2"),
    "too much context": ({"context": 513}, OptionError, "513 tokens.*1 to 512"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str, tmp_path: Path) -> None:
    options, kind, words = REFUSALS[case]
    path = write_gguf(tmp_path / "m.gguf")
    with pytest.raises(kind, match=words):
        export(path, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_other_things_is_left_alone(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    with pytest.raises(ExportError, match=r"m.gguf.*empty or a new folder"):
        export(path, tmp_path)
    with pytest.raises(OptionError, match="names a file"):
        export(path, tmp_path / "m.onnx")
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    with pytest.raises(ExportError, match="cannot write to"):
        export(path, blocked / "out")
    assert sorted(found.name for found in tmp_path.iterdir()) == ["blocked", "m.gguf"]


def test_without_the_package_that_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        exporting, "find_spec", lambda name: None if name == "onnx" else find_spec(name)
    )
    with pytest.raises(ExportError, match=r"pip install 'edgespec\[onnx\]'"):
        export(write_gguf(tmp_path / "m.gguf"), tmp_path / "out")
