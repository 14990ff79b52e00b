from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, quants

from edgespec.errors import ModelFileError, UnsupportedModelError
from edgespec.models.layers import Rope
from edgespec.models.open_model import open_model
from edgespec.models.spec import ModelSpec, TensorType
from tests.support.gguf_models import CHATML, write_gguf
from tests.support.raw_gguf import gguf, key

MODELS: dict[str, dict[str, Any]] = {
    "llama F32": {},
    "llama F16 tied": {"type": "F16", "tied": True},
    "llama Q8_0 rope factors": {"type": "Q8_0", "rope_factors": True},
    "llama Q4_0 output Q8_0": {"type": "Q4_0", "types": {"output.weight": "Q8_0"}},
    "llama Q4_K_M": {
        "type": "Q4_K", "dim": 256, "ffn": 512, "types": {"ffn_down.weight": "Q6_K"},
    },
    "llama Q5_K": {"type": "Q5_K", "dim": 256, "ffn": 256},
    "llama Q4_K_M, widths no multiple of 256": {
        "type": "Q5_0", "ffn": 160, "types": {"ffn_down.weight": "Q8_0"},
    },
    "llama Q5_K_M, widths no multiple of 256": {
        "type": "Q5_1", "ffn": 160, "types": {"ffn_down.weight": "Q8_0"},
    },
    "llama Q4_1": {"type": "Q4_1"},
    "llama IQ4_NL": {"type": "IQ4_NL"},
    "qwen2 Q6_K": {"arch": "qwen2", "type": "Q6_K", "dim": 256, "ffn": 256, "tokenizer": "gpt2"},
    "qwen3 BF16": {"arch": "qwen3", "type": "BF16", "head_dim": 32, "tokenizer": "gpt2"},
}  # fmt: skip


@pytest.mark.parametrize("case", MODELS)
def test_every_tensor_equals_the_reference_reader(tmp_path: Path, case: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", **MODELS[case])
    expected = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    with open_model(path) as model:
        assert model.tensors.keys() == expected.keys()
        for name, tensor in expected.items():
            info = model.tensors[name]
            assert info.type.name == tensor.tensor_type.name
            raw = np.ascontiguousarray(tensor.data).view(np.uint8)
            rows = model.rows(name)
            assert np.array_equal(rows, raw.reshape(rows.shape))
            values = quants.dequantize(tensor.data, tensor.tensor_type)
            assert np.array_equal(model.matrix_f32(name), values.reshape(info.shape))
        parameters = sum(tensor.n_elements for tensor in expected.values())
        assert model.spec.num_parameters == parameters


def spec_of(path: Path) -> ModelSpec:
    with open_model(path) as model:
        return model.spec


def extras(spec: ModelSpec) -> tuple[bool, bool]:
    """Whether the first layer has biases, and norms of its heads."""
    first = spec.attentions[0]
    return bool(first.query.bias), first.query_norm is not None


def test_spec_of_llama(tmp_path: Path) -> None:
    scaling = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    path = write_gguf(
        tmp_path / "m.gguf", rope_base=5e5, rope_factors=True, tied=True, metadata=scaling
    )
    spec = spec_of(path)
    assert (spec.architecture, spec.name) == ("llama", "random-llama")
    assert (spec.num_layers, spec.dim, spec.ffn_dim, spec.vocab_size) == (2, 64, 96, 300)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.kv_dim) == (4, 2, 16, 32)
    assert spec.context_length == 512
    assert spec.norm_epsilon == pytest.approx(1e-5)
    expected = Rope(5e5, 16, "interleaved", 0.25, "rope_freqs.weight")
    assert [each.rope for each in spec.attentions] == [expected, expected]
    assert spec.tied_embeddings
    assert extras(spec) == (False, False)


def test_spec_of_qwen(tmp_path: Path) -> None:
    two = spec_of(write_gguf(tmp_path / "2.gguf", arch="qwen2"))
    three = spec_of(write_gguf(tmp_path / "3.gguf", arch="qwen3", head_dim=32))
    assert (extras(two), extras(three)) == ((True, False), (False, True))
    assert (two.head_dim, three.head_dim) == (16, 32)
    assert two.attentions[0].rope == Rope(10000.0, 16, "halves")
    assert three.attentions[0].rope == Rope(10000.0, 32, "halves")


def test_defaults_when_the_file_is_silent(tmp_path: Path) -> None:
    silent = dict.fromkeys(
        (
            "general.name", "llama.attention.head_count_kv", "llama.rope.dimension_count",
            "llama.rope.freq_base", "llama.vocab_size",
        )
    )  # fmt: skip
    path = write_gguf(tmp_path / "quiet.gguf", kv_heads=4, metadata=silent)
    spec = spec_of(path)
    assert (spec.name, spec.num_kv_heads) == ("quiet", 4)
    assert spec.attentions[0].rope == Rope(10000.0, 16, "interleaved")


