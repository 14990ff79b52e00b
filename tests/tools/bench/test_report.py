"""The report on made-up numbers, as text, as JSON and as a picture."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edgespec.errors import EdgeSpecError, OptionError
from edgespec.tools.bench.kernel_plot import Plotter
from edgespec.tools.bench.kernel_report import KernelReport, Model, PeerCurve, RoofRates
from edgespec.tools.bench.kernel_text import lines as text_lines
from edgespec.tools.bench.machine import Machine
from edgespec.tools.bench.spread import Spread

MACHINE = Machine("A processor", 4, "Linux 6", {"edgespec": "0.1.0", "python": "3.11.7"}, 0.5)


def spread(value: float) -> Spread:
    return Spread(value, 0.9 * value, 1.2 * value)


def made_up() -> KernelReport:
    """100 MB read in 5, 8 and 40 ms; 10 GB/s in memory, 100 GMAC/s, 50 million a token."""
    peer = PeerCurve(
        "llamacpp", "llama.cpp", "1.2", "the same file", 100_000_000,
        {1: spread(0.04), 4: spread(0.08), 64: spread(0.4)},
    )  # fmt: skip
    dead = PeerCurve("onnx", "ONNX Runtime", "1.3", "", 0, {}, "ONNX Runtime crashed with SIGILL")
    return KernelReport(
        machine=MACHINE,
        others_processors=0.0,
        model=Model("/models/some.gguf", "some.gguf", "Q8_0", 90_000_000, 10_000_000, 50_000_000),
        threads=2,
        isa="avx2",
        context=256,
        rounds=3,
        roofs=RoofRates(spread(10e9), spread(12e9), spread(100e9), 100_000_000, "a multiply"),
        curve={1: spread(0.0125), 4: spread(0.04), 64: spread(0.04)},
        peers=(peer, dead),
    )


def test_energy_is_told_by_token() -> None:
    watts = {1: 20.0, 4: 30.0, 64: 40.0}
    (peer, *rest), silent = made_up().peers, made_up()
    found = replace(silent, watts=watts, peers=(replace(peer, watts=watts), *rest))
    values = found.as_dict()
    assert [each["joules_per_token"] for each in values["curve"]] == [0.25, 0.3, 0.025]
    assert values["peers"][0]["curve"][0]["joules_per_token"] == pytest.approx(0.8)
    text = list(text_lines(found))
    assert "  joules a token: 0.25 at n=1, 0.3 at n=4, 0.025 at n=64" in text
    assert "  joules a token: 0.8 at n=1, 0.6 at n=4, 0.25 at n=64" in text
    assert max(map(len, text)) <= 80
    assert not any("energy" in line for line in text)
    assert [each["joules_per_token"] for each in silent.as_dict()["curve"]] == [None] * 3
    assert sum("energy: not available" in line for line in text_lines(silent)) == 1


def test_passes_are_held_against_the_limits() -> None:
    one, four, many = made_up().passes
    assert (one.ratio, four.ratio) == (1.0, pytest.approx(3.2))
    assert one.bytes_per_second == pytest.approx(8e9)
    assert one.read_share == pytest.approx(0.8)
    assert one.multiplications_per_second == pytest.approx(4e9)
    assert one.multiply_share == pytest.approx(0.04)
    assert [found.bound for found in (one, four, many)] == ["memory", "neither", "multiply"]


def test_the_text_says_everything_in_80_columns() -> None:
    found = list(text_lines(made_up()))
    text = "\n".join(found)
    assert max(map(len, found)) <= 80
    for word in (
        "some.gguf, Q8_0", "90.0 MB of weights", "10.0 MB of keys and values (256 tokens)",
        "50.0 million times", "A processor, 4 cores", "load average 0.5", "python 3.11.7",
        "2 threads; 3 rounds", "a multiply", "EdgeSpec, avx2", "T(n)/T(1)", "12.50",
        "11.25-15.00", "80%", "memory", "neither", "llama.cpp 1.2: the same file", "3.20x", "0.31",
        "! ONNX Runtime crashed with SIGILL",
    ):  # fmt: skip
        assert word in text
    assert "other programs" not in text


def test_a_busy_machine_is_warned_of() -> None:
    busy = replace(made_up(), others_processors=1.3)
    assert "1.3 of 4 processors" in busy.warning
    assert "1.3 of 4 processors" in " ".join(text_lines(busy))
    assert busy.as_dict()["machine"]["warning"] == busy.warning


def test_json_holds_the_same_numbers() -> None:
    values = json.loads(json.dumps(made_up().as_dict()))
    assert values["curve"][1]["seconds"] == 0.04
    assert values["curve"][1]["bound"] == "neither"
    assert values["roofs"]["read"]["gigabytes_per_second"] == pytest.approx(10.0)
    alive, dead = values["peers"]
    assert alive["curve"][0]["times_ours"] == pytest.approx(3.2)
    assert alive["curve"][2]["ours_to_its_single"] == pytest.approx(1.0)
    assert (alive["error"], dead["error"]) == (None, "ONNX Runtime crashed with SIGILL")
    assert dead["curve"] == []


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_plot_is_drawn(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    place = tmp_path / f"kernels.{suffix}"
    Plotter(place).draw(made_up())
    start = place.read_bytes()[:200]
    assert start.startswith(b"\x89PNG") if suffix == "png" else b"<?xml" in start


def test_what_stands_in_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    place = tmp_path / "kernels.svg"
    Plotter(place).draw(made_up())
    drawn = place.read_text(encoding="utf-8")
    for text in ("EdgeSpec", "llama.cpp", "n, tokens in one pass", "T(n) / T(1)", "GB/s"):
        assert text in drawn
    assert "multiplying's limit, 100 GMAC/s" in drawn
    assert "ONNX Runtime" not in drawn


def test_a_plot_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(EdgeSpecError, match=r"pip install 'edgespec\[bench\]'"):
        Plotter(tmp_path / "kernels.png")


def test_a_plot_that_cannot_be_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(OptionError, match="no folder"):
        Plotter(tmp_path / "nowhere" / "kernels.png")
    (tmp_path / "taken.png").mkdir()
    with pytest.raises(EdgeSpecError, match=r"cannot write the plot to .*taken\.png"):
        Plotter(tmp_path / "taken.png").draw(made_up())
