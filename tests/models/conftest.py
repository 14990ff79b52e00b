from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgespec.backends.llamacpp.library import library

# Let `tests.support.gguf_models` and its neighbours be imported however pytest is started.
sys.path.insert(0, str(Path(__file__).parents[2]))

SHARED = Path(__file__).parents[3] / "shared" / "data" / "models"


@pytest.fixture(params=["stories260K.gguf", "seed-tiny-7m-f16.gguf"])
def shared_model(request: pytest.FixtureRequest) -> Path:
    """A real model file beside the checkout."""
    path = SHARED / str(request.param)
    if not path.exists():
        pytest.skip(f"{path.name} is not in {SHARED}")
    return path


class LlamaVocab:
    """llama.cpp's own tokenizer for a file, without the weights."""

    def __init__(self, path: Path) -> None:
        pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
        # Ours, because a second log callback would take the lines that tell memory from the first.
        self.llama = llama = library().api
        params = llama.llama_model_default_params()
        params.vocab_only = True
        self.model = llama.llama_model_load_from_file(str(path).encode(), params)
        assert self.model, f"llama.cpp cannot load {path}"
        self.vocab = llama.llama_model_get_vocab(self.model)

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        raw = text.encode()
        room = len(raw) + 8
        ids = (ctypes.c_int32 * room)()
        count = self.llama.llama_tokenize(
            self.vocab, raw, len(raw), ids, room, add_special, parse_special
        )
        assert count >= 0
        return list(ids[:count])

    def piece(self, token_id: int) -> bytes:
        buffer = ctypes.create_string_buffer(256)
        count = self.llama.llama_token_to_piece(self.vocab, token_id, buffer, 256, 0, False)
        assert count >= 0
        return buffer.raw[:count]

    def is_end(self, token_id: int) -> bool:
        return bool(self.llama.llama_vocab_is_eog(self.vocab, token_id))

    def __len__(self) -> int:
        return int(self.llama.llama_vocab_n_tokens(self.vocab))

    def close(self) -> None:
        self.llama.llama_model_free(self.model)


@pytest.fixture
def llama_vocab() -> Iterator[Callable[[Path], LlamaVocab]]:
    """Opens files in llama.cpp and closes them after the test."""
    opened: list[LlamaVocab] = []

    def open_vocab(path: Path) -> LlamaVocab:
        opened.append(LlamaVocab(path))
        return opened[-1]

    yield open_vocab
    for vocab in opened:
        vocab.close()


OpenVocab = Callable[[Path], LlamaVocab]
