"""The vocabularies that llama.cpp tests itself on: its vectors, and its own ids beside ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.models.gguf.file_source import FileSource
from edgespec.models.gguf.header import read_header
from edgespec.models.gguf.keys import Keys
from edgespec.models.tokenizers.build_tokenizer import build_tokenizer
from edgespec.models.tokenizers.tokenizer import Tokenizer
from tests.models.conftest import LlamaVocab
from tests.support.llama_sources import llama_models
from tests.support.vocabularies import TRICKY, random_texts

WITH_VECTORS = (
    "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe",
    "llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder",
)  # fmt: skip
WITHOUT_VECTORS = ("aquila", "baichuan", "gpt-neox")
_BETWEEN = "\n__ggml_vocab_test__\n"


def _tokenizer(path: Path) -> Tokenizer:
    with FileSource(path) as source:
        return build_tokenizer(Keys(path, read_header(source).metadata))


def _texts(path: Path) -> list[str]:
    texts = path.with_suffix(".gguf.inp").read_bytes().decode().split(_BETWEEN)
    return texts if texts[-1] else texts[:-1]


@pytest.mark.parametrize("name", WITH_VECTORS)
def test_vectors(name: str) -> None:
    path = llama_models() / f"ggml-vocab-{name}.gguf"
    lines = path.with_suffix(".gguf.out").read_text().splitlines()
    expected = [[int(number) for number in line.split()] for line in lines]
    texts = _texts(path)
    assert len(texts) == len(expected) >= 46
    tokenizer = _tokenizer(path)
    for text, ids in zip(texts, expected, strict=True):
        assert tokenizer.encode(text, add_bos=False) == ids, repr(text)


@pytest.mark.parametrize("name", WITH_VECTORS + WITHOUT_VECTORS)
def test_ids_of_llama_cpp(name: str) -> None:
    path = llama_models() / f"ggml-vocab-{name}.gguf"
    tokenizer, reference = _tokenizer(path), LlamaVocab(path)
    texts = (*TRICKY, *random_texts(400, seed=12), *_texts(path.with_name("ggml-vocab-gpt-2.gguf")))
    hidden = {i for i in range(tokenizer.vocab_size) if not tokenizer.token_bytes(i)}
    spelt = {tokenizer.token_text(i) for i in hidden} - {""}
    try:
        for text in texts:
            if not any(special in text for special in spelt):
                assert tokenizer.encode(text) == reference.encode(text), repr(text)
        assert tokenizer.end_ids == {i for i in range(tokenizer.vocab_size) if reference.is_end(i)}
    finally:
        reference.close()
