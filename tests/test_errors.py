"""Whatever goes wrong: one sentence on stderr, the right exit code, no traceback, nothing lost."""

from __future__ import annotations

import json
import os
import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgespec as package
from edgespec.errors import EdgeSpecError
from tests.support.command_line import edgespec
from tests.support.gguf_models import CHATML, write_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound model with a chat template and a context of 512 tokens."""
    return write_gguf(tmp_path_factory.mktemp("sound") / "sound.gguf", template=CHATML)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    found = edgespec("run", "-m", tmp_path / "none.gguf", "hello")
    found.assert_refused(1, "none.gguf", "no file")


def test_a_name_nearly_right_is_suggested(tmp_path: Path) -> None:
    edgespec("plan", "edgespec-tinny", cwd=tmp_path).assert_refused(1, "did you mean edgespec-tiny")


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    edgespec("show", tmp_path).assert_refused(1, "directory")


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda raw: b"",
    "wrong magic": lambda raw: b"GGML" + raw[4:],
    "unknown version": lambda raw: raw[:4] + struct.pack("<I", 77) + raw[8:],
    "absurd number of tensors": lambda raw: raw[:8] + struct.pack("<Q", 2**60) + raw[16:],
    "absurd number of keys": lambda raw: raw[:16] + struct.pack("<Q", 2**62) + raw[24:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused(damage: str, model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(DAMAGES[damage](model.read_bytes()))
    edgespec("run", "-m", broken, "hello").assert_refused(1, "broken.gguf")


def test_a_truncated_file_is_refused_wherever_it_ends(model: Path, tmp_path: Path) -> None:
    raw = model.read_bytes()
    random_places = random.Random(20)
    broken = tmp_path / "short.gguf"
    for length in sorted(random_places.randrange(1, len(raw)) for _ in range(20)):
        broken.write_bytes(raw[:length])
        with pytest.raises(package.ModelFileError) as caught:
            package.load(broken)
        assert "short.gguf" in str(caught.value), length
        assert "\n" not in str(caught.value), length
    edgespec("run", "-m", broken, "hello").assert_refused(1, "short.gguf")


def test_an_unsupported_type_is_named(tmp_path: Path) -> None:
    """Q8_K blocks: 292 bytes for 256 values; no file has them."""
    path = write_gguf(tmp_path / "q8.gguf", type="Q8_K", dim=256, ffn=256)
    native = ("--backend", "native")
    edgespec("run", "-m", path, *native, "hello").assert_refused(1, "Q8_K", "Q8_0")


def test_an_unsupported_architecture_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "falcon.gguf", arch="falcon")
    edgespec("run", "-m", path, "hello").assert_refused(1, "falcon")


def test_a_vocabulary_that_does_not_match_the_tensors_is_told(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "mismatch.gguf",
        vocab=300,
        shapes={"token_embd.weight": (310, 64), "output.weight": (310, 64)},
    )
    edgespec("run", "-m", path, "hello").assert_refused(1, "300", "310")


def test_a_prompt_longer_than_the_context_is_told_with_numbers(model: Path) -> None:
    found = edgespec("run", "-m", model, "--context", 64, "word " * 200)
    found.assert_refused(1, "tokens", "64", "--context")


@pytest.mark.parametrize("command", ["run", "plan", "chat"])
def test_a_budget_too_small_is_refused_before_loading(command: str, model: Path) -> None:
    arguments = ["hello"] if command == "run" else []
    found = edgespec(command, "-m", model, "--memory", "1MiB", *arguments)
    found.assert_refused(1, "1MiB", "MiB")


def test_a_budget_under_the_plan_names_what_would_fit(model: Path) -> None:
    found = edgespec("plan", "-m", model, "--memory", "80MiB")
    found.assert_refused(1, "80.0 MiB", "--memory")


def test_a_template_cannot_leave_its_sandbox(tmp_path: Path) -> None:
    escape = "{{ messages.__class__.__mro__[-1].__subclasses__() }}"
    path = write_gguf(tmp_path / "escape.gguf", template=escape)
    edgespec("run", "-m", path, "hello").assert_refused(1, "template", "--raw")


def test_a_template_cannot_run_forever(tmp_path: Path) -> None:
    endless = "{% for i in range(10**9) %}{% for j in range(10**9) %}x{% endfor %}{% endfor %}"
    path = write_gguf(tmp_path / "endless.gguf", template=endless)
    edgespec("run", "-m", path, "hello").assert_refused(1, "template")


@pytest.mark.parametrize("command", ["run", "chat"])
def test_input_that_is_not_utf8_is_one_sentence(command: str, model: Path) -> None:
    found = edgespec(command, "-m", model, stdin=b"caf\xe9 au lait")
    found.assert_refused(1, "standard input", "UTF-8", "0xe9", "position 3")


def test_an_unwritable_cache_is_one_line_and_the_reply_is_written(
    model: Path, tmp_path: Path
) -> None:
    """A file where the folder should be: that holds for the superuser too. What is compiled by
    children instead of in this process is kept as long as the process runs.
    """
    blocked, temporary = tmp_path / "blocked", tmp_path / "temporary"
    blocked.write_text("not a folder")
    temporary.mkdir()
    found = edgespec(
        "run", "-m", model, "--max-tokens", 2, "--ignore-eos", "--threads", 1, "hello",
        "--json", EDGESPEC_CACHE=str(blocked / "cache"), TMPDIR=str(temporary),
        TEMP=str(temporary),
    )  # fmt: skip
    assert found.code == 0, found.err
    assert len(found.err.splitlines()) == 1, found.err
    assert "EDGESPEC_CACHE" in found.err
    told = json.loads(found.out)
    assert told["stats"]["output_tokens"] == 2
    assert told["stats"]["peak_memory_bytes"] < told["plan"]["planned_bytes"]
    assert list(temporary.iterdir()) == []


WRONG_USAGE: dict[str, tuple[list[Any], list[str]]] = {
    "temperature": (["--temperature", -1], ["temperature"]),
    "top-p": (["--top-p", 2], ["top_p"]),
    "max-tokens": (["--max-tokens", 0], ["max_tokens"]),
    "seed": (["--seed", -1], ["seed"]),
    "memory": (["--memory", "lots"], ["'lots'", "2GiB"]),
    "context": (["--context", 0], ["context"]),
    "threads": (["--threads", 100000], ["threads", "100000"]),
    "backend": (["--backend", "magic"], ["magic", "native"]),
    "drafters": (["--drafters", "psychic"], ["psychic", "suffix-automaton"]),
    "vram": (["--vram", "4GiB"], ["--vram", "GPU"]),
    "cpu-moe": (["--cpu-moe", "all"], ["--cpu-moe", "mixture"]),
    "system without template": (["--raw", "--system", "Be brief."], ["--system", "--raw"]),
}


@pytest.mark.parametrize("mistake", WRONG_USAGE)
def test_an_option_that_means_nothing_exits_with_2(mistake: str, model: Path) -> None:
    options, words = WRONG_USAGE[mistake]
    edgespec("run", "-m", model, *options, "hello").assert_refused(2, *words)


def test_no_prompt_exits_with_2(model: Path) -> None:
    edgespec("run", "-m", model).assert_refused(2, "no text", "edgespec run")


def test_two_models_exit_with_2(model: Path) -> None:
    edgespec("show", "one.gguf", "--model", "two.gguf").assert_refused(2, "one.gguf", "two.gguf")


def test_a_chat_needs_a_template(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "plain.gguf")
    found = edgespec("chat", "-m", path, "--threads", 1, stdin=b"hello\n")
    found.assert_refused(1, "chat template", "--raw")


def test_an_option_that_does_not_exist_shows_the_usage() -> None:
    found = edgespec("run", "--frobnicate")
    assert (found.code, found.out) == (2, "")
    assert "Usage: edgespec run" in found.err
    assert "--frobnicate" in found.err


def test_debugging_shows_the_traceback(tmp_path: Path) -> None:
    found = edgespec("show", tmp_path / "none.gguf", EDGESPEC_DEBUG="1")
    assert found.code == 1
    assert "Traceback" in found.err


def test_control_characters_of_a_file_do_not_reach_the_terminal(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", metadata={"general.name": "\x1b]0;owned\x07\x1b[2J"})
    found = edgespec("show", path)
    assert found.code == 0, found.err
    assert "\x1b" not in found.out
    assert "\x07" not in found.out


@pytest.mark.skipif(sys.platform == "win32", reason="needs /dev/full")
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_told(model: Path) -> None:
    import subprocess

    from tests.support.command_line import environment

    with open("/dev/full", "wb") as full:
        found = subprocess.run(
            [sys.executable, "-m", "edgespec", "show", str(model)],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(),
            timeout=120,
        )
    assert found.returncode == 1
    assert b"Traceback" not in found.stderr
    assert b"No space left" in found.stderr


def test_every_error_has_an_exit_code_and_one_base() -> None:
    names = [name for name in package.__all__ if name.endswith("Error")]
    for name in names:
        error = getattr(package, name)
        assert issubclass(error, EdgeSpecError)
        assert error.exit_code in (1, 2)
