"""Logs of any model's replies, one to a line: {"prompt": ..., "output": ...}.

Both are text, or lists of token ids of the vocabulary they are replayed with. Lines that EdgeSpec
recorded (`recording.py`) also have "top", for each token of the output the likeliest ones there as
pairs of id and log-probability, and "sampling", how it was drawn. Other keys are left alone.

A file is hostile until read: every fault ends in one sentence that names its line.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np

from edgespec.drafting.tree import TopTokens
from edgespec.errors import OptionError, TranscriptError
from edgespec.system.records import dataclass
from edgespec.verification.sampling import SamplingParams

if TYPE_CHECKING:
    from edgespec.models.tokenizers.tokenizer import Tokenizer

_LONGEST_LINE_BYTES = 64 * 2**20
_KEYS = ("prompt", "output")
_GZIP = b"\x1f\x8b"
_MOST_TOP, _LARGEST_LOGIT = 1000, 1e6
LIKELIEST = SamplingParams(temperature=0.0, seed=0)
"""A log that does not say how its tokens were drawn is read as if they were the likeliest."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """Token ids of a prompt, at least one, and of the reply that a model gave to it."""

    prompt_ids: list[int]
    output_ids: list[int]
    top: TopTokens | None = None
    """The likeliest tokens where each of the output was drawn, best first: [output, k]."""
    sampling: SamplingParams = LIKELIEST


def read_transcripts(
    path: str | os.PathLike[str],
    tokenizer: Tokenizer,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Transcript]:
    """Yield the replies of a file, one line in memory at a time; blank lines are skipped.

    `progress` is told bytes read and bytes in all. Raises TranscriptError for a file that cannot be
    read or a line that is no transcript.
    """
    place = Path(path)
    try:
        with place.open("rb") as raw, _plain(raw) as file:
            size = os.fstat(raw.fileno()).st_size
            number = 0
            while line := file.readline(_LONGEST_LINE_BYTES + 1):
                number += 1
                done = raw.tell()
                where = f"{place}, line {number}"
                if len(line) > _LONGEST_LINE_BYTES:
                    raise TranscriptError(
                        f"{where} is longer than {_LONGEST_LINE_BYTES // 2**20} MiB; "
                        "every reply goes on a line of its own"
                    )
                if line.strip():
                    yield _transcript(line, number, where, tokenizer)
                if progress is not None:
                    progress(done, max(size, done))
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(place, error) from None


def _unreadable(path: str | os.PathLike[str], error: Exception) -> TranscriptError:
    why = getattr(error, "strerror", None) or "it is damaged"
    return TranscriptError(
        f'cannot read {Path(path)} ({why}); name a file of lines {{"prompt": ..., "output": ...}}'
    )


def _plain(file: BufferedReader) -> IO[bytes]:
    """The lines of a file, which may be compressed by gzip."""
    if file.peek(2)[:2] != _GZIP:
        return file
    return cast("IO[bytes]", gzip.open(file))


def _transcript(line: bytes, number: int, where: str, tokenizer: Tokenizer) -> Transcript:
    try:
        values = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError:
        raise TranscriptError(f"{where} is not UTF-8 text; convert the file to UTF-8") from None
    except (ValueError, RecursionError):
        raise TranscriptError(
            f'{where} is not JSON; each line is an object like {{"prompt": "...", "output": "..."}}'
        ) from None
    if not isinstance(values, dict) or any(key not in values for key in _KEYS):
        raise TranscriptError(
            f'{where} lacks "prompt" or "output"; each line is an object that has both'
        )
    prompt, output = (_ids(values[key], key, where, tokenizer) for key in _KEYS)
    top = _top(values.get("top"), len(output), where, tokenizer.vocab_size)
    sampling = _sampling(values.get("sampling"), where)
    if not prompt:  # a text has a first token, which nobody drafts
        prompt, output = output[:1], output[1:]
        top = None if top is None else TopTokens(top.tokens[1:], top.logits[1:])
    return Transcript(prompt, output, top, sampling)


def holds_logits(path: str | os.PathLike[str]) -> bool:
    """Whether the first line of a file says which tokens were likeliest; what else is wrong with it
    `read_transcripts` tells. Raises TranscriptError for a file that cannot be read.
    """
    try:
        with Path(path).open("rb") as raw, _plain(raw) as file:
            values = json.loads(file.readline(_LONGEST_LINE_BYTES).decode("utf-8-sig"))
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from None
    except (ValueError, RecursionError):
        return False
    return isinstance(values, dict) and values.get("top") is not None


def _top(value: Any, num_tokens: int, where: str, vocab_size: int) -> TopTokens | None:
    """Rows of one length of pairs of token and log-probability, a row for each token."""
    if value is None:
        return None
    fault = TranscriptError(
        f'{where}: "top" is not a list of [token, log-probability] pairs for each of the '
        f"{num_tokens} tokens of the output; record it again with --record"
    )
    try:
        table = np.array(value, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise fault from None
    if table.shape != (num_tokens, *table.shape[1:2], 2) or not 1 <= table.shape[1] <= _MOST_TOP:
        raise fault
    ids, logits = table[:, :, 0], table[:, :, 1]
    if not ((ids >= 0) & (ids < vocab_size) & (ids == np.floor(ids))).all():
        raise fault
    if not (np.abs(logits) <= _LARGEST_LOGIT).all():
        raise fault
    return TopTokens(np.ascontiguousarray(ids, np.int32), np.ascontiguousarray(logits, np.float32))


def _sampling(value: Any, where: str) -> SamplingParams:
    """How tokens were drawn."""
    if value is None:
        return LIKELIEST
    try:
        return SamplingParams(**value)
    except (TypeError, OptionError) as error:
        raise TranscriptError(f'{where}: "sampling" says nothing that can be: {error}') from None


def _ids(value: Any, key: str, where: str, tokenizer: Tokenizer) -> list[int]:
    if isinstance(value, str):
        return tokenizer.encode(value, add_bos=None if key == "prompt" else False)
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise TranscriptError(
            f'{where}: "{key}" is neither text nor a list of token ids; write it as one of them'
        )
    size = tokenizer.vocab_size
    wrong = next((token for token in value if not 0 <= token < size), None)
    if wrong is not None:
        raise TranscriptError(
            f'{where}: "{key}" holds token {wrong}, and the vocabulary has 0 to {size - 1}; '
            "name the model that wrote the log with --vocab"
        )
    return value
