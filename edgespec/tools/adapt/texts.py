"""Texts to fit an adapter to: a plain text, or a JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from edgespec.engine import prompts
from edgespec.errors import AdaptError
from edgespec.models.file import ModelFile

_JSON_LINES = (".jsonl", ".ndjson")
_LONGEST_LINE_BYTES = 16 * 2**20
_PART_BYTES = 1 << 16
"""Of a plain text that are tokenised at a time."""
_SHAPE = '{"text": "..."} or {"prompt": "...", "response": "..."}'


def windows(path: Path, file: ModelFile, length: int) -> Iterator[NDArray[np.int32]]:
    """Token ids of the file's texts in pieces of at most `length`, one part of the file in memory
    at a time; pieces of fewer than two tokens are left out.

    Raises AdaptError for a file that cannot be read and for a line that is no text.
    """
    try:
        with path.open("rb") as source:
            is_lines = path.suffix.lower() in _JSON_LINES
            for number, raw in enumerate(_lines(source, path) if is_lines else _parts(source), 1):
                where = f"{path}, line {number}" if is_lines else str(path)
                text = _decode(raw, where)
                ids = _object_ids(text, where, file) if is_lines else file.tokenizer.encode(text)
                for first in range(0, len(ids), length):
                    if len(ids) - first > 1:
                        yield np.array(ids[first : first + length], np.int32)
    except OSError as error:
        raise AdaptError(
            f"cannot read {path}: {error.strerror or error}; name a plain text, or a .jsonl file "
            f"of lines {_SHAPE}"
        ) from None


def _lines(source: IO[bytes], path: Path) -> Iterator[bytes]:
    for line in iter(lambda: source.readline(_LONGEST_LINE_BYTES + 1), b""):
        if len(line) > _LONGEST_LINE_BYTES:
            raise AdaptError(
                f"{path} has a line longer than {_LONGEST_LINE_BYTES // 2**20} MiB; every text "
                "goes on a line of its own"
            )
        yield line


def _parts(source: IO[bytes]) -> Iterator[bytes]:
    """Whole lines, some 64 KiB of them at a time; a longer one is cut at a space."""
    rest = b""
    while part := source.read(_PART_BYTES):
        rest += part
        end = max(rest.rfind(b"\n"), rest.rfind(b" ") if len(rest) > 4 * _PART_BYTES else -1) + 1
        if end:
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest


def _decode(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise AdaptError(f"{where} is not UTF-8 text; convert the file to UTF-8") from None


def _object_ids(line: str, where: str, file: ModelFile) -> list[int]:
    """A text as it is; a prompt in the model's chat template, and the response after it."""
    if not line.strip():
        return []
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        raise AdaptError(f"{where} is not JSON; each line is an object like {_SHAPE}") from None
    parts = values if isinstance(values, dict) else {}
    if isinstance(parts.get("text"), str):
        return file.tokenizer.encode(parts["text"])
    prompt, response = parts.get("prompt"), parts.get("response")
    if not isinstance(prompt, str) or not isinstance(response, str):
        raise AdaptError(f"{where} has no text; each line is an object like {_SHAPE}")
    ids = prompts.encode(file, prompt, raw=False, prefix=None)
    return ids + file.tokenizer.encode(response, add_bos=False)
