"""Our ids against llama.cpp's, on real files and on vocabularies trained in the test."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edgespec.models.open_model import open_model
from edgespec.models.tokenizers.pretokenizers import PRE_TOKENIZERS
from tests.models.conftest import LlamaVocab, OpenVocab
from tests.support.gguf_models import write_gguf
from tests.support.vocabularies import (
    TRICKY,
    bpe_vocabulary,
    line_vocabulary,
    random_texts,
    spm_vocabulary,
)

TEXTS = (*TRICKY, *random_texts(400, seed=11))

VOCABULARIES: dict[str, Any] = {
    "spm": lambda: spm_vocabulary(),
    "spm without space prefix": lambda: spm_vocabulary(space_prefix=False),
    "spm with phrases": lambda: spm_vocabulary(phrases=True),
    "lines": lambda: line_vocabulary("gemma4"),
    "lines with glued words": lambda: line_vocabulary("gemma4", glued=True),
    **{
        pre: partial(line_vocabulary if known.whole_lines else bpe_vocabulary, pre)
        for pre, known in PRE_TOKENIZERS.items()
        if pre != "gemma4"
    },
}


def check(path: Path, reference: LlamaVocab) -> None:
    with open_model(path) as model:
        tokenizer = model.tokenizer
    for text in TEXTS:
        assert tokenizer.encode(text) == reference.encode(text), repr(text)
        assert tokenizer.encode(text, add_bos=False, parse_special=True) == reference.encode(
            text, add_special=False, parse_special=True
        ), repr(text)
    assert tokenizer.vocab_size == len(reference)
    every = range(tokenizer.vocab_size)
    assert [tokenizer.token_bytes(i) for i in every] == [reference.piece(i) for i in every]
    assert tokenizer.end_ids == {i for i in every if reference.is_end(i)}


def test_real_files(shared_model: Path, llama_vocab: OpenVocab) -> None:
    check(shared_model, llama_vocab(shared_model))


@pytest.mark.parametrize("case", VOCABULARIES)
def test_trained_vocabularies(tmp_path: Path, llama_vocab: OpenVocab, case: str) -> None:
    vocabulary = VOCABULARIES[case]()
    path = write_gguf(
        tmp_path / "m.gguf",
        vocab=len(vocabulary["tokenizer.ggml.tokens"]),
        layers=1,
        tokenizer=vocabulary["tokenizer.ggml.model"],
        metadata=vocabulary,
    )
    check(path, llama_vocab(path))
