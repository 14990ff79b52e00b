"""A tokenizer alone, of any model file: of an architecture that nothing here runs, or of a file
that holds no model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.models.gguf.keys import Keys
from edgespec.models.gguf.parts import open_gguf
from edgespec.models.spec import ModelSpec
from edgespec.system.records import dataclass

if TYPE_CHECKING:
    from edgespec.models.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class VocabularyFile:
    """What texts are divided by."""

    path: Path
    tokenizer: Tokenizer

    @property
    def spec(self) -> ModelSpec:
        """A model of this vocabulary, and no layers."""
        size = self.tokenizer.vocab_size
        return ModelSpec(
            architecture="", name=self.path.stem, dim=1, vocab_size=size, context_length=0,
            norm_epsilon=0.0, layers=(),
        )  # fmt: skip


@contextmanager
def open_vocabulary(path: str | os.PathLike[str]) -> Iterator[VocabularyFile]:
    """Open the tokenizer of a GGUF file or ONNX model; of a GGUF file nothing else is looked at.

    Raises ModelFileError for a missing or damaged file, or one without a tokenizer,
    UnsupportedModelError for a tokenizer of an unknown kind.
    """
    path = Path(path)
    if path.is_dir() or path.suffix == ".onnx":
        from edgespec.models.onnx.folder import open_onnx

        with open_onnx(path) as file:
            yield VocabularyFile(path, file.tokenizer)
        return
    from edgespec.models.tokenizers.build_tokenizer import build_tokenizer

    source, header = open_gguf(path)
    try:
        yield VocabularyFile(path, build_tokenizer(Keys(path, header.metadata)))
    finally:
        source.close()
