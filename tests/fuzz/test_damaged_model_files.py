"""Damaged files end in ModelFileError: no crash, no hang, no absurd allocation."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgespec.errors import ModelFileError, TemplateError
from edgespec.models.open_model import open_model
from tests.support.gguf_models import CHATML, write_gguf
from tests.support.vocabularies import line_vocabulary

LINES = line_vocabulary("gemma4", 600)
MAX_PEAK_BYTES = 16 << 20
MODELS: dict[str, dict[str, Any]] = {
    "spm": {"type": "Q8_0", "layers": 1},
    "bpe": {"arch": "qwen2", "tokenizer": "gpt2", "pre": "qwen2", "layers": 1},
    "lines": {
        "tokenizer": "gpt2", "layers": 1, "metadata": LINES,
        "vocab": len(LINES["tokenizer.ggml.tokens"]),
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=MODELS)
def sound(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[Path, bytes, int]:
    """(a path to write to, a sound file's bytes, where its tensor data starts)."""
    path = tmp_path_factory.mktemp("fuzz") / "m.gguf"
    write_gguf(path, template=CHATML, **MODELS[request.param])
    with open_model(path) as model:
        data_offset = min(info.offset for info in model.tensors.values())
    use_everything(path)
    return path, path.read_bytes(), data_offset


def use_everything(path: Path) -> None:
    """All that a file's content reaches: header, tensors, tokenizer, template."""
    with open_model(path) as model:
        for name in model.tensors:
            model.rows(name)
        try:
            tokenizer = model.tokenizer
            ids = tokenizer.encode("The cat sat.\n<s> 123", parse_special=True)
            tokenizer.decode(ids)
            if model.chat_template:
                model.chat_template.render([{"role": "user", "content": "Hi"}])
        except TemplateError:
            pass


def survive(path: Path, data: bytes) -> bool:
    """Whether the file was still readable; anything but ModelFileError fails the test."""
    path.write_bytes(data)
    tracemalloc.start()
    try:
        use_everything(path)
    except ModelFileError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 1000
        return False
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < MAX_PEAK_BYTES
    return True


@pytest.mark.parametrize("seed", range(20))
def test_truncated_anywhere(sound: tuple[Path, bytes, int], seed: int) -> None:
    path, data, data_offset = sound
    rng = np.random.default_rng(seed)
    assert not survive(path, data[: int(rng.integers(0, len(data)))])
    assert not survive(path, data[: int(rng.integers(0, data_offset))])


@settings(max_examples=150, deadline=None, suppress_health_check=[*HealthCheck])
@given(
    flips=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=6
    )
)
def test_flipped_bytes(sound: tuple[Path, bytes, int], flips: list[tuple[float, int]]) -> None:
    path, data, data_offset = sound
    damaged = bytearray(data)
    for place, mask in flips:
        damaged[int(place * data_offset)] ^= mask
    survive(path, bytes(damaged))


@settings(max_examples=100, deadline=None, suppress_health_check=[*HealthCheck])
@given(
    place=st.floats(0, 1, exclude_max=True),
    word=st.sampled_from([0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1]),
    size=st.sampled_from([4, 8]),
)
def test_absurd_numbers(sound: tuple[Path, bytes, int], place: float, word: int, size: int) -> None:
    path, data, data_offset = sound
    at = int(place * data_offset)
    raw = (word & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    survive(path, data[:at] + raw + data[at + size :])


@settings(max_examples=60, deadline=None, suppress_health_check=[*HealthCheck])
@given(tail=st.binary(max_size=200))
def test_noise_behind_a_good_start(sound: tuple[Path, bytes, int], tail: bytes) -> None:
    path, data, _ = sound
    assert not survive(path, data[:24] + tail)
