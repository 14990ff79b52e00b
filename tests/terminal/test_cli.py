"""The command line as a user meets it: whole output, streams kept apart, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edgespec.version import __version__
from tests.support import random_models
from tests.support.command_line import edgespec, environment
from tests.support.gguf_models import CHATML, write_gguf

STATS = {
    "prompt_tokens", "output_tokens", "tokens_per_second", "prefill_tokens_per_second",
    "time_to_first_token_s", "steps", "tokens_per_step", "drafted", "accepted", "by_source",
    "estimated_speedup", "peak_memory_bytes", "planned_memory_bytes", "backend",
}  # fmt: skip
SHORT = ("--threads", 1, "--seed", 1, "--max-tokens", 8, "--ignore-eos")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("cli") / "tiny.gguf", template=CHATML)


def run_json(*arguments: object, stdin: bytes | None = None) -> dict[str, Any]:
    found = edgespec(*arguments, "--json", stdin=stdin)
    assert found.code == 0, found.err
    values: dict[str, Any] = json.loads(found.out)
    return values


def test_help_names_every_command() -> None:
    found = edgespec("--help")
    assert (found.code, found.err) == (0, "")
    for name in ("run", "chat", "plan", "show", "doctor", "bench"):
        assert f"\n  {name} " in found.out
    assert "130 interrupted" in found.out


def test_no_command_shows_the_help() -> None:
    found = edgespec()
    assert found.code == 2
    assert "Commands:" in found.out + found.err


@pytest.mark.parametrize("command", ["run", "bench kernels"])
def test_help_imports_nothing_heavy(command: str) -> None:
    program = (
        f"import sys; sys.argv = ['edgespec', *{command.split()}, '--help']\n"
        "from edgespec.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'numba', 'llvmlite', 'jinja2', 'tokenizers', 'rich', 'psutil'}\n"
        "heavy |= {'prompt_toolkit', 'platformdirs'}\n"
        "print(heavy & set(sys.modules), file=sys.stderr)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment()
    )
    assert found.stderr == "set()\n"


@pytest.mark.parametrize("option", ["--version"])
def test_version(option: str) -> None:
    found = edgespec(option)
    assert (found.code, found.out, found.err) == (0, f"edgespec {__version__}\n", "")


def test_run_prints_the_reply_and_nothing_else(model: Path) -> None:
    found = edgespec("run", "-m", model, *SHORT, "hello")
    assert found.code == 0, found.err
    assert found.err == ""
    assert found.out.endswith("\n")
    assert found.out[:-1] == run_json("run", "-m", model, *SHORT, "hello")["text"].rstrip("\n")


def test_run_json_is_one_object_with_the_documented_fields(model: Path) -> None:
    reply = run_json("run", "-m", model, *SHORT, "hello")
    assert set(reply) == {
        "text",
        "reasoning",
        "token_ids",
        "finish_reason",
        "plan",
        "stats",
    }
    assert len(reply["token_ids"]) == 8
    assert reply["finish_reason"] == "length"
    assert set(reply["stats"]) >= STATS
    assert reply["stats"]["backend"] == reply["plan"]["backend"] == "native"
    assert reply["stats"]["planned_memory_bytes"] == reply["plan"]["planned_bytes"]
    assert reply["stats"]["seed"] == 1


def test_stats_can_be_asked_for(model: Path) -> None:
    found = edgespec("run", "-m", model, *SHORT, "--stats", "hello")
    assert found.code == 0
    for word in ("8 tokens", "tokens/s", "accepted per step", "peak", "planned"):
        assert word in found.err
    assert len(found.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("argument", "stdin", "joined"),
    [("ask", b"", "ask"), (None, b"ask\n", "ask"), ("ask:", b"this\nthat\n", "ask:\n\nthis\nthat")],
    ids=["argument", "pipe", "both"],
)
def test_the_prompt_is_the_argument_and_the_pipe(
    argument: str | None, stdin: bytes, joined: str, model: Path
) -> None:
    arguments = [] if argument is None else [argument]
    reply = run_json("run", "-m", model, *SHORT, *arguments, stdin=stdin)
    assert reply["token_ids"] == run_json("run", "-m", model, *SHORT, joined)["token_ids"]


def test_speculation_can_be_left_out_and_changes_nothing(model: Path) -> None:
    prompt = "one two one two one two"
    plain = run_json("run", "-m", model, *SHORT, "--no-speculation", prompt)
    assert plain["token_ids"] == run_json("run", "-m", model, *SHORT, prompt)["token_ids"]
    assert plain["stats"]["drafted"] == 0
    assert plain["plan"]["max_nodes"] == 1


def test_raw_leaves_the_template_out(model: Path) -> None:
    raw = run_json("run", "-m", model, *SHORT, "--raw", "hello")
    assert raw["stats"]["prompt_tokens"] < run_json("run", "-m", model, *SHORT, "hello")["stats"][
        "prompt_tokens"
    ]  # fmt: skip


def test_a_system_message_is_part_of_the_prompt(model: Path) -> None:
    without = run_json("run", "-m", model, *SHORT, "hello")["stats"]["prompt_tokens"]
    found = run_json("run", "-m", model, *SHORT, "--system", "Be brief.", "hello")
    assert found["stats"]["prompt_tokens"] > without


def test_a_reader_that_leaves_is_no_error(model: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "edgespec", "run", "-m", str(model), "--threads", "1", "--seed", "1"]
        + ["--max-tokens", "400", "--ignore-eos", "hello"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
def test_ctrl_c_stops_a_reply_with_130(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "long.gguf", template=CHATML, context=32768)
    with subprocess.Popen(
        [sys.executable, "-m", "edgespec", "run", "-m", str(model), "--threads", "1", "--seed", "1"]
        + ["--context", "32768", "--max-tokens", "32000", "--ignore-eos", "hello"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        # A background job starts with Ctrl-C ignored, and children inherit that.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        first = process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 130
        assert (first + rest).endswith(b"\n")


def test_a_piped_chat_takes_a_turn_for_each_line_and_survives_a_bad_one(model: Path) -> None:
    lines = b"hello\n\nbad \xff line\n" + b"too long " * 400 + b"\nhello again\n"
    found = edgespec("chat", "-m", model, *SHORT, "--json", stdin=lines)
    assert found.code == 1
    assert [line.startswith("edgespec: ") for line in found.err.splitlines()] == [True, True]
    assert "line 3" in found.err
    assert "context" in found.err
    first, second = (json.loads(line) for line in found.out.splitlines())
    assert set(first) == {"text", "reasoning", "token_ids", "finish_reason", "stats"}
    assert second["stats"]["cached_tokens"] >= first["stats"]["prompt_tokens"]


def test_plan_explains_and_its_json_adds_up(model: Path) -> None:
    found = edgespec("plan", model, "--memory", "1GiB", "-v")
    assert found.code == 0, found.err
    for word in ("weights", "KV cache", "total", "budget 1.00 GiB", "context 512", "threads"):
        assert word in found.out or word[:-1] in found.out
    short = edgespec("plan", model, "--memory", "1GiB").out.splitlines()
    assert len(short) == 3
    assert short[0].startswith("tiny.gguf fits: ")
    plan = run_json("plan", "--model", model, "--memory", "1GiB")
    assert plan["budget_bytes"] == 1024**3
    assert sum(plan["footprint"].values()) == plan["planned_bytes"] <= plan["budget_bytes"]


def test_show_tells_what_a_file_is(model: Path) -> None:
    found = edgespec("show", model)
    assert found.code == 0, found.err
    for word in ("llama", "random-llama", "F32", "512 tokens", "SentencePiece-style", "<|im_start"):
        assert word in found.out
    facts = run_json("show", model, "--tensors")
    assert facts["architecture"] == "llama"
    assert facts["vocabulary"] == 300
    assert facts["tokenizer"]["end_tokens"] == {"2": "</s>"}
    assert facts["metadata"]["tokenizer.ggml.tokens"] == "array of 300"
    assert sum(info["bytes"] for info in facts["tensors"]) == facts["quantisation"]["F32"]["bytes"]


PARTS = {
    "qwen35moe": (
        ["gated delta net in 6, attention in 2 of 8 layers", "4 of 16 of width 256 for each token, "
         "and one that every token uses, in 8 of 8 layers"],
        ["windows"],
    ),
    "gemma3": (["32 tokens in"], ["mixers", "experts"]),
    "deepseek2": (["latent attention in 4 of 4 layers", "in 3 of 4 layers"], ["windows"]),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_show_tells_what_layers_are_made_of(name: str, tmp_path: Path) -> None:
    """In a line for each part that not every model has."""
    path = random_models.write(random_models.MODELS[name](), tmp_path / "model.gguf", type="Q8_0")
    found = " ".join(edgespec("show", path).out.split())
    told, untold = PARTS[name]
    assert all(words in found for words in told), found
    before, _, _ = found.partition(" metadata ")
    assert not any(f" {word} " in before for word in untold)


def test_doctor_finds_what_the_commands_use() -> None:
    report = run_json("doctor")
    found = {finding["name"]: finding for finding in report["findings"]}
    assert report["version"] == __version__
    assert (
        found["instruction set"]["value"]["used"] in found["instruction set"]["value"]["available"]
    )
    assert found["cache"]["value"]["writable"]
    assert {"devices", "onnx_providers"} == set(found["devices"]["value"])
    if found["backend llamacpp"]["value"]["installed"]:
        kinds = {device["kind"] for device in found["devices"]["value"]["devices"]}
        assert "cpu" in kinds
    assert found["workers"]["value"] in (True, False)
    assert found["budget"]["value"] > 0
    text = edgespec("doctor").out
    for name in found:
        assert name in text


def test_doctor_advises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = edgespec("doctor", EDGESPEC_CACHE=str(tmp_path / "file" / "cache"), EDGESPEC_ISA="sse9")
    assert found.code == 1
    assert "cannot be used" in found.out
    assert "sse9" in found.out
    assert "1 problem" in found.out


def least_seconds(*arguments: object) -> float:
    """Processor seconds of the best of five, because other work on the machine only ever adds."""
    seconds = []
    for _ in range(5):
        before = sum(os.times()[2:4])  # of children that ended
        assert edgespec(*arguments).code == 0
        seconds.append(sum(os.times()[2:4]) - before)
    return min(seconds)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="children's times are not told")
def test_the_bundled_model_answers_soon(bundled_model: Path) -> None:
    """Once kernels are cached; three times what an idle machine takes, for slower ones at work."""
    assert least_seconds("run", "--max-tokens", 1, "hello") < 3.0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="children's times are not told")
def test_help_is_quick() -> None:
    assert least_seconds("--help") < 0.6