def test_llama_with_biases_of_its_own(tmp_path: Path) -> None:
    widths = {"q": 64, "k": 32, "v": 32}
    biases = {f"blk.{i}.attn_{p}.bias": (w,) for i in range(2) for p, w in widths.items()}
    assert extras(spec_of(write_gguf(tmp_path / "m.gguf", shapes=biases))) == (True, False)
    del biases["blk.1.attn_v.bias"]
    spec = spec_of(write_gguf(tmp_path / "n.gguf", shapes=biases))
    values = [each.value for each in spec.attentions]
    assert [value.bias for value in values if value] == ["blk.0.attn_v.bias", ""]


@pytest.mark.parametrize(("window", "expected"), [(128, 128), (4096, 512), (0, 512)])
def test_a_sliding_window_caps_the_context(tmp_path: Path, window: int, expected: int) -> None:
    window_key = {"llama.attention.sliding_window": window}
    path = write_gguf(tmp_path / "m.gguf", metadata=window_key)
    assert spec_of(path).context_length == expected


def bad(**options: Any) -> dict[str, Any]:
    return options


UNSUPPORTED = {
    "architecture": (bad(metadata={"general.architecture": "mamba"}), "'mamba'; the native"),
    "type": (
        bad(dim=256, types={"ffn_up.weight": "Q8_K"}),
        r"2 tensors of type Q8_K \(first 'blk.0.ffn_up.weight'\); supported are F32, F16, BF16, "
        r"Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, Q4_K, Q5_K, Q6_K, IQ4_XS.*llama-quantize",
    ),
    "rope scaling": (bad(metadata={"llama.rope.scaling.type": "ntk"}), "scaling is 'ntk'"),
    "not causal": (bad(metadata={"llama.attention.causal": False}), "not causal"),
    "narrow values": (bad(metadata={"llama.attention.value_length": 8}), "16 wide and values 8"),
    "unknown tensor": (
        bad(shapes={"blk.0.attn_extra.weight": (64,)}),
        "'blk.0.attn_extra.weight'; choose another model",
    ),
    "one layer too many": (bad(metadata={"llama.block_count": 1}), "of 1 layers, first 'blk.1"),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_cannot_be_run(tmp_path: Path, case: str) -> None:
    options, message = UNSUPPORTED[case]
    path = write_gguf(tmp_path / "m.gguf", **options)
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        open_model(path)
    assert str(path) in str(caught.value)


CONTRADICTORY = {
    "no architecture": (
        bad(metadata={"general.architecture": 5}),
        "general.architecture should be a text, found 5",
    ),
    "no layers": (bad(metadata={"llama.block_count": None}), "block_count should be .* nothing"),
    "zero heads": (bad(metadata={"llama.attention.head_count": 0}), "head_count should be"),
    "uneven layers": (
        bad(metadata={"llama.feed_forward_length": [96, 128]}),
        "'blk.1.ffn_gate.weight' is 96 x 64 and the hyper-parameters say 128 x 64",
    ),
    "experts of no number": (
        bad(metadata={"llama.expert_count": 8}),
        "expert_used_count should be",
    ),
    "too many layers": (bad(metadata={"llama.block_count": 3}), "'blk.2.attn_q.weight' is missing"),
    "infinite base": (bad(metadata={"llama.rope.freq_base": float("inf")}), "freq_base should"),
    "epsilon of nan": (
        bad(metadata={"llama.attention.layer_norm_rms_epsilon": float("nan")}),
        "finite number, found nan",
    ),
    "vocabulary and tensor": (
        bad(shapes={"token_embd.weight": (299, 64)}),
        "300 tokens and token_embd.weight 299 rows",
    ),
    "vocabulary and metadata": (
        bad(metadata={"llama.vocab_size": 512}),
        "vocab_size is 512 and token_embd.weight has 300",
    ),
    "no embedding": (bad(shapes={"token_embd.weight": None}), "no token_embd.weight"),
    "no norm": (bad(shapes={"blk.1.ffn_norm.weight": None}), "'blk.1.ffn_norm.weight' is missing"),
    "shape": (
        bad(shapes={"blk.1.ffn_down.weight": (64, 64)}),
        "'blk.1.ffn_down.weight' is 64 x 64 and the hyper-parameters say 64 x 96",
    ),
    "output": (bad(shapes={"output.weight": (301, 64)}), "301 x 64 .* 300 x 64"),
    "kv heads": (bad(metadata={"llama.attention.head_count_kv": 3}), "4 heads cannot share 3"),
    "odd rotation": (bad(metadata={"llama.rope.dimension_count": 15}), "15 rotated dimensions"),
    "wide rotation": (bad(metadata={"llama.rope.dimension_count": 32}), "32 rotated dimensions"),
    "a billion layers": (bad(metadata={"llama.block_count": 1 << 30}), "cannot be made of 21 t"),
}


@pytest.mark.parametrize("case", CONTRADICTORY)
def test_what_contradicts_itself(tmp_path: Path, case: str) -> None:
    options, message = CONTRADICTORY[case]
    if case == "no architecture":
        path = tmp_path / "m.gguf"
        path.write_bytes(gguf([key("general.architecture", 4, struct.pack("<I", 5))]))
    else:
        path = write_gguf(tmp_path / "m.gguf", **options)
    with pytest.raises(ModelFileError, match=message) as caught:
        open_model(path)
    assert not isinstance(caught.value, UnsupportedModelError)


def test_missing_empty_and_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="there is no such file"):
        open_model(tmp_path / "absent.gguf")
    with pytest.raises(ModelFileError, match="it is a directory"):
        open_model(tmp_path)
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(ModelFileError, match="0 bytes are too few"):
        open_model(tmp_path / "empty.gguf")


