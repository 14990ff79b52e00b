"""Commands about texts, and what all commands share: panels, config.toml, pipes, the manual."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from gguf import GGUFWriter

from edgespec.cli import app
from edgespec.terminal.man_page import ENVIRONMENT, all_commands, man_page
from tests.support.command_line import ROOT, edgespec, environment
from tests.support.gguf_models import CHATML, add_field, llama_vocabulary, write_gguf

SHORT = ("--threads", 1, "--seed", 1, "--max-tokens", 6)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("texts") / "tiny.gguf", template=CHATML)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of an architecture that nobody runs, with a tokenizer and no tensors."""
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.gguf"
    writer = GGUFWriter(path, "unheard-of")
    for key, value in llama_vocabulary(300).items():
        add_field(writer, key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_tokens_of_a_text(model: Path, vocabulary: Path) -> None:
    found = edgespec("tokenize", "-m", vocabulary, "hello there", "--json")
    assert found.code == 0, found.err
    made = json.loads(found.out)
    assert made["count"] == len(made["ids"]) == len(made["tokens"]) > 2
    assert made["tokens"][0] == "<s>"
    assert edgespec("tokenize", "-m", model, "hello there", "--count").out == f"{made['count']}\n"
    lines = edgespec("tokenize", "-m", model, stdin=b"hello there\n").out.splitlines()
    assert [int(line.split()[0]) for line in lines] == made["ids"]
    edgespec("tokenize", "-m", model).assert_refused(2, "no text", "edgespec tokenize")


def test_vectors_of_texts(model: Path) -> None:
    found = edgespec("embed", "-m", model, "--lines", "--threads", 1, stdin=b"one\n\ntwo words\n")
    assert found.code == 0, found.err
    vectors = [json.loads(line) for line in found.out.splitlines()]
    assert len(vectors) == 2
    assert [math.hypot(*vector) for vector in vectors] == pytest.approx([1.0, 1.0], abs=1e-5)
    (alone,) = json.loads(edgespec("embed", "-m", model, "--json", "one").out)
    assert alone["text"] == "one"
    assert alone["embedding"] == pytest.approx(vectors[0], abs=1e-6)
    edgespec("embed", "-m", model, "--pooling", "sum", "x").assert_refused(2, "mean or last")


def test_how_likely_a_text_is(model: Path) -> None:
    found = edgespec("score", "-m", model, "hello there", "--json")
    assert found.code == 0, found.err
    made = json.loads(found.out)
    logprobs = [one["logprob"] for one in made["tokens"]]
    assert made["logprob"] == pytest.approx(sum(logprobs))
    assert made["perplexity"] == pytest.approx(math.exp(-sum(logprobs) / len(logprobs)))
    listed = edgespec("score", "-m", model, "hello there", "--tokens").out.splitlines()
    assert len(listed) == len(logprobs) + 1
    assert "perplexity" in listed[-1]


def test_pieces_come_as_lines_of_json(model: Path) -> None:
    found = edgespec("run", "-m", model, *SHORT, "--json-stream", "hello")
    assert found.code == 0, found.err
    *pieces, whole = map(json.loads, found.out.splitlines())
    assert "".join(piece.get("text", "") for piece in pieces) == whole["text"]
    assert whole == json.loads(found.out.splitlines()[-1])
    alone = json.loads(edgespec("run", "-m", model, *SHORT, "--json", "hello").out)
    assert (whole["token_ids"], set(whole)) == (alone["token_ids"], set(alone))


def test_a_model_without_a_template_refuses_at_once(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "plain.gguf")
    for arguments in (("chat", "-m", path), ("run", "-m", path, "--system", "x", "y")):
        edgespec(*arguments).assert_refused(1, "no chat template", "run --raw")


def test_a_chat_does_not_offer_what_it_refuses() -> None:
    assert "--raw" not in edgespec("chat", "--help").out
    edgespec("chat", "--raw").assert_refused(2, "edgespec run --raw")


def test_broken_files_are_not_suggested(tmp_path: Path) -> None:
    (tmp_path / "nofile2.gguf").write_bytes(b"GGUFbroken")
    found = edgespec("show", "nofile.gguf", cwd=tmp_path)
    found.assert_refused(1, "cannot find the model", "edgespec list")
    write_gguf(tmp_path / "nofile3.gguf")
    found = edgespec("show", "nofile.gguf", cwd=tmp_path)
    found.assert_refused(1, "did you mean nofile3.gguf?")


def test_doctor_ticks_only_what_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from edgespec.terminal import doctor, findings_table

    monkeypatch.setattr(doctor, "_EXTRAS", {"hub": ("no-such-package", "downloads")})
    (missing,) = doctor._extras()
    monkeypatch.setattr(doctor, "_EXTRAS", {"hub": ("pytest", "downloads")})
    (there,) = doctor._extras()
    findings_table.print_findings([missing, there])
    lines = [line for line in capsys.readouterr().out.splitlines() if "used by downloads" in line]
    assert ["✓" in line for line in lines] == [False, True]


def test_what_works_as_it_is_comes_last() -> None:
    help = edgespec("run", "--help").out
    places = [help.index(word) for word in ("--model", "--temperature", "Tuning:", "--backend")]
    assert places == sorted(places)
    assert help.count("Tuning:") == 1
    commands = edgespec("--help").out
    assert commands.index("  chat ") < commands.index("Texts:") < commands.index("  embed ")


@pytest.mark.parametrize("command", ["", "chat", "store build"])
def test_help_fits_narrow_terminals(command: str) -> None:
    lines = edgespec(*command.split(), "--help", COLUMNS="40").out.splitlines()
    usual = [line for line in lines if "|" not in line]  # a choice is one word
    assert max(map(len, usual)) <= 40


READ_BY_NOBODY = ["--help", "--version", "run --help", "list", "show", "man", "tokenize hello"]


@pytest.mark.parametrize("command", READ_BY_NOBODY)
def test_a_pipe_that_nobody_reads_is_no_error(command: str) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        found = subprocess.run(
            [sys.executable, "-m", "edgespec", *command.split()],
            stdout=write,
            stderr=subprocess.PIPE,
            env=environment(),
        )
    finally:
        os.close(write)
    assert (found.returncode, found.stderr) == (0, b"")


def test_defaults_come_from_a_file(model: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        f'model = "{model.as_posix()}"\nthreads = 1\ncontext = 200\n[run]\nmax-tokens = 3\n'
        "ignore-eos = true\n[plan]\ncontext = 100\n"
    )
    use = {"EDGESPEC_CONFIG": str(config)}
    reply = json.loads(edgespec("run", "--json", "hi", **use).out)
    assert (reply["stats"]["output_tokens"], reply["plan"]["context_length"]) == (3, 200)
    reply = json.loads(edgespec("run", "--json", "-n", 2, "hi", **use).out)
    assert reply["stats"]["output_tokens"] == 2
    assert json.loads(edgespec("plan", "--json", **use).out)["context_length"] == 100
    other = write_gguf(tmp_path / "other.gguf", layers=1)
    shown = json.loads(edgespec("show", other, "--json", **use).out)
    assert shown["layers"] == 1  # the argument wins over the file
    assert json.loads(edgespec("show", "--json", **use).out)["layers"] == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("memroy = '1GiB'", ("memroy", "did you mean memory?")),
        ("[serv]\nport = 1", ("[serv]", "did you mean serve?")),
        ("[run]\nport = 1", ("port in [run]",)),
        ("threads = 'many'", ("threads is 'many'",)),
        ("threads = ", ("not TOML",)),
        ("json = true", ("json",)),
    ],
)
def test_a_file_that_is_wrong_is_named(text: str, words: tuple[str, ...], tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(text)
    found = edgespec("list", EDGESPEC_CONFIG=str(config))
    found.assert_refused(2, "config.toml", *words)
    assert edgespec("--help", EDGESPEC_CONFIG=str(config)).code == 0


def test_the_manual_has_every_command_and_variable() -> None:
    root = typer.main.get_command(app)
    page = man_page(root)
    for name, _ in all_commands("edgespec", root):
        assert f".SS {name}".replace("-", "\\-") in page
    read = set()
    for path in (ROOT / "edgespec").rglob("*.py"):
        text = path.read_text("utf-8")
        read |= {word for word in text.split('"') if word.startswith("EDGESPEC_")}
    known = {name for name in read if name.replace("_", "").isalpha()}
    assert known - {"EDGESPEC_"} <= set(ENVIRONMENT), known - set(ENVIRONMENT)
    assert all(name in page for name in ENVIRONMENT)


def test_a_replay_needs_a_tokenizer_alone(vocabulary: Path, tmp_path: Path) -> None:
    import gzip

    log = tmp_path / "log.jsonl.gz"
    line = json.dumps({"prompt": "hello", "output": " the hat and the hat"})
    log.write_bytes(gzip.compress((line + "\n").encode()))
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("the hat and the hat and the hat " * 20)
    store = tmp_path / "texts.store"
    built = edgespec("store", "build", texts, "--out", store, "--vocab", vocabulary)
    assert built.code == 0, built.err
    arguments = ("replay", log, "--vocab", vocabulary, "--json")
    plain = json.loads(edgespec(*arguments).out)
    assert plain["replies"] == 1
    helped = edgespec(*arguments, "--store", store, "--drafters", "hierarchy")
    assert helped.code == 0, helped.err
    alone = json.loads(edgespec(*arguments, "--drafters", "hierarchy").out)
    accepted = [
        sum(one["accepted"] for one in made["sources"] if one["name"] == "hierarchy")
        for made in (json.loads(helped.out), alone)
    ]
    assert accepted[0] > accepted[1]
    edgespec(*arguments, "--store", store).assert_refused(2, "--drafters hierarchy")
    log.write_bytes(log.read_bytes()[:-9])
    edgespec(*arguments).assert_refused(1, "cannot read", "damaged")
