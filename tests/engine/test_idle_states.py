"""Windows and states of idle conversations: kept, spilled, restored, and always the same text."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import edgespec
from edgespec.engine.context import policy
from edgespec.engine.engine import Engine
from edgespec.engine.reply import Reply
from edgespec.engine.reply_options import ReplyOptions
from edgespec.memory.kv import saved_prefixes
from edgespec.memory.kv.kv_file import KvFile, Outline
from edgespec.memory.plan.state_layout import STATES_ITEM
from tests.support.random_models import MODELS, text, write

NAMES = ("gemma3", "qwen35", "lfm2")
HYBRIDS = ("qwen35", "lfm2")
SHORT = ReplyOptions(max_tokens=6, seed=1, ignore_eos=True)
_FOLDER = TemporaryDirectory(prefix="edgespec-idle-")


@pytest.fixture(autouse=True)
def spill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spill folder of this test's own."""
    monkeypatch.setattr("edgespec.memory.kv.spill.cache_folder", lambda: tmp_path)
    return tmp_path / "spill"


@cache
def _path(name: str) -> Path:
    recipe = MODELS[name]()
    recipe.context = 4096
    return write(recipe, Path(_FOLDER.name) / f"{name}.gguf", type="Q8_0")


def _load(name: str, context: int = 1024, sequences: int = 1) -> Engine:
    return edgespec.load(_path(name), threads=1, context=context, sequences=sequences)


def _ids(count: int, seed: int) -> list[int]:
    return text(MODELS["lfm2"](), count, seed)


class Talk:
    """A conversation in token ids."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.ids: list[int] = []

    def say(self, said: Sequence[int]) -> Reply:
        """The reply to more ids."""
        self.ids += said
        stream = self._engine._turn(self.ids, policy("stop"), self, SHORT)
        for _ in stream:
            pass
        self.ids += stream.reply.token_ids
        return stream.reply


def _known(talk: Talk) -> int:
    """Positions that a turn leaves; its last token was never computed."""
    return len(talk.ids) - 1


def _alone(name: str, turns: Sequence[Sequence[int]]) -> list[list[int]]:
    """What is replied to turns by an engine that does nothing else."""
    with _load(name, context=2048) as engine:
        talk = Talk(engine)
        return [talk.say(said).token_ids for said in turns]


def _check_budget(engine: Engine) -> None:
    held = engine.scheduler.target.allocated_bytes()  # type: ignore[attr-defined]
    for item in ("KV cache", *([STATES_ITEM] if STATES_ITEM in held else [])):
        assert held[item] <= engine.plan.footprint.exact[item]


@pytest.mark.parametrize("name", NAMES)
def test_each_keeps_its_own_while_others_talk(name: str, spill: Path) -> None:
    turns = [[_ids(40, 10 * which + turn) for turn in range(3)] for which in range(2)]
    with _load(name) as engine:
        talks = [Talk(engine), Talk(engine)]
        found: list[list[list[int]]] = [[], []]
        for turn in range(3):
            for talk, own, said in zip(talks, turns, found, strict=True):
                before = max(_known(talk), 0)
                reply = talk.say(own[turn])
                assert reply.stats.cached_tokens == before  # nothing is read twice
                said.append(reply.token_ids)
        _check_budget(engine)
    assert not spill.exists()
    assert found == [_alone(name, own) for own in turns]


@pytest.mark.parametrize("name", NAMES)
def test_the_one_idle_longest_is_spilled_and_comes_back(name: str, spill: Path) -> None:
    """Three conversations of a block each, where there is room for two."""
    turns = [[_ids(150, which), _ids(20, which + 10)] for which in range(3)]
    with _load(name, context=512) as engine:
        talks = [Talk(engine) for _ in turns]
        firsts = [talk.say(own[0]) for talk, own in zip(talks, turns, strict=True)]
        known = _known(talks[0])
        assert [reply.stats.spilled_tokens for reply in firsts] == [0, 0, known]
        assert len(list(spill.iterdir())) == 1
        again = talks[0].say(turns[0][1])
        assert again.stats.restored_tokens == again.stats.cached_tokens == known
        assert again.stats.spilled_tokens and not again.stats.notes
        _check_budget(engine)
        for talk in talks:
            engine.line.forget(talk)
        assert not list(spill.iterdir())
    assert [firsts[0].token_ids, again.token_ids] == _alone(name, turns[0])


@pytest.mark.parametrize("name", NAMES)
def test_what_comes_back_can_be_edited(name: str, spill: Path) -> None:
    """Checkpoints and windows are in the file too."""
    begun, other, edit = _ids(400, 1), _ids(300, 2), _ids(20, 3)
    with _load(name, context=512) as engine:
        talk = Talk(engine)
        talk.say(begun)
        assert Talk(engine).say(other).stats.spilled_tokens == _known(talk)
        talk.ids = begun[:300]
        reply = talk.say(edit)
        assert reply.stats.cached_tokens == (256 if name in HYBRIDS else 300)
        assert reply.stats.restored_tokens and not reply.stats.notes
    assert [reply.token_ids] == _alone(name, [[*begun[:300], *edit]])


@pytest.mark.parametrize("name", HYBRIDS)
def test_an_edited_text_reads_at_most_256_again(name: str) -> None:
    begun, edit = _ids(700, 1), _ids(20, 2)
    with _load(name) as engine:
        talk = Talk(engine)
        talk.say(begun)
        Talk(engine).say(_ids(40, 3))
        talk.ids = begun[:350]
        reply = talk.say(edit)
        assert 350 - 256 <= reply.stats.cached_tokens <= 350
    assert [reply.token_ids] == _alone(name, [[*begun[:350], *edit]])


@pytest.mark.parametrize("name", HYBRIDS)
def test_many_short_turns_leave_no_long_way_back(name: str) -> None:
    """Each prompt's end is a checkpoint for a while, and displaces none that is missed more."""
    with _load(name) as engine:
        talk = Talk(engine)
        for seed in range(17):
            talk.say(_ids(40, seed))
        sequence = engine.scheduler.slots[0].sequence
        ways = [at - sequence.rewindable(at) for at in range(sequence.length)]
        assert sequence.length > 700 and max(ways) <= 256


