"""Earlier replies: found by what the text ends with, however many there were, in bounded memory."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.drafting.tables.followers import NOBODY
from edgespec.drafting.text.kept_past import KeptPast, forget_history
from edgespec.drafting.text.past import PROMPT_TOKENS, Past
from edgespec.drafting.text.past_kernels import FOUND_AT, FOUND_MATCH, FOUND_TOKEN, SHORT, look_up
from edgespec.drafting.text.suffix_automaton import SuffixAutomatonDrafter
from edgespec.system.jit import kernel
from edgespec.tools.replay.lanes import make_market
from edgespec.tools.replay.steps import Tally, replay_steps
from edgespec.tools.replay.transcripts import Transcript

NOTHING = np.zeros(0, np.int32)
VOCABULARY = bytes(range(16))
TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=24)


@kernel
def find(past: int, text: np.ndarray, path: np.ndarray) -> int:
    """`look_up`, from outside."""
    return look_up(past, text, len(text), path)


def found(past: Past, text: Sequence[int], path: Sequence[int] = ()) -> dict[int, int]:
    """The next tokens that a search finds, with the length of their match."""
    count = find(past.table.address, np.array(text, np.int32), np.array(path, np.int32))
    rows = past._found[:count]
    ring = past._ring[(rows[:, FOUND_AT] + 1) % past.capacity]
    assert ring.tolist() == rows[:, FOUND_TOKEN].tolist()
    return {int(row[FOUND_TOKEN]): int(row[FOUND_MATCH]) for row in rows}


def naive(held: Sequence[int], text: Sequence[int]) -> dict[int, int]:
    """The same by comparing with every place."""
    best: dict[int, int] = {}
    for end in range(1, len(held)):
        same = 0
        while same < min(end, len(text)) and held[end - 1 - same] == text[-1 - same] != NOBODY:
            same += 1
        if same >= SHORT and held[end] != NOBODY:
            best[held[end]] = max(best.get(held[end], 0), same)
    return best


@settings(max_examples=100, deadline=None)
@given(replies=st.lists(TOKENS, max_size=4), text=TOKENS, cut=st.integers(0, 24))
def test_what_is_found_is_what_followed_the_longest_matches(
    replies: list[list[int]], text: list[int], cut: int
) -> None:
    past = Past(4096)
    for reply in replies:
        past.add(np.array(reply, np.int32))
    expected = naive(past.tokens().tolist(), text)
    seen = found(past, text[:cut], text[cut:])
    assert all(expected[token] >= match for token, match in seen.items())
    assert bool(seen) == bool(expected)
    if len(past.tokens()) <= 16:  # so that no chain is longer than what is looked at
        assert seen == expected


def test_the_oldest_is_forgotten_and_what_is_said_again_stays() -> None:
    past = Past(12 * 400)
    first, rng = np.arange(100, 140, dtype=np.int32), np.random.default_rng(1)
    for _ in range(20):
        past.add(rng.integers(0, 50, 40).astype(np.int32))
        past.add(first)
        assert past.size_bytes <= 12 * 400
        assert found(past, [110, 111, 112, 113]) == {114: 4}
    for _ in range(10):
        past.add(rng.integers(0, 50, 40).astype(np.int32))
    assert found(past, [110, 111, 112, 113]) == {}


def test_what_is_known_and_new_takes_no_room_again() -> None:
    past = Past(12 * 400)
    for _ in range(5):
        past.add(np.arange(40, dtype=np.int32))
    assert past.tokens().tolist() == [NOBODY, *range(40)]


def test_half_of_it_can_be_given_back() -> None:
    past = Past(12 * 400)
    for start in range(0, 300, 30):
        past.add(np.arange(start, start + 30, dtype=np.int32))
    before = past.size_bytes
    assert past.shrink() == before - past.size_bytes > 0.45 * before
    assert found(past, [290, 291, 292]) == {293: 3}
    assert found(past, [10, 11, 12]) == {}


@pytest.mark.parametrize("reply_tokens", [6, 200])
def test_a_reply_said_again_is_drafted_from_its_first_token(reply_tokens: int) -> None:
    past, rng = Past(2**16), np.random.default_rng(2)
    drafter = SuffixAutomatonDrafter(2**20, past=past)
    prompts = [rng.permutation(500)[:40].tolist() for _ in range(8)]
    replies = [rng.permutation(500)[:reply_tokens].tolist() for _ in range(8)]
    for prompt, reply in zip(prompts, replies, strict=True):
        drafter.reset(prompt)
        drafter.extend(reply)
        drafter.pause()
        drafter.pause()  # once is enough
    assert past.num_tokens == 8 * (1 + PROMPT_TOKENS + reply_tokens)
    drafter.reset(prompts[3])
    assert drafter.propose(5).tokens.tolist() == [prompts[3][-1], *replies[3][:5]]
    drafter.reset([*prompts[5], *replies[5][:2]])
    tree = drafter.propose(5)
    assert tree.tokens[1:].tolist() == replies[5][2:7]
    assert drafter.size_bytes <= drafter.max_bytes


@pytest.fixture
def data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("EDGESPEC_DATA", str(tmp_path))
    monkeypatch.delenv("EDGESPEC_HISTORY", raising=False)
    return tmp_path


def learnt(reply: Sequence[int]) -> Path | None:
    """The file after a run that said this."""
    drafter = SuffixAutomatonDrafter(2**18, past=KeptPast(2**16, VOCABULARY, 500))
    drafter.reset([7, 8, 9])
    drafter.extend(reply)
    drafter.close()
    assert drafter.past is not None
    return getattr(drafter.past, "_path", None)


def test_what_is_learnt_is_private_and_can_be_forgotten(data_folder: Path) -> None:
    path = learnt(range(100, 160))
    assert path is not None
    if os.name != "nt":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    learnt(range(200, 260))
    later = KeptPast(2**16, VOCABULARY, 500)
    assert found(later, [120, 121, 122]) == {123: 3}
    assert found(later, [7, 8, 9]) == {100: 3, 200: 3}
    assert found(KeptPast(2**16, bytes(16), 500), [120, 121, 122]) == {}
    assert forget_history() == 1
    assert forget_history() == 0
    assert KeptPast(2**16, VOCABULARY, 500).num_tokens == 0


def test_a_history_stays_as_small_as_its_past(data_folder: Path) -> None:
    past = KeptPast(12 * 300, VOCABULARY, 500)
    for start in range(40):
        past.add(np.arange(start, start + 60, dtype=np.int32))
    past.save()
    path = past._path
    assert path is not None
    assert path.stat().st_size <= 12 * 300
    small = KeptPast(12 * 100, VOCABULARY, 500)
    assert small.num_tokens <= small.capacity
    assert found(small, [80, 81, 82]) == {83: 3}


def test_nothing_is_kept_where_nothing_is_to_be(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGESPEC_HISTORY", "0")
    assert learnt(range(100, 160)) is None
    assert list(data_folder.iterdir()) == []


@settings(max_examples=40, deadline=None)
@given(place=st.integers(0, 291), flip=st.integers(1, 255))
def test_a_damaged_history_is_told_of_and_not_used(
    tmp_path_factory: pytest.TempPathFactory, place: int, flip: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("EDGESPEC_DATA", str(tmp_path_factory.mktemp("data")))
        patched.delenv("EDGESPEC_HISTORY", raising=False)
        path = learnt(range(100, 160))
        assert path is not None
        raw = bytearray(path.read_bytes())
        raw[place % len(raw)] ^= flip
        path.write_bytes(raw)
        assert KeptPast(2**16, VOCABULARY, 500).num_tokens == 0


def test_replies_asked_for_again_take_few_steps_in_the_least_memory() -> None:
    """What the trigram matrix alone knew was 3.6 tokens a step on texts (docs/lab)."""
    rng = np.random.default_rng(3)
    asked = [
        Transcript(rng.integers(0, 300, 40).tolist(), rng.integers(0, 300, 120).tolist())
        for _ in range(10)
    ]
    market, tallies = make_market(("suffix-automaton", "trigram"), 2**20), [Tally(), Tally()]
    for tally in tallies:
        for transcript in asked:
            replay_steps(market, transcript, 8, tally)
    first, again = (tally.tokens / tally.steps for tally in tallies)
    assert first < 1.3
    assert again > 8.0
