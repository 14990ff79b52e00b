from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgespec.control import backend_speeds
from edgespec.control.backend_speeds import (
    ESTIMATED_LEAD,
    MEASURED_LEAD,
    Basis,
    Choice,
    Contender,
    as_candidate,
    remember_choice,
    remembered_choice,
    select,
)
from tests.support.targets import PLAN

MODEL, NAMES = b"a model's fingerprint", ("native", "llamacpp")


def contender(name: str, speed: float, basis: Basis = "measured", context: int = 512) -> Contender:
    plan = replace(PLAN, backend=name, context_length=context)
    return Contender(plan, {1: 1 / speed}, basis, share=0.2)


def test_small_leads_change_nothing() -> None:
    one = contender("native", 100)
    for speed, taken in ((99, "native"), (104, "native"), (106, "llamacpp")):
        other = contender("llamacpp", speed)
        assert select([one, other], "native").name == taken
    assert select([one, contender("llamacpp", 97)], "llamacpp").name == "llamacpp"
    assert select([one, contender("llamacpp", 95)], "llamacpp").name == "native"


def test_estimates_must_promise_more() -> None:
    assert MEASURED_LEAD < 1.2 < ESTIMATED_LEAD < 1.3
    for first, second in (("measured", "estimated"), ("estimated", "measured")):
        one, other = contender("native", 100, first), contender("llamacpp", 120, second)
        assert select([one, other], "native") is one
        assert "1.20 times as fast, and 1.25 is asked for" in as_candidate(other, one).verdict
        faster = contender("llamacpp", 130, second)
        assert select([one, faster], "native") is faster


def test_much_less_context_is_not_the_same_job() -> None:
    one, short = contender("native", 100), contender("llamacpp", 500, context=255)
    assert select([one, short], "llamacpp") is one
    assert "only 255 tokens" in as_candidate(short, one).verdict
    half = contender("llamacpp", 500, context=256)
    assert select([one, half], "native") is half


def test_what_could_not_be_timed_is_not_taken() -> None:
    one = contender("native", 100)
    failed = replace(contender("llamacpp", 500, "estimated"), failure="it fell over")
    assert select([one, failed], "llamacpp") is one
    assert as_candidate(failed, one).verdict == "could not be timed"
    assert select([failed], "native") is failed


def test_three_are_compared_as_two_are() -> None:
    speeds = {"native": 100.0, "llamacpp": 110.0, "onnx": 120.0}
    found = [contender(name, speed) for name, speed in speeds.items()]
    assert [select(found, name).name for name in speeds] == ["onnx"] * 3


def test_choices_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_CACHE", str(tmp_path))
    assert remembered_choice(MODEL, NAMES) is None
    remember_choice(MODEL, NAMES, Choice("llamacpp", settled=True))
    assert remembered_choice(MODEL, NAMES) == Choice("llamacpp", settled=True)
    assert remembered_choice(b"another", NAMES) is None
    assert remembered_choice(MODEL, (*NAMES, "onnx")) == Choice("llamacpp", settled=False)
    monkeypatch.setattr(backend_speeds, "__version__", "0.0.0")
    assert remembered_choice(MODEL, NAMES) == Choice("llamacpp", settled=False)
    (place,) = (tmp_path / "choices").iterdir()
    for damaged in ("", "[]", "{}"):
        place.write_text(damaged)
        assert remembered_choice(MODEL, NAMES) is None