def test_windows_that_have_moved_on_come_back() -> None:
    turns = [_ids(1000, 1), _ids(20, 2)]
    with _load("gemma3", context=1280) as engine:
        talk = Talk(engine)
        found = [talk.say(turns[0]).token_ids]
        known = _known(talk)
        assert Talk(engine).say(_ids(1000, 3)).stats.spilled_tokens == known
        reply = talk.say(turns[1])
        assert reply.stats.restored_tokens == reply.stats.cached_tokens == known
        tables = engine.scheduler.slots[0].sequence.state.tables
        assert sorted(table.first_position for table in tables) == [0, 512]
    assert [*found, reply.token_ids] == _alone("gemma3", turns)


def _flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1000] ^= 1
    path.write_bytes(raw)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": _flip,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "gone": Path.unlink,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_file_costs_time_alone(name: str, damage: str, spill: Path) -> None:
    turns = [_ids(150, 1), _ids(20, 2), _ids(20, 3)]
    with _load(name, context=512) as engine:
        talk = Talk(engine)
        found = [talk.say(turns[0])]
        for seed in (4, 5):
            Talk(engine).say(_ids(150, seed))
        (spilled,) = spill.iterdir()
        DAMAGES[damage](spilled)
        found += [talk.say(turns[1]), talk.say(turns[2])]
        assert not found[1].stats.restored_tokens and not found[1].stats.cached_tokens
        assert "computed again" in found[1].stats.notes[0] and not found[2].stats.notes
        _check_budget(engine)
    assert [reply.token_ids for reply in found] == _alone(name, turns)


