"""What `run --record` writes is what `replay` reads, with the logits that some drafters need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.drafting.tree import DraftTree, TopTokens
from edgespec.errors import TranscriptError
from edgespec.models.open_model import open_model
from edgespec.tools.replay.lanes import choose_drafters, make
from edgespec.tools.replay.steps import Tally, replay_steps, top_of
from edgespec.tools.replay.transcripts import Transcript, holds_logits, read_transcripts
from edgespec.verification.sampling import SamplingParams
from tests.support.command_line import edgespec

LINE = {"prompt": [5, 6], "output": [7, 8], "top": [[[7, -0.1], [9, -2]], [[9, -0.5], [8, -1]]]}


def test_drafters_that_learn_from_logits_are_replayed_from_a_recorded_reply(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    written = ("run", "Say hello.", "-n", "12", "--seed", "3", "--record", log, "--record-top", "4")
    found = [edgespec(*written) for _ in range(2)]
    assert [one.code for one in found] == [0, 0], found
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines[0] == lines[1]
    assert {len(at) for at in lines[0]["top"]} == {4}
    assert len(lines[0]["top"]) == len(lines[0]["output"]) > 2
    replayed = edgespec("replay", log, "--drafters", "stand,recycling", "--json")
    values = json.loads(replayed.out)
    assert values["left_out"] == []
    sources = {source["name"]: source for source in values["sources"]}
    # Of the second reply, drawn with the same noise, all is known but what the first left out.
    assert sources["stand"]["accepted"] > len(lines[0]["output"]) // 2
    assert sources["recycling"]["drafted"] > 0


def read(path: Path, model: Path, line: dict[str, Any]) -> Transcript:
    path.write_text(json.dumps(line))
    with open_model(model) as opened:
        (found,) = read_transcripts(path, opened.tokenizer)
    return found


def test_a_line_says_what_was_likeliest_and_how_it_was_drawn(
    tmp_path: Path, bundled_model: Path
) -> None:
    sampling = {"temperature": 0.5, "seed": 9}
    found = read(tmp_path / "a", bundled_model, LINE | {"sampling": sampling})
    assert holds_logits(tmp_path / "a") and found.top is not None
    assert found.top.tokens.tolist() == [[7, 9], [9, 8]]
    assert found.top.logits[1].tolist() == [-0.5, -1.0]
    assert found.sampling == SamplingParams(temperature=0.5, seed=9)
    without = read(tmp_path / "b", bundled_model, LINE | {"prompt": []})
    assert without.top is not None and without.top.tokens.tolist() == [[9, 8]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"top": [[[7, -0.1]]]}, {"top": [[[7, -0.1]], []]}, {"top": 3}, {"top": [[], []]},
        {"top": [[[7]], [[8]]]}, {"top": [[[-1, 0.0]], [[8, 0.0]]]},
        {"top": [[[10**9, 0.0]], [[8, 0.0]]]}, {"top": [[[7.5, 0.0]], [[8, 0.0]]]},
        {"top": [[[7, float("nan")]], [[8, 0.0]]]}, {"top": [[[7, 1e300]], [[8, 0.0]]]},
        {"top": [[["a", 0.0]], [[8, 0.0]]]}, {"top": [[[7, 10**400]], [[8, 0]]]},
        {"sampling": 1}, {"sampling": {"heat": 1}}, {"sampling": {"temperature": -1}},
    ],
    ids=str,
)  # fmt: skip
def test_lines_that_say_what_cannot_be_are_refused(
    tmp_path: Path, bundled_model: Path, wrong: dict[str, Any]
) -> None:
    with pytest.raises(TranscriptError, match="line 1"):
        read(tmp_path / "a", bundled_model, LINE | wrong)


def test_of_nodes_that_are_not_on_the_path_nothing_is_said() -> None:
    tree = DraftTree.chain(1, [2, 3, 4], [0.5] * 3, 1)
    logged = TopTokens(np.array([[8, 9], [2, 7], [5, 6]]), np.array([[1, 0], [2, 0], [3, 0.0]]))
    top = top_of(tree, [0, 1], logged, 1)
    assert top.tokens.tolist() == [[2, 7], [5, 6], [0, 0], [0, 0]]
    assert top.logits.tolist() == [[2, 0], [3, 0], [0, 0], [0, 0]]


@pytest.mark.parametrize("name", ["recycling", "stand"])
def test_what_was_likeliest_once_is_drafted(name: str) -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    alike = np.array(text, np.int32)
    top = TopTokens(np.stack((alike, alike + 9), 1), np.array([[0.0, -9.0]] * 9, np.float32))
    tallies = [Tally(), Tally()]
    drafter = make(name)
    for tally in tallies:
        replay_steps(drafter, Transcript([10], text, top), 8, tally)
    assert tallies[0].accepted < tallies[1].accepted
    assert tallies[1].steps <= 3
    assert name in choose_drafters(name, logits=True)[0]
