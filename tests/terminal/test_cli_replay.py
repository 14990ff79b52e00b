"""`edgespec replay` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgespec.errors import OptionError
from edgespec.tools.replay.prices import read_prices
from tests.support.command_line import edgespec

WORDS = "the red ball and the blue box are in the big house with the small dog"
CURVE = {"1": 0.010, "2": 0.0105, "4": 0.012, "8": 0.016}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Replies that hand their prompt back, and one in token ids."""
    lines = [
        {"prompt": f"Say it {n} times: {WORDS}", "output": f" {WORDS}. {WORDS}."} for n in "23"
    ]
    lines.append({"prompt": [5, 6, 7, 8, 9, 5, 6], "output": [7, 8, 9, 5, 6, 7, 8], "model": "m"})
    path = tmp_path_factory.mktemp("replay") / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def replayed(*arguments: object) -> dict[str, Any]:
    found = edgespec("replay", *arguments, "--json")
    assert found.code == 0, found.err
    values: dict[str, Any] = json.loads(found.out)
    return values


def test_the_json_has_the_names_that_stay(log: Path, bundled_model: Path, tmp_path: Path) -> None:
    curve = tmp_path / "curve.json"
    curve.write_text(json.dumps(CURVE))
    values = replayed(log, "--vocab", bundled_model, "--max-nodes", 6, "--cost-curve", curve)
    assert (values["replies"], values["max_nodes"]) == (3, 6)
    assert values["cost_curve"] == {"origin": str(curve), "seconds": CURVE}
    sources = {source["name"]: source for source in values["sources"]}
    assert {"market", "prompt-lookup", *values["in_market"]} == set(sources)
    for source in sources.values():
        assert source["steps"] + source["accepted"] == values["output_tokens"]
        assert source["tokens_per_step"] == values["output_tokens"] / source["steps"]
        assert source["drafted"] >= source["accepted"] > 0 or source["name"] == "trigram"
        assert source["microseconds_per_step"] > 0
    assert sources["market"]["tokens_per_step"] > 2
    assert sources["market"]["predicted_speedup"] > 1.3
    shares = sources["market"]["by_source"].values()
    assert sum(share["accepted"] for share in shares) == sources["market"]["accepted"]
    assert values["left_out"] == []


def test_counts_do_not_depend_on_the_machine(log: Path) -> None:
    first, second = (
        [[s[key] for key in ("name", "steps", "drafted", "accepted")] for s in found["sources"]]
        for found in (replayed(log, "--drafters", "all"), replayed(log, "--drafters", "all"))
    )
    assert first == second


def test_the_table_says_what_was_replayed_and_what_not(log: Path, tmp_path: Path) -> None:
    plot = tmp_path / "replay.svg"
    found = edgespec("replay", log, "--drafters", "all", "--plot", plot)
    assert found.code == 0 and found.err == "", found
    assert max(map(len, found.out.splitlines()[:-2])) <= 80
    for words in ("3 replies", "tokens/step", "market", "prompt-lookup", "suffix-automaton", "not"):
        assert words in found.out
    left_out = found.out.split("does not\n  hold:")[-1]
    assert "recycling, stand, jacobi" in left_out
    assert "prompt-lookup" in plot.read_text()


def test_a_model_that_was_measured_here_brings_its_own_curve(log: Path, tmp_path: Path) -> None:
    assert edgespec("run", "hi", "-n", "2", "--seed", "1").code == 0
    assert "measured on this machine" in replayed(log)["cost_curve"]["origin"]


def test_the_curve_of_bench_kernels_is_read(log: Path, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    points = [{"nodes": int(n), "seconds": s, "ratio": 1.0} for n, s in CURVE.items()]
    path.write_text(json.dumps({"curve": points, "threads": 2}))
    assert replayed(log, "--cost-curve", path)["cost_curve"]["seconds"] == CURVE


def test_what_goes_wrong_is_one_sentence(log: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "a", "output": "b"}\n{"prompt": "a"}\n')
    edgespec("replay", bad).assert_refused(1, "bad.jsonl, line 2", "output")
    bad.write_text('\n{"prompt": "a", "output": ""}\n')
    edgespec("replay", bad).assert_refused(1, "holds no reply")
    edgespec("replay", tmp_path / "none").assert_refused(1, "cannot read", "No such file")
    edgespec("replay", log, "--max-nodes", 0).assert_refused(2, "--max-nodes takes 1 to 255")
    edgespec("replay", log, "--drafters", "x").assert_refused(2, "no drafter is called 'x'")
    edgespec("replay", log, "--drafters", "none").assert_refused(2, "--drafters none", "auto")
    edgespec("replay", log, "--plot", "x.pdf").assert_refused(2, ".png or .svg")
    for content in ("{}", "[1]", '{"1": 0}', '{"1": 0.01}', '{"2": 1, "3": 2}', "{", '{"a": 1}'):
        bad.write_text(content)
        with pytest.raises(OptionError, match="holds no curve"):
            read_prices(bad)
    edgespec("replay", log, "--cost-curve", bad).assert_refused(2, "holds no curve")
    edgespec("replay", log, "--cost-curve", tmp_path).assert_refused(2, "cannot read")
