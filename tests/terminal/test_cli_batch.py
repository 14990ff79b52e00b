"""`edgespec batch` as a user meets it: lines in, lines out, on from where it was interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import Finished, edgespec
from tests.support.gguf_models import CHATML, write_gguf

PROMPTS: list[dict[str, Any]] = [
    {"prompt": "hello", "max_tokens": 30, "seed": 1},
    {"prompt": "the cat and the hat", "id": "cat", "seed": 2},
    {"prompt": "a", "max_tokens": 1, "seed": 3, "temperature": 0, "ignore_eos": True},
    {"prompt": "one two one two", "id": 7, "seed": 4, "raw": True, "top_k": 5},
    {"prompt": "über", "seed": 5},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("cli") / "tiny.gguf", template=CHATML)


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def batch(model: Path, *arguments: object, stdin: bytes | None = None) -> Finished:
    options = ("-m", model, "--threads", 1, "--max-tokens", 9, "--max-batch", 3)
    return edgespec("batch", *arguments, *options, stdin=stdin)


@pytest.fixture(scope="module")
def replies(model: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What all prompts get."""
    found = batch(model, write(tmp_path_factory.mktemp("batch") / "prompts.jsonl", PROMPTS))
    assert (found.code, found.err) == (0, "")
    return found.out


def test_lines_come_back_in_their_order(replies: str, model: Path) -> None:
    lines = [json.loads(line) for line in replies.splitlines()]
    assert [line["line"] for line in lines] == [1, 2, 3, 4, 5]
    assert [line.get("id") for line in lines] == [None, "cat", None, 7, None]
    assert [line["seed"] for line in lines] == [1, 2, 3, 4, 5]
    assert lines[2]["output_tokens"] == 1
    assert all(line["output_tokens"] <= 9 for line in lines[1:])
    alone = edgespec(
        "run", "-m", model, "--threads", 1, "--max-tokens", 9, "--seed", 2, "--json",
        PROMPTS[1]["prompt"],
    )  # fmt: skip
    assert json.loads(alone.out)["text"] == lines[1]["text"]


def test_standard_input_is_read_too(replies: str, model: Path) -> None:
    text = "".join(json.dumps(line) + "\n" for line in PROMPTS).encode()
    assert batch(model, "-", stdin=text).out == replies


@pytest.mark.parametrize("kept", [0, 2, 5])
@pytest.mark.parametrize("torn", ["", '{"line": 3, "te'])
def test_it_goes_on_where_it_ended(
    replies: str, model: Path, tmp_path: Path, kept: int, torn: str
) -> None:
    """Lines that are there are not written again, half a line is."""
    out = tmp_path / "out.jsonl"
    before = "".join(replies.splitlines(keepends=True)[:kept])
    out.write_text(before + torn, encoding="utf-8", newline="")
    found = batch(model, write(tmp_path / "prompts.jsonl", PROMPTS), "--out", out)
    assert (found.code, found.out, found.err) == (0, "", "")
    assert out.read_text(encoding="utf-8") == replies


def test_a_prompt_that_does_not_fit_costs_no_other(model: Path, tmp_path: Path) -> None:
    lines = [PROMPTS[0], {"prompt": "word " * 2000, "id": "long"}, PROMPTS[1]]
    found = batch(model, write(tmp_path / "prompts.jsonl", lines))
    assert found.code == 1
    first, second, third = (json.loads(line) for line in found.out.splitlines())
    assert "tokens and the context holds" in second["error"]
    assert (second["line"], second["id"]) == (2, "long")
    assert "text" in first
    assert "text" in third
    assert found.err == "edgespec: 1 of 3 prompts were not answered\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("not json", ("line 2", "JSON")),
        ("[1]", ("line 2", "prompt")),
        ('{"prompt": 5}', ("line 2", "prompt")),
        ('{"prompt": "a", "tokens": 5}', ("line 2", "tokens", "max_tokens")),
        ('{"prompt": "a", "max_tokens": 0}', ("line 2", "max_tokens is 0")),
        ('{"prompt": "a", "top_k": "many"}', ("line 2", "top_k")),
        ('{"prompt": "a", "schema": "/etc/passwd"}', ("line 2", "an object")),
        ("", ("line 2", "JSON")),
    ],
)
def test_a_bad_line_is_named(
    line: str, words: tuple[str, ...], model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "a"}}\n{line}\n{{"prompt": "b"}}\n', encoding="utf-8")
    batch(model, path).assert_refused(2, *words)


def test_files_that_are_not_there_or_not_ours(model: Path, tmp_path: Path) -> None:
    prompts = write(tmp_path / "prompts.jsonl", PROMPTS)
    batch(model, tmp_path / "none.jsonl").assert_refused(1, "none.jsonl")
    batch(model, prompts, "--out", tmp_path).assert_refused(2, "cannot write")
    precious = write(tmp_path / "precious.jsonl", [{"line": 2, "id": "cat"}])
    before = precious.read_bytes()
    batch(model, prompts, "--out", precious).assert_refused(2, "precious.jsonl", "--out")
    assert precious.read_bytes() == before
    longer = write(tmp_path / "longer.jsonl", [{"line": number} for number in range(1, 3)])
    batch(model, write(prompts, [{"prompt": "a"}]), "--out", longer).assert_refused(2, "line 2")


def test_an_empty_file_gets_nothing(model: Path, tmp_path: Path) -> None:
    found = batch(model, write(tmp_path / "prompts.jsonl", []))
    assert (found.code, found.out, found.err) == (0, "", "")


def test_the_plan_of_a_batch_can_be_asked_for(model: Path) -> None:
    found = edgespec("plan", "-m", model, "--max-batch", 4, "--json")
    assert found.code == 0, found.err
    made = json.loads(found.out)
    assert made["sequences"] == 4
    edgespec("plan", "-m", model, "--max-batch", 0).assert_refused(2, "0 replies at once")
