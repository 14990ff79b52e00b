from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.control.estimated_curve import bytes_per_second, estimated_curve, read_bytes
from edgespec.control.expected_speed import (
    P_RIGHT,
    USUAL_SHARE,
    RepeatingShare,
    expected_speed,
    plain_speed,
    seen_share,
)
from edgespec.models.open_model import open_model
from tests.support.machines import model
from tests.support.random_models import MODELS, write

FLAT = {1: 1.0, 4: 1.1, 8: 1.5, 16: 2.6}
STEEP = {1: 1.0, 4: 3.9, 8: 7.9, 16: 16.0}
MODEL = b"a model's fingerprint"


def test_speed_is_what_the_curve_and_the_text_allow() -> None:
    assert plain_speed(FLAT) == expected_speed(FLAT, 0.0) == 1.0
    eight = (1 - P_RIGHT**8) / (1 - P_RIGHT) / 1.5  # the best step of a text that only repeats
    assert expected_speed(FLAT, 1.0) == pytest.approx(eight)
    assert expected_speed(FLAT, 0.5) == pytest.approx(2 / (1 + 1 / eight))
    assert expected_speed(STEEP, 1.0) == 1.0  # no draft pays


@given(st.floats(0, 1), st.integers(1, 10_000))
def test_a_share_is_found_in_what_it_brings(share: float, tokens: int) -> None:
    gained = (1 - P_RIGHT**8) / (1 - P_RIGHT)
    steps = tokens * (1 - share) + tokens * share / gained
    found = seen_share(FLAT, tokens, round(steps))
    assert found == pytest.approx(share, abs=1 / tokens / (1 - 1 / gained) + 1e-9)
    assert seen_share(STEEP, tokens, round(steps)) is None


def test_what_repeats_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_DATA", str(tmp_path / "data"))
    known = RepeatingShare.of(MODEL)
    known.save()
    assert known.share == USUAL_SHARE and not (tmp_path / "data").exists()
    for _ in range(40):
        known.learn(FLAT, 1000, 190)
    assert 0.9 < known.share <= 1.0
    known.save()
    assert RepeatingShare.of(MODEL) == known
    assert RepeatingShare.of(b"another").share == USUAL_SHARE
    known.learn(FLAT, 8000, 8000)  # newer replies count for more
    assert known.share < 0.55
    assert known.path is not None
    for damaged in ("", "[]", json.dumps({"share": 2.0, "tokens": 1}), json.dumps({"share": 0.1})):
        known.path.write_text(damaged)
        assert RepeatingShare.of(MODEL).share == USUAL_SHARE
    monkeypatch.setenv("EDGESPEC_HISTORY", "0")
    assert RepeatingShare.of(MODEL).path is None


def test_a_curve_nobody_measured() -> None:
    speed = max(bytes_per_second(2) for _ in range(3))  # others may want a processor
    assert speed > 1e8
    native, other = (estimated_curve(name, 10**8, 8, speed) for name in ("native", "llamacpp"))
    assert tuple(native) == (1, 2, 4, 8)
    assert 0 < native[1] < native[8] < other[8] < 60


def test_an_embedding_that_is_only_looked_up_is_not_read() -> None:
    spec, tensors = model()
    whole = sum(info.size_bytes for info in tensors)
    (embedding,) = (info for info in tensors if info.name == "token_embd.weight")
    assert read_bytes(spec, tensors) == whole - (not spec.tied_embeddings) * embedding.size_bytes


def test_experts_that_take_no_part_are_not_read(tmp_path: Path) -> None:
    """4 of 16 experts take part, and blocks that predict further tokens do not."""
    with open_model(write(MODELS["qwen35moe"](), tmp_path / "m.gguf")) as file:
        used = [info for info in file.tensors.values() if info.name not in file.spec.unused]
        experts = sum(info.size_bytes for info in used if "_exps" in info.name)
        rest = sum(info.size_bytes for info in used if "_exps" not in info.name)
        if not file.spec.tied_embeddings:
            rest -= file.tensors["token_embd.weight"].size_bytes
        assert experts and len(used) < len(file.tensors)
        assert read_bytes(file.spec, file.tensors.values()) == rest + experts // 4