def test_rows_are_fresh_and_checked(tmp_path: Path) -> None:
    name = "blk.0.ffn_up.weight"
    row_bytes = TensorType.Q8_0.row_bytes(64)
    with open_model(write_gguf(tmp_path / "m.gguf", type="Q8_0")) as model:
        rows = model.rows(name, 3, 7)
        assert rows.shape == (4, row_bytes)
        assert rows.flags.writeable
        assert np.array_equal(rows, model.rows(name)[3:7])
        assert model.rows(name, 5, 5).shape == (0, row_bytes)
        assert model.rows("output_norm.weight").shape == (1, 256)
        with pytest.raises(IndexError, match=r"rows 90:97 of blk.0.ffn_up.weight, which has 96"):
            model.rows(name, 90, 97)
        with pytest.raises(ModelFileError, match="there is no such tensor"):
            model.rows("blk.9.ffn_up.weight")


def test_rows_without_positioned_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_model(write_gguf(tmp_path / "m.gguf", type="F16")) as model:
        expected = model.rows("output.weight", 100, 200)
        monkeypatch.delattr("os.preadv", raising=False)  # as on Windows
        assert np.array_equal(model.rows("output.weight", 100, 200), expected)


def test_a_file_that_shrinks_or_is_closed(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    model = open_model(path)
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 20_000)
    with pytest.raises(ModelFileError, match="it ended at byte"):
        for name in model.tensors:
            model.rows(name)
    with model:
        pass
    with pytest.raises(ModelFileError, match="it was closed"):
        model.rows("output_norm.weight")


def test_template_and_tokenizer_are_the_file_s_own(tmp_path: Path) -> None:
    with open_model(write_gguf(tmp_path / "m.gguf")) as plain:
        assert plain.chat_template is None
    path = write_gguf(tmp_path / "n.gguf", tokenizer="gpt2", template=CHATML)
    with open_model(path) as model:
        assert model.tokenizer is model.tokenizer
        template = model.chat_template
        assert template is model.chat_template
        assert template is not None
        assert (template.bos, template.eos) == ("<|endoftext|>", "<|im_end|>")
        text = template.render([{"role": "user", "content": "Hi"}])
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert model.tokenizer.decode(model.tokenizer.encode(text)) == text


def test_tokenizers_that_are_missing_or_unknown(tmp_path: Path) -> None:
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "none": ({"tokenizer.ggml.model": None}, r"its kind is 'none' \(none at all\)"),
        "t5": ({"tokenizer.ggml.model": "t5"}, r"its kind is 't5' \(.*unigram.*\); supported are"),
        "new": ({"tokenizer.ggml.model": "new"}, r"its kind is 'new' \(an algorithm not known"),
        "pre": ({"tokenizer.ggml.pre": "klingon"}, "'klingon'; known are gpt-2.*qwen2"),
        "no merges": ({"tokenizer.ggml.merges": None}, "no tokenizer.ggml.merges"),
        "bad merge": ({"tokenizer.ggml.merges": ["a b", "cd"]}, "merge 1 is b'cd'"),
        "no tokens": ({"tokenizer.ggml.tokens": None}, "no tokenizer.ggml.tokens"),
        "few kinds": ({"tokenizer.ggml.token_type": [1, 1]}, "300 tokens and 2 entries"),
        "odd kinds": ({"tokenizer.ggml.token_type": [0.5] * 300}, "an array of numbers"),
        "eos": ({"tokenizer.ggml.eos_token_id": 300}, "eos_token_id is 300 and"),
    }
    for index, (metadata, message) in enumerate(cases.values()):
        path = write_gguf(tmp_path / f"{index}.gguf", tokenizer="gpt2", metadata=metadata)
        with open_model(path) as model, pytest.raises(ModelFileError, match=message):
            _ = model.tokenizer


def test_importing_is_cheap() -> None:
    code = (
        "import numpy, sys, time; begin = time.perf_counter(); import edgespec.models;"
        "print(time.perf_counter() - begin);"
        "print([m for m in ('jinja2', 'tokenizers', 'numba') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        for _ in range(2)
    ]
    assert runs[0][1] == "[]"
    assert min(float(run[0]) for run in runs) < 0.2


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_reading_rows_leaves_no_file_pages_resident(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", dim=512, ffn=2048, layers=4)

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    with open_model(path) as model:
        before = resident_bytes()
        for info in model.tensors.values():
            model.rows(info.name)
        assert path.stat().st_size > 60e6
        assert resident_bytes() - before < 20e6
    assert b"m.gguf" not in Path("/proc/self/maps").read_bytes()
