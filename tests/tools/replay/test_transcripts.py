"""Reading logs: what is a reply, and one sentence for whatever is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgespec.errors import TranscriptError
from edgespec.models.file import ModelFile
from edgespec.models.open_model import open_model
from edgespec.tools.replay import transcripts
from edgespec.tools.replay.transcripts import Transcript, read_transcripts

EVERY = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def model(bundled_model: Path) -> Iterator[ModelFile]:
    with open_model(bundled_model) as opened:
        yield opened


def read(path: Path, model: ModelFile, content: bytes) -> list[Transcript]:
    file = path / "log.jsonl"
    file.write_bytes(content)
    return list(read_transcripts(file, model.tokenizer))


@EVERY
@given(
    pairs=st.lists(
        st.tuples(*2 * [st.text(max_size=30) | st.lists(st.integers(0, 6000), max_size=8)]),
        max_size=5,
    ),
    blank=st.sampled_from([b"", b"\n", b"  \r\n\n"]),
)
def test_what_is_written_is_read(
    tmp_path: Path, model: ModelFile, pairs: list[tuple[Any, Any]], blank: bytes
) -> None:
    lines = [
        json.dumps({"id": 7, "prompt": prompt, "output": output}).encode() + b"\n" + blank
        for prompt, output in pairs
    ]
    found = read(tmp_path, model, b"".join(lines))
    assert len(found) == len(pairs)
    for transcript, (prompt, output) in zip(found, pairs, strict=True):
        encode = model.tokenizer.encode
        before = encode(prompt) if isinstance(prompt, str) else prompt
        after = encode(output, add_bos=False) if isinstance(output, str) else output
        assert transcript.prompt_ids + transcript.output_ids == before + after
        assert len(transcript.prompt_ids) == (len(before) or min(1, len(after)))


@EVERY
@given(content=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_in_one_sentence(
    tmp_path: Path, model: ModelFile, content: bytes
) -> None:
    try:
        read(tmp_path, model, content)
    except TranscriptError as error:
        where = "log.jsonl" if content.startswith(b"\x1f\x8b") else "log.jsonl, line "
        assert where in str(error) and "\n" not in str(error)


@EVERY
@given(
    value=st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["prompt", "output", "x"]), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_any_json_is_read_or_refused(tmp_path: Path, model: ModelFile, value: Any) -> None:
    try:
        found = read(tmp_path, model, json.dumps(value).encode())
    except TranscriptError as error:
        assert "line 1" in str(error)
    else:
        assert isinstance(value, dict) and len(found) == 1


GOOD = b'{"prompt": "a", "output": "b"}\n'


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'["a", "b"]', "lacks"),
        (b'{"prompt": "a"}', 'lacks "prompt" or "output"'),
        (b'{"prompt": 3, "output": "b"}', '"prompt" is neither text nor'),
        (b'{"prompt": "a", "output": [1, true]}', '"output" is neither text nor'),
        (b'{"prompt": "a", "output": [1, 6144]}', "token 6144, and the vocabulary has 0 to 6143"),
        (b'{"prompt": "a", "output": [-1]}', "token -1"),
        (b'{"prompt": "\xff", "output": "b"}', "not UTF-8"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_bad_line_is_named(tmp_path: Path, model: ModelFile, line: bytes, words: str) -> None:
    with pytest.raises(TranscriptError, match="log.jsonl, line 3") as caught:
        read(tmp_path, model, GOOD + b"\n" + line + b"\n" + GOOD)
    assert words in str(caught.value)


def test_a_line_without_end_is_not_read_whole(
    tmp_path: Path, model: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcripts, "_LONGEST_LINE_BYTES", 2**20)
    with pytest.raises(TranscriptError, match="line 2 is longer than 1 MiB"):
        read(tmp_path, model, GOOD + b" " * 2**20 + b'{"prompt"')


def test_a_byte_order_mark_is_no_fault(tmp_path: Path, model: ModelFile) -> None:
    assert len(read(tmp_path, model, b"\xef\xbb\xbf" + GOOD)) == 1


@pytest.mark.parametrize("name", ["none.jsonl", "."])
def test_a_file_that_cannot_be_read(tmp_path: Path, model: ModelFile, name: str) -> None:
    with pytest.raises(TranscriptError, match="cannot read"):
        list(read_transcripts(tmp_path / name, model.tokenizer))


def test_progress_ends_at_the_files_size(tmp_path: Path, model: ModelFile) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(GOOD * 3)
    told: list[tuple[int, int]] = []
    list(read_transcripts(file, model.tokenizer, lambda done, whole: told.append((done, whole))))
    assert told == [(len(GOOD) * n, len(GOOD) * 3) for n in (1, 2, 3)]