@pytest.mark.parametrize("name", HYBRIDS)
def test_states_are_no_more_than_planned(
    name: str, spill: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight short conversations have blocks enough, and five states."""
    monkeypatch.setattr("edgespec.memory.plan.settings.most_checkpoints", lambda context: 4)
    turns = [[_ids(20, which), _ids(5, which + 20)] for which in range(8)]
    with _load(name, context=4096) as engine:
        talks = [Talk(engine) for _ in turns]
        found = [[talk.say(own[0]).token_ids] for talk, own in zip(talks, turns, strict=True)]
        _check_budget(engine)
        assert len(list(spill.iterdir())) == 3
        for talk, own, said in zip(talks, turns, found, strict=True):
            before, reply = _known(talk), talk.say(own[1])
            assert reply.stats.cached_tokens == before
            said.append(reply.token_ids)
            _check_budget(engine)
    assert found == [_alone(name, own) for own in turns]


@pytest.mark.parametrize("name", NAMES)
def test_memory_that_is_short_is_taken_from_idle_ones(name: str) -> None:
    turns = [_ids(300, 1), _ids(20, 2)]
    with _load(name) as engine:
        talk, store = Talk(engine), engine.scheduler.target.store
        assert store is not None
        found = [talk.say(turns[0]).token_ids]
        known, before = _known(talk), store.size_bytes
        Talk(engine).say(_ids(5, 3))
        before = store.size_bytes
        assert engine.scheduler._shrink() == before - store.size_bytes > 0
        reply = talk.say(turns[1])
        assert reply.stats.restored_tokens == reply.stats.cached_tokens == known
        assert [*found, reply.token_ids] == _alone(name, turns)


@pytest.mark.parametrize("name", NAMES)
def test_the_text_depends_on_nobody_else(name: str) -> None:
    """Four conversations in any order, edited now and then, and batches between, where two have
    room.
    """
    order = random.Random(name)
    with _load(name, context=512, sequences=2) as engine, _load(name, context=512) as alone:
        talks = [Talk(engine) for _ in range(4)]
        spilled = 0
        for turn in range(20):
            talk = order.choice(talks)
            if len(talk.ids) > 400 or order.random() < 0.2:
                del talk.ids[len(talk.ids) // 2 :]
            if order.random() < 0.2:
                batch = [_ids(order.choice([10, 200]), 100 + turn) for _ in range(2)]
                engine.generate_batch(batch, max_tokens=4, seed=1)
            reply = talk.say(_ids(order.choice([5, 60, 100]), turn))
            spilled += reply.stats.spilled_tokens
            _check_budget(engine)
            assert not reply.stats.notes
            expected = Talk(alone).say(talk.ids[:-6])
            assert reply.token_ids == expected.token_ids
        assert spilled


GUIDE = "You know every station of the line and like to tell of it. " * 11
HELLO: dict[str, Any] = {"max_tokens": 6, "seed": 1, "ignore_eos": True, "raw": True}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of this test's own."""
    monkeypatch.setenv("EDGESPEC_DATA", str(tmp_path / "data"))
    return tmp_path / "data" / "prefixes" / "guide.keys"


@pytest.mark.parametrize("name", NAMES)
def test_saved_prefixes(name: str, data: Path) -> None:
    """Windows and states are read back, by two who share them; damage costs time alone."""
    with _load(name) as engine:
        expected = engine.generate(GUIDE + "\nHello", **HELLO).token_ids
        saved = engine.save_prefix("guide", GUIDE, raw=True)
        assert saved.size_bytes == data.stat().st_size
        length = len(saved.header.ids)
    with _load(name, sequences=2) as engine:
        batch = engine.generate_batch(["\nHello", "\nBye"], prefix="guide", **HELLO)
        assert batch[0].token_ids == expected
        for reply in batch:  # of gemma3, a token spans the seam
            assert length - (name == "gemma3") <= reply.stats.cached_tokens <= length + 1
            assert not reply.stats.notes
        _check_budget(engine)
    _flip(data)
    with _load(name) as engine:
        reply = engine.generate("\nHello", prefix="guide", **HELLO)
        assert reply.token_ids == expected and not reply.stats.cached_tokens
        assert "computed again" in reply.stats.notes[0]


OUTLINES: dict[str, Callable[[Outline], Outline]] = {
    "blocks that are gone": lambda own: replace(own, firsts=(512, *own.firsts[1:])),
    "a block from its middle": lambda own: replace(own, firsts=(8, *own.firsts[1:])),
    "a shape too many": lambda own: replace(own, firsts=(*own.firsts, 0)),
    "a state before its time": lambda own: replace(own, states=((9, 0), *own.states)),
    "a state of the future": lambda own: replace(own, states=(*own.states, (9999, 0))),
    "a third parity": lambda own: replace(own, states=(*own.states[:-1], (own.length, 2))),
}


@pytest.mark.parametrize("outline", OUTLINES)
def test_files_that_say_what_cannot_be(outline: str, data: Path) -> None:
    """Whoever writes such a file can make its checksums, too."""
    with _load("lfm2") as engine:
        engine.save_prefix("guide", GUIDE, raw=True)
        prefix, contents = saved_prefixes.read("guide"), _contents(data)
        assert prefix.outline is not None
        saved_prefixes.save(replace(prefix, outline=OUTLINES[outline](prefix.outline)), contents)
    with _load("lfm2") as engine:
        reply = engine.generate("\nHello", prefix="guide", **HELLO)
        assert "computed again" in reply.stats.notes[0]


def _contents(path: Path) -> list[NDArray[np.uint8]]:
    """The blocks of a saved file."""
    found = []
    with path.open("rb") as file:
        kept = KvFile.open(path, file)
        for index in range(kept.header.num_blocks):
            found.append(np.zeros(kept.header.bytes_of(index), np.uint8))
            kept.read(file, index, found[-1])
    return found
