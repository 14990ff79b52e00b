"""Prompts on disk: the same text as computing them, for any engine, process and damage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec import OptionError
from edgespec.engine import kept_prompts
from edgespec.engine.engine import Engine
from edgespec.memory.kv import prompt_cache
from edgespec.memory.plan.settings import KV_TYPES
from edgespec.models.open_model import open_model
from edgespec.terminal import doctor
from tests.support.command_line import edgespec as command
from tests.support.gguf_models import CHATML, write_gguf
from tests.support.random_models import MODELS, write

SHORT: dict[str, Any] = {"max_tokens": 6, "seed": 1, "ignore_eos": True}
SYSTEM = "You know every station of the line and like to tell of it. " * 8
LIMIT = "64MiB"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, for prompts of any length."""
    monkeypatch.setattr(kept_prompts, "LEAST_S", 0.0)
    monkeypatch.setattr(prompt_cache, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(prompt_cache, "chosen_folder", lambda: tmp_path)
    return tmp_path / "prompts"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("kept") / "tiny.gguf", template=CHATML, context=1024)


def opened(model: Path, **options: Any) -> Engine:
    chosen = {"threads": 1, "context": 1024, "prompt_cache": LIMIT} | options
    return edgespec.load(model, **chosen)


@pytest.fixture
def plain(model: Path) -> Iterator[Engine]:
    with opened(model, prompt_cache="off") as engine:
        yield engine


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.keys"))


@pytest.mark.parametrize("speculation", [True, False])
@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_it_is_not_computed_again(kv_type: str, speculation: bool, model: Path) -> None:
    """By another engine, turn by turn, with the text of an engine that keeps nothing."""
    with opened(model, kv_type=kv_type, prompt_cache="off") as engine:
        chat = engine.chat(SYSTEM)
        expected = [chat.send(text, **SHORT).token_ids for text in ("hello", "go on")]
    turns = ("hello",), ("hello", "go on"), ("hello", "go on")
    for said, from_disk in zip(turns, ([False], [True, False], [True, True]), strict=True):
        with opened(model, kv_type=kv_type) as engine:
            chat = engine.chat(SYSTEM)
            replies = [chat.send(text, speculation=speculation, **SHORT) for text in said]
        assert [reply.token_ids for reply in replies] == expected[: len(said)]
        for reply, is_read in zip(replies, from_disk, strict=True):
            stats = reply.stats
            assert bool(stats.prompt_cache_tokens) == is_read and not stats.notes
            assert not is_read or stats.cached_tokens == stats.prompt_tokens - 1 > 256


def test_another_question_shares_the_beginning(model: Path, plain: Engine) -> None:
    with opened(model) as engine:
        engine.chat(SYSTEM).send("hello", **SHORT)
    expected = plain.chat(SYSTEM).send("What is next?", **SHORT)
    with opened(model) as engine:
        reply = engine.chat(SYSTEM).send("What is next?", **SHORT)
        assert reply.token_ids == expected.token_ids
        shared = engine.count_tokens(messages=[{"role": "system", "content": SYSTEM}])
        assert reply.stats.prompt_cache_tokens >= shared - 8 > 256


def test_several_at_once(model: Path, plain: Engine) -> None:
    questions = [SYSTEM + word for word in ("one", "two", "three")]
    expected = [plain.generate(question, **SHORT).token_ids for question in questions]
    for _ in range(2):
        with opened(model, sequences=3) as engine:
            replies = engine.generate_batch(questions, **SHORT)
            assert [reply.token_ids for reply in replies] == expected
    assert replies[0].stats.prompt_cache_tokens > 256


def test_memory_goes_before_disk(model: Path) -> None:
    """What is in memory already is not read, and blocks stay within the plan."""
    with opened(model, context=512) as engine:
        for said in ("hello", "hello", "and you"):
            reply = engine.generate(SYSTEM[:300] + said, **SHORT)
            assert reply.stats.prompt_cache_tokens == 0
        arena = engine.scheduler.target.store.only
        assert arena is not None and arena.num_blocks <= arena.most_blocks == 2
    with opened(model, context=512) as engine:
        chats = [engine.chat(SYSTEM[:200]) for _ in range(3)]
        for chat in chats:
            chat.send("hello", **SHORT)
        engine.generate(SYSTEM[:300] + "hello", **SHORT)
        arena = engine.scheduler.target.store.only
        assert arena is not None and arena.num_blocks <= 2


def test_short_ones_are_not_kept(
    model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_prompts, "LEAST_S", 60.0)
    with opened(model) as engine:
        engine.chat(SYSTEM).send("hello", **SHORT)
    assert not folder.exists()


def test_nothing_is_kept_unasked(plain: Engine, folder: Path) -> None:
    plain.chat(SYSTEM).send("hello", **SHORT)
    assert plain.plan.prompt_cache_bytes == 0 and not folder.exists()


