"""An opened model file: what it says about itself, its tensors, its tokenizer, its template."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelFileError, TemplateError, UnsupportedModelError
from edgespec.models.gguf.dequantise import dequantise
from edgespec.models.gguf.file_source import FileSource
from edgespec.models.gguf.header import GgufHeader, MetadataValue
from edgespec.models.gguf.keys import Keys
from edgespec.models.gguf.parts import JoinedSource
from edgespec.models.layers import Moe
from edgespec.models.spec import ModelSpec, TensorInfo

if TYPE_CHECKING:
    from edgespec.models.reasoning import Reasoning
    from edgespec.models.template import ChatTemplate
    from edgespec.models.tokenizers.tokenizer import Tokenizer

_LAYER = re.compile(r"^blk\.\d+\.")


class ModelFile:
    """A validated model file; tensors are read on demand into memory of the caller's own."""

    format = "gguf"

    def __init__(
        self, source: FileSource | JoinedSource, header: GgufHeader, spec: ModelSpec
    ) -> None:
        self._source = source
        self._tokenizer: Tokenizer | None = None
        self._template: ChatTemplate | None = None
        self._reasoning: Reasoning | None = None
        self._knows_reasoning = False
        self.spec = spec
        self.metadata: Mapping[str, MetadataValue] = MappingProxyType(header.metadata)
        """Plain values; arrays of numbers are NumPy arrays, of strings a lazy sequence."""
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(header.tensors)

    @property
    def path(self) -> Path:
        return self._source.path

    @property
    def size_bytes(self) -> int:
        return self._source.size_bytes

    @property
    def changed_ns(self) -> tuple[int, ...]:
        """When each of its files was last changed, in nanoseconds of the system's clock."""
        return self._source.changed_ns

    @property
    def fingerprint(self) -> bytes:
        """16 bytes that tell models apart: a hash of the shape, the size and the last norm, which
        two trained models hardly share.
        """
        digest = hashlib.blake2b(repr((self.spec, self.size_bytes)).encode(), digest_size=16)
        if self.spec.last_norm in self.tensors:
            digest.update(self.rows(self.spec.last_norm).tobytes())
        return digest.digest()

    @property
    def shape_fingerprint(self) -> bytes:
        """16 bytes that models of one family and size share: a hash of the architecture, and of
        how many tensors there are of each part, shape and type.
        """
        roles = Counter(
            (_LAYER.sub("", info.name), info.shape, info.type.name)
            for info in self.tensors.values()
        )
        spec = self.spec
        active = sorted({each.ffn.active for each in spec.layers if isinstance(each.ffn, Moe)})
        heads = spec.num_heads, spec.num_kv_heads
        parts = spec.architecture, spec.num_layers, heads, active, sorted(roles.items())
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()

    def content_fingerprint(self) -> bytes:
        """16 bytes that also tell apart models which were trained on from the same one: a hash of
        the shape, the size and three rows of every tensor. Takes milliseconds.
        """
        digest = hashlib.blake2b(repr((self.spec, self.size_bytes)).encode(), digest_size=16)
        for name, info in self.tensors.items():
            num_rows = info.size_bytes // info.type.row_bytes(info.shape[-1])
            for row in sorted({0, num_rows // 2, num_rows - 1}):
                digest.update(self.rows(name, row, row + 1).tobytes())
        return digest.digest()

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.uint8]:
        """Raw rows `[stop - start, row_bytes]` u8 of a tensor, in fresh memory.

        A vector is one row. Read by offset, not through a map, so that no file page counts as
        resident. Raises ModelFileError when the file has shrunk, IndexError for rows out of range.
        """
        info = self._info(name)
        row_bytes = info.type.row_bytes(info.shape[-1])
        num_rows = info.size_bytes // row_bytes
        stop = num_rows if stop is None else stop
        if not 0 <= start <= stop <= num_rows:
            raise IndexError(f"rows {start}:{stop} of {name}, which has {num_rows}")
        data = self._source.read(info.offset + start * row_bytes, (stop - start) * row_bytes)
        return data.reshape(stop - start, row_bytes)

    def place(self, name: str) -> tuple[Path, int]:
        """The file that holds a tensor, and at which of its bytes that begins."""
        return self._source.place(self._info(name).offset)

    def matrix_f32(self, name: str) -> NDArray[np.float32]:
        """A whole tensor as float32 in its own shape; for oracles and small vectors."""
        info = self._info(name)
        return dequantise(self.rows(name), info.type).reshape(info.shape)

    @property
    def tokenizer(self) -> Tokenizer:
        """The file's own tokenizer, built at first use.

        Raises ModelFileError when it is missing or damaged, UnsupportedModelError when unknown.
        """
        if self._tokenizer is None:
            from edgespec.models.tokenizers.build_tokenizer import build_tokenizer

            self._tokenizer = build_tokenizer(Keys(self.path, self.metadata))
        return self._tokenizer

    @property
    def tokenizer_refusal(self) -> str:
        """Why our tokenizers do not read the file's kind, "" when they do."""
        from edgespec.models.tokenizers.build_tokenizer import check_kind

        try:
            check_kind(Keys(self.path, self.metadata))
        except UnsupportedModelError as error:
            return str(error)
        return ""

    def adopt_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Use another reader of the same vocabulary, where this one does not know its kind."""
        self._tokenizer = tokenizer

    def check_chat_template(self) -> None:
        """Raise TemplateError for a model that no conversation can be held with; reads nothing."""
        source = self.metadata.get("tokenizer.chat_template")
        if not isinstance(source, str) or not source:
            raise TemplateError(
                f"{self.path.name} has no chat template, so it cannot hold a conversation; "
                "use `edgespec run --raw` or engine.generate(..., raw=True) to continue a text"
            )

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The file's own chat template, None when it has none; raises TemplateError if broken."""
        source = self.metadata.get("tokenizer.chat_template")
        if self._template is None and isinstance(source, str) and source:
            from edgespec.models.template import ChatTemplate

            texts = self.tokenizer.token_text
            bos, eos = self.tokenizer.bos_id, self.tokenizer.eos_id
            self._template = ChatTemplate(
                source, "" if bos is None else texts(bos), "" if eos is None else texts(eos)
            )
        return self._template

    @property
    def reasoning(self) -> Reasoning | None:
        """How the model tells its thoughts from its answers, None when its chat template says
        nothing of it.
        """
        if not self._knows_reasoning:
            from edgespec.models.reasoning import Reasoning, style_of

            source = self.metadata.get("tokenizer.chat_template")
            style = style_of(source) if isinstance(source, str) else None
            self._reasoning = None if style is None else Reasoning(style, self.tokenizer)
            self._knows_reasoning = True
        return self._reasoning

    def close(self) -> None:
        """Close the file; tensors and lazy metadata can no longer be read, the rest stays."""
        self._source.close()

    def __enter__(self) -> ModelFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ModelFile({str(self.path)!r})"

    def _info(self, name: str) -> TensorInfo:
        try:
            return self.tensors[name]
        except KeyError:
            raise ModelFileError(
                f"cannot read tensor {name!r} of {self.path}: there is no such tensor; "
                "`edgespec show --tensors` lists them"
            ) from None
