"""Values from outside that mean nothing: refused with a sentence, before anything is computed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.backends.llamacpp.remote.offload import layer_cache_bytes
from edgespec.engine.engine import Engine
from edgespec.errors import EdgeSpecError, ModelFileError, OptionError
from edgespec.terminal.prompt_file import read_lines

WRONG_IDS: dict[str, Any] = {
    "past the vocabulary": [1, 300],
    "2^40": [1 << 40],
    "text": ["a"],
    "a fraction": [1.5],
    "negative": [-1],
    "a truth": [True],
    "nothing": [None],
    "a long number": [10**4000],
}


@pytest.mark.parametrize("case", WRONG_IDS)
def test_token_ids_that_no_model_has(case: str, engine: Engine) -> None:
    with pytest.raises(OptionError, match="token"):
        engine.generate(WRONG_IDS[case], max_tokens=1)
    with pytest.raises(OptionError, match="token"):
        engine.generate_batch([WRONG_IDS[case]], max_tokens=1)


def test_numpys_numbers_are_token_ids(engine: Engine) -> None:
    ids = np.array([1, 5, 9], np.int32)
    plain = engine.generate([1, 5, 9], max_tokens=3, seed=1, ignore_eos=True)
    assert engine.generate(ids, max_tokens=3, seed=1, ignore_eos=True).token_ids == plain.token_ids


LINES: dict[str, bytes] = {
    "half a character in the id": b'{"prompt": "x", "id": "\\ud800"}',
    "half a character in the prompt": b'{"prompt": "\\udfff"}',
    "deep nesting": b'{"prompt": "x", "id": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "nesting without end": b"[" * 200_000,
    "a long number": b'{"prompt": "x", "id": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("case", LINES)
def test_a_line_that_cannot_be_answered_is_refused_before_work(case: str, tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"prompt": "fine"}\n' + LINES[case] + b"\n")
    with pytest.raises(OptionError, match="line 2") as caught:
        read_lines(str(path))
    assert len(str(caught.value)) < 1700


def test_a_message_does_not_grow_with_a_damaged_name() -> None:
    said = str(ModelFileError("cannot open m.gguf: " + "\x00" * 65536 + " download it again"))
    assert len(said) < 1700
    assert said.startswith("cannot open m.gguf") and said.endswith("download it again")
    assert str(EdgeSpecError("short")) == "short"


def test_a_cache_without_layers_is_none() -> None:
    """Of a model whose layers all have a window, llama.cpp tells one cache with no layers."""
    line = "llama_kv_cache: size = {} MiB (   512 cells, {} layers,  1/1 seqs), K (f16): 1.00 MiB"
    assert layer_cache_bytes([line.format("0.00", "  0")]) == 0
    found = layer_cache_bytes([line.format("0.00", "  0"), line.format("4.00", "  2")])
    assert found == 2 * 1024**2


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
@pytest.mark.parametrize("after_ms", [60, 90, 130, 180, 250])
def test_an_interrupt_at_the_start_is_no_traceback(after_ms: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "from edgespec.__main__ import main; print(flush=True); main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ,
    )
    assert process.stdout is not None
    process.stdout.readline()  # from here on it is EdgeSpec's
    time.sleep(after_ms / 1000 - 0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert b"Traceback" not in said
    assert process.returncode in (130, 0, 2, -2)
