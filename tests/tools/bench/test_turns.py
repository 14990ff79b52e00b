"""Turns alternate; another process that fails, hangs on nothing or dies costs a sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgespec.system.child_process import Child, PeerError
from edgespec.system.energy import EnergyMeter
from edgespec.tools.bench import curve
from edgespec.tools.bench.machine import Machine, Others, _own_busy_s
from edgespec.tools.bench.turns import gauged, take_turns

PROGRAM = """
import os, signal, sys
from edgespec.system.child_process import serve

def start(request):
    print("what an engine has to say")
    if request == "refuse":
        raise RuntimeError("no such file")
    return f"hello {request}", answer

def answer(question):
    if question == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if question == "leave":
        sys.exit(3)
    return [question]

serve(start)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that answers with what it was asked, until it is told to die."""
    (tmp_path / "echoing_peer.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    return "echoing_peer"


def test_a_child_answers(program: str, capfd: pytest.CaptureFixture[str]) -> None:
    with Child(program, "you", name="Echo") as child:
        assert child.greeting == "hello you"
        assert [child.ask(question) for question in (1, "two")] == [[1], ["two"]]
    assert capfd.readouterr() == ("", "")


def test_a_child_that_refuses_is_quoted(program: str) -> None:
    with pytest.raises(PeerError, match="^Echo failed: RuntimeError: no such file$"):
        Child(program, "refuse", name="Echo")


@pytest.mark.skipif(sys.platform == "win32", reason="signals have no names there")
def test_a_crash_is_told_with_what_helps(program: str) -> None:
    with Child(program, "", name="Echo", crash_advice="; do this") as child:
        with pytest.raises(PeerError, match="^Echo crashed with SIGSEGV; do this$"):
            child.ask("crash")
        with pytest.raises(PeerError):  # and again, not a broken pipe
            child.ask(1)


def test_a_child_that_leaves_is_told(program: str) -> None:
    with (
        Child(program, "", name="Echo") as child,
        pytest.raises(PeerError, match="^Echo failed: "),
    ):
        child.ask("leave")


def test_everyone_has_a_turn_in_alternating_order() -> None:
    asked: list[str] = []

    def ask(name: str) -> list[float]:
        asked.append(name)
        return [float(len(asked))]

    members = {name: (lambda name=name: ask(name)) for name in "ab"}
    seen: list[tuple[int, int]] = []
    found, failed = take_turns({1: members}, 2, lambda done, total: seen.append((done, total)))
    assert asked == ["b", "a", "a", "b", "b", "a"]
    assert found == {1: {"a": [3.0, 6.0], "b": [4.0, 5.0]}}  # the first round is not counted
    assert failed == {}
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_who_fails_is_left_out_and_the_others_go_on() -> None:
    asked: list[str] = []

    def fail() -> list[float]:
        asked.append("bad")
        raise PeerError("it broke")

    groups = {n: {"good": lambda: [1.0], "bad": fail} for n in (1, 2)}
    found, failed = take_turns(groups, 3)
    assert failed == {"bad": "it broke"}
    assert asked == ["bad"]
    assert [found[n]["good"] for n in (1, 2)] == [[1.0] * 3] * 2


def test_a_turn_warms_up_before_it_counts() -> None:
    passes = iter([0.02, 0.02, 0.001, *[0.006] * 20])
    assert curve.turn(lambda: next(passes)) == [0.001, *[0.006] * 4]


def test_a_turn_of_long_passes_is_short() -> None:
    passes = iter([1.0] * 20)
    assert curve.turn(lambda: next(passes)) == [1.0] * curve.LEAST_PASSES


def test_what_children_do_is_not_put_on_others() -> None:
    before = _own_busy_s()
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert _own_busy_s() - before >= 0.25  # clocks tick in hundredths
    assert Others().processors() >= 0.0


def test_the_machine_is_described() -> None:
    here = Machine.here()
    assert here.processor and here.system
    assert here.cores >= 1
    assert {"edgespec", "python", "numba", "llvmlite", "numpy"} <= set(here.versions)


def test_energy_is_gauged_in_each_turn(tmp_path: Path) -> None:
    """Also where the counter begins anew; where there is none, nothing is noted."""
    watts: list[float] = []
    assert gauged(lambda: [1.0], EnergyMeter(tmp_path / "none"), watts)() == [1.0]
    assert not watts
    zone, now = tmp_path / "sys/class/powercap/intel-rapl:0", [0.0]
    zone.mkdir(parents=True)
    (zone / "max_energy_range_uj").write_text("10000000")
    counts = iter([4_000_000, 1_000_000])

    def work() -> list[float]:
        (zone / "energy_uj").write_text(f"{next(counts)}\n")
        now[0] += 2.0
        return [2.0]

    (zone / "energy_uj").write_text("1000000")
    ask = gauged(work, EnergyMeter(tmp_path, lambda: now[0]), watts)
    assert (ask(), ask()) == ([2.0], [2.0])
    assert watts == [1.5, 3.5]
