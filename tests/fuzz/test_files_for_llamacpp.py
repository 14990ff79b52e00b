"""Damaged files that reach llama.cpp end in our errors, or run: this process never ends with them.

llama.cpp aborts on some of them, so it is asked in a process of its own first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgespec
from edgespec.errors import EdgeSpecError
from edgespec.models.open_model import open_model
from tests.support.external_models import write_gemma
from tests.support.targets import missing

WHY = missing("llamacpp")
pytestmark = pytest.mark.skipif(bool(WHY), reason=WHY)
NUMBERS: dict[str, Any] = {
    "gemma.attention.head_count": 3,
    "gemma.attention.head_count_kv": 5,
    "gemma.attention.key_length": 7,
    "gemma.attention.value_length": 1 << 20,
    "gemma.attention.layer_norm_rms_epsilon": float("nan"),
    "gemma.block_count": 9,
    "gemma.context_length": 1,
    "gemma.embedding_length": 48,
    "gemma.feed_forward_length": 1 << 30,
    "gemma.rope.dimension_count": 1 << 16,
    "gemma.rope.freq_base": 0.0,
    "tokenizer.ggml.bos_token_id": 1 << 30,
    "tokenizer.ggml.eos_token_id": 299,
}


def use(path: Path) -> str:
    """Plan, load, write a token; the sentence it ended with, "" when all of it worked."""
    try:
        with edgespec.load(path, backend="llamacpp", threads=1, context=64) as engine:
            engine.generate([1, 2, 3], max_tokens=1, temperature=0)
    except EdgeSpecError as error:
        assert "\n" not in str(error)
        return str(error)
    return ""


@pytest.mark.parametrize("key", NUMBERS)
def test_numbers_that_cannot_be(key: str, tmp_path: Path) -> None:
    path = write_gemma(tmp_path / "m.gguf", metadata={key: NUMBERS[key]})
    use(path)


@pytest.mark.parametrize("seed", range(8))
def test_bytes_that_were_changed(seed: int, tmp_path: Path) -> None:
    """In the header, where our own reader did not mind."""
    path, rng = write_gemma(tmp_path / "m.gguf"), np.random.default_rng(seed)
    sound = path.read_bytes()
    with open_model(path, any_engine=True) as file:
        end = min(info.offset for info in file.tensors.values())
    for _ in range(200):
        damaged = bytearray(sound)
        for place in rng.integers(24, end, 3):
            damaged[place] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        try:
            open_model(path, any_engine=True).close()
        except EdgeSpecError:
            continue
        use(path)
        return
    raise AssertionError("our reader refused all of them: damage the file less")


def test_a_file_that_is_cut_after_its_header(tmp_path: Path) -> None:
    path = write_gemma(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:-64])
    assert "m.gguf" in use(path)