def test_damage_is_computed_and_mended(model: Path, folder: Path) -> None:
    with opened(model) as engine:
        expected = engine.chat(SYSTEM).send("hello", **SHORT).token_ids
    for path in files(folder):
        raw = bytearray(path.read_bytes())
        raw[-1000] ^= 1
        path.write_bytes(raw)
    with opened(model) as engine:
        reply = engine.chat(SYSTEM).send("hello", **SHORT)
        assert reply.token_ids == expected and reply.stats.cached_tokens == 0
        (note,) = reply.stats.notes
        assert "prompt cache" in note and "checksum" in note and "\n" not in note
    with opened(model) as engine:
        reply = engine.chat(SYSTEM).send("hello", **SHORT)
        assert reply.token_ids == expected and reply.stats.prompt_cache_tokens > 256


def test_a_full_disk_costs_only_time(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_cache, "RESERVE_BYTES", 2**62)
    with opened(model) as engine:
        (note,) = engine.chat(SYSTEM).send("hello", **SHORT).stats.notes
    assert "could not be written to the prompt cache" in note


def test_another_file_finds_nothing(model: Path, tmp_path: Path) -> None:
    """Not even one that differs only in when it was written: a row may have been edited."""
    with opened(model) as engine:
        engine.chat(SYSTEM).send("hello", **SHORT)
    other = tmp_path / "other.gguf"
    other.write_bytes(model.read_bytes())
    os.utime(other, ns=(1, 1))
    with opened(other) as engine:
        assert engine.chat(SYSTEM).send("hello", **SHORT).stats.prompt_cache_tokens == 0


def test_long_contexts_turn_keys_otherwise(tmp_path: Path) -> None:
    """LongRoPE: the context decides how keys are rotated."""
    recipe = MODELS["phi3"]()
    path = write(recipe, tmp_path / "phi3.gguf", type="Q8_0")
    with open_model(path) as file:
        (rope,) = {attention.rope for attention in file.spec.attentions}
        assert rope is not None and rope.long_factors
    kinds = []
    for context in (rope.original_context, 2 * rope.original_context):
        with edgespec.load(path, threads=1, context=context) as engine:
            kinds.append(engine.scheduler.kv_kind())
    assert kinds[0] != kinds[1]


def test_the_plan_tells_and_counts_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = edgespec.plan(model, prompt_cache=LIMIT)
    assert plan.prompt_cache_bytes == 64 << 20 and plan.footprint["prompt cache"]
    assert any("64.0 MiB" in reason for reason in plan.reasons)
    assert edgespec.plan(model).prompt_cache_bytes == 0
    with pytest.raises(OptionError, match="not a size"):
        edgespec.plan(model, prompt_cache="on")
    plan = edgespec.plan(model, prompt_cache=LIMIT, backend="reference")
    assert any("reference backend keeps" in reason for reason in plan.reasons)
    monkeypatch.setenv("EDGESPEC_HISTORY", "0")
    assert edgespec.plan(model, prompt_cache=LIMIT).prompt_cache_bytes == 0


PROGRAM = """
import json, sys
from pathlib import Path
import edgespec
from edgespec.engine import kept_prompts
from edgespec.memory.kv import prompt_cache

model, folder, limit, system, *questions = sys.argv[1:]
kept_prompts.LEAST_S = 0.0
prompt_cache.cache_folder = lambda: Path(folder)
told = []
with edgespec.load(model, threads=1, context=1024, prompt_cache=limit) as engine:
    for question in questions:
        reply = engine.chat(system).send(question, max_tokens=6, seed=1, ignore_eos=True)
        told.append([reply.token_ids, reply.stats.prompt_cache_tokens])
print(json.dumps(told))
"""


def test_two_processes(model: Path, tmp_path: Path, plain: Engine) -> None:
    """At once and one after the other, with room for less than they write."""
    questions = ["hello", "go on", "and you?"]
    expected = [plain.chat(SYSTEM).send(said, **SHORT).token_ids for said in questions]

    def start(*asked: str, limit: str = LIMIT) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", PROGRAM, str(model), str(tmp_path), limit, SYSTEM, *asked]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)

    def told(process: subprocess.Popen[str]) -> list[Any]:
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        return json.loads(out)  # type: ignore[no-any-return]

    both = [start(*questions, limit="300KiB"), start(*questions[::-1], limit="300KiB")]
    found = [told(process) for process in both]
    assert [[ids for ids, _ in one] for one in found] == [expected, expected[::-1]]
    ((ids, read),) = told(start(questions[0]))
    assert ids == expected[0] and read > 256


def test_doctor_shows_it_and_forget_deletes_it(model: Path, folder: Path) -> None:
    assert doctor._prompts().status == "absent"
    with opened(model) as engine:
        engine.chat(SYSTEM).send("hello", **SHORT)
    found = doctor._prompts()
    assert found.value["blocks"] == len(files(folder)) >= 2 and "edgespec forget" in found.text
    done = command("forget", EDGESPEC_CACHE=str(folder.parent))
    assert done.code == 0 and not files(folder)
