"""Statistics between runs: what is kept, what is refused, and who may read it."""

from __future__ import annotations

import hashlib
import os
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgespec.drafting.market.acceptance import MOST_COUNTED, AcceptanceStatistics
from edgespec.drafting.market.kept_statistics import KeptStatistics
from edgespec.drafting.market.market import Market
from edgespec.drafting.text.suffix_automaton import SuffixAutomatonDrafter
from edgespec.drafting.tree import DraftTree, StepOutcome

MODEL = bytes(range(16))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGESPEC_DATA", str(tmp_path))
    monkeypatch.delenv("EDGESPEC_HISTORY", raising=False)
    return tmp_path / "acceptance"


def learnt(model: bytes = MODEL, names: tuple[str, ...] = ("a", "b")) -> KeptStatistics:
    statistics = KeptStatistics(model, names)
    statistics.table[1, 3, 2] = (1.5, 7.0)
    statistics.save()
    return statistics


def test_what_was_learnt_comes_back(folder: Path) -> None:
    before = learnt()
    after = KeptStatistics(MODEL, ("a", "b"))
    assert np.array_equal(after.table, before.table)
    assert after.p_accept(1, 0.35, 3) != AcceptanceStatistics(3).p_accept(1, 0.35, 3)
    (file,) = folder.iterdir()
    assert file.stat().st_size == 32 + 3 * 10 * 5 * 2 * 8 + 16
    if sys.platform != "win32":
        assert file.stat().st_mode & 0o777 == 0o600


def test_another_model_or_other_drafters_start_anew() -> None:
    learnt()
    for model, names in ((bytes(16), ("a", "b")), (MODEL, ("b", "a")), (MODEL, ("a",))):
        fresh = KeptStatistics(model, names)
        assert np.array_equal(fresh.table, AcceptanceStatistics(len(names) + 1).table)


def test_a_market_keeps_what_it_saw_when_it_closes(folder: Path) -> None:
    market = Market([SuffixAutomatonDrafter()], KeptStatistics(MODEL, ["suffix-automaton"]))
    market.reset([1, 2, 3, 1, 2])
    tree = market.propose(4)
    market.observe(StepOutcome(DraftTree.root(2), [0], 3, [3]))
    market.extend([3])
    assert not folder.exists()
    market.close()
    assert len(tree) > 1
    assert KeptStatistics(MODEL, ["suffix-automaton"]).table[1, :, 0, 0].sum() == 1.0


def test_nothing_new_is_not_written(folder: Path) -> None:
    KeptStatistics(MODEL, ("a",)).save()
    assert not folder.exists()


def test_nothing_is_kept_when_the_user_wants_that(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learnt()
    monkeypatch.setenv("EDGESPEC_HISTORY", "0")
    quiet = learnt(bytes(16))
    assert len(list(folder.iterdir())) == 1
    assert np.array_equal(KeptStatistics(MODEL, ("a", "b")).table, AcceptanceStatistics(3).table)
    quiet.save()


def test_a_folder_that_cannot_be_written_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("EDGESPEC_DATA", str(tmp_path / "file"))
    learnt()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(place=st.integers(0, 3000), change=st.integers(1, 255), cut=st.integers(0, 3000))
def test_any_damage_is_told_of_and_not_used(
    folder: Path, capsys: pytest.CaptureFixture[str], place: int, change: int, cut: int
) -> None:
    learnt()
    (file,) = folder.iterdir()
    raw = bytearray(file.read_bytes())
    raw[place % len(raw)] ^= change
    for damaged in (bytes(raw), bytes(raw)[: cut % len(raw)]):
        file.write_bytes(damaged)
        capsys.readouterr()
        found = KeptStatistics(MODEL, ("a", "b"))
        assert np.array_equal(found.table, AcceptanceStatistics(3).table)
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "cell",
    [
        (np.nan, 1.0),
        (-1.0, 1.0),
        (1.0, -1.0),
        (1.0, np.nan),
        (1.0, np.inf),
        (2 * MOST_COUNTED, 1.0),
    ],
    ids=str,
)
def test_counts_that_cannot_be_are_refused_even_with_a_checksum(
    folder: Path, capsys: pytest.CaptureFixture[str], cell: tuple[float, ...]
) -> None:
    learnt()
    (file,) = folder.iterdir()
    raw = bytearray(file.read_bytes())
    raw[32 + 14 * 8 : 32 + 16 * 8] = struct.pack("<2d", *cell)
    raw[-16:] = hashlib.blake2b(bytes(raw[:-16]), digest_size=16).digest()
    file.write_bytes(raw)
    found = KeptStatistics(MODEL, ("a", "b"))
    assert np.array_equal(found.table, AcceptanceStatistics(3).table)
    assert "starting new statistics" in capsys.readouterr().err


def test_no_partial_file_stays(folder: Path) -> None:
    learnt()
    assert [path.suffix for path in folder.iterdir()] == [".stats"]
    assert not any(str(os.getpid()) in path.name for path in folder.iterdir())
