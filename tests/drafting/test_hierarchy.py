from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_counts import NaiveTable

from edgespec.drafting.proposal import Proposal
from edgespec.drafting.rates import RATE
from edgespec.drafting.tables.followers import CHECK, FIRST, TOTAL, count_text
from edgespec.drafting.text.hierarchy import HierarchyDrafter
from edgespec.drafting.text.history import ORDERS, WAYS, History
from edgespec.drafting.text.store import Store, StoreHeader, write_store
from edgespec.drafting.text.store_builder import sorted_by_context
from edgespec.drafting.tree import DraftTree, StepOutcome
from edgespec.drafting.tree import Path as HopedFor
from tests.support.draft_trees import TEXTS, check_tree, children

FINGERPRINT = bytes(16)


@pytest.fixture(autouse=True)
def data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("EDGESPEC_DATA", str(tmp_path))
    monkeypatch.delenv("EDGESPEC_HISTORY", raising=False)
    return tmp_path


def corpus_of(text: list[int], path: Path) -> Store:
    tokens = np.array([-1, *text], np.int32)
    header = StoreHeader(len(tokens), 1, 0, 50, FINGERPRINT, bytes(16))
    write_store(path, header, tokens, sorted_by_context(tokens))
    return Store(path, FINGERPRINT)


@settings(max_examples=50, deadline=None)
@given(prompt=TEXTS, reply=TEXTS)
def test_stores_speak_in_order_of_context_then_locality(
    prompt: list[int], reply: list[int]
) -> None:
    drafter = HierarchyDrafter()
    drafter.reset(prompt)
    drafter.extend(reply)
    text = prompt + reply
    tables = [NaiveTable(ORDERS, WAYS), NaiveTable(ORDERS, WAYS)]
    tables[0].feed(text, len(prompt))
    tables[1].feed(prompt)
    rates = drafter._rates[:, RATE].tolist()
    expected: dict[int, float] = {}
    left = 1.0
    for order in range(min(ORDERS, len(text)), 0, -1):
        context = tuple(text[-order:])
        for level, table in enumerate(tables):
            total = table.totals.get(context, 0)
            kind = (level * ORDERS + order - 1) * 3 + (0 if total <= 1 else 1 if total <= 3 else 2)
            new = {
                token: rates[kind] * left * weight / total
                for token, weight in table.rows.get(context, [])
                if token not in expected
            }
            expected |= new
            left -= sum(new.values())
    tree = drafter.propose(200)
    found = {
        int(tree.tokens[c]): float(tree.p_accept[c])
        for c in range(1, len(tree))
        if tree.parents[c] == 0
    }
    assert set(found) == {token for token, p in expected.items() if p >= 0.01}
    for token, p_accept in found.items():
        assert p_accept == pytest.approx(expected[token], rel=1e-5)


def test_a_corpus_knows_what_the_text_does_not(tmp_path: Path) -> None:
    drafter = HierarchyDrafter(corpus=corpus_of([1, 2, 3, 4, 5, 6, 7], tmp_path / "s"))
    drafter.reset([9, 2, 3])
    for _ in range(130):  # its pages are given back in between
        tree = drafter.propose(3)
    assert tree.tokens.tolist() == [3, 4, 5, 6]
    check_tree(tree, 3, 3)


def test_the_longest_context_of_a_corpus_speaks_first(tmp_path: Path) -> None:
    """Seven tokens tell which of two continuations it is; the four that the text knows do not."""
    known = [1, 2, 3, 4, 5, 6, 7, 20, 21, 22, 9, 9, 9, 4, 5, 6, 7, 30, 31]
    drafter = HierarchyDrafter(corpus=corpus_of(known, tmp_path / "s"))
    drafter.reset([4, 5, 6, 7, 30, 1, 2, 3, 4, 5, 6, 7])
    tree = drafter.propose(8)
    first = children(tree, 0)
    assert first[:2] == [20, 30]
    assert children(tree, 1) == [21]
    for _ in range(30):
        drafter.propose(8)
        drafter.observe(StepOutcome(DraftTree.root(7), [0], 20, [20]))
    tree = drafter.propose(8)
    assert float(tree.p_accept[1]) > 0.6  # it was right


def test_a_corpus_follows_what_is_hoped_for(tmp_path: Path) -> None:
    corpus = corpus_of(list(range(1, 30)), tmp_path / "s")
    drafter = HierarchyDrafter(corpus=corpus)
    drafter.reset([40, 5, 6])
    tree = drafter.propose_after(HopedFor([7, 8]), 3, Proposal(1))
    assert tree.tokens.tolist() == [8, 9, 10, 11]


def test_a_users_replies_are_remembered_by_the_next_run(data_folder: Path) -> None:
    drafter = HierarchyDrafter(history=History(FINGERPRINT, 50))
    drafter.reset([1, 2])
    drafter.extend([3, 4, 5, 6])
    assert drafter.size_bytes <= drafter.max_bytes
    drafter.close()
    later = HierarchyDrafter(history=History(FINGERPRINT, 50))
    later.reset([4, 5])
    assert children(later.propose(4), 0) == [6]
    other = HierarchyDrafter(history=History(bytes(reversed(range(16))), 50))
    other.reset([4, 5])
    assert children(other.propose(4), 0) == []
    (kept,) = (data_folder / "history").iterdir()
    if os.name != "nt":
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700


def test_prompts_are_not_kept() -> None:
    drafter = HierarchyDrafter(history=History(FINGERPRINT, 50))
    drafter.reset([4, 5, 6, 7])
    drafter.extend([8])
    drafter.close()
    later = HierarchyDrafter(history=History(FINGERPRINT, 50))
    later.reset([4, 5])
    assert children(later.propose(4), 0) == []


def test_who_wants_no_history_has_none(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_HISTORY", "0")
    drafter = HierarchyDrafter(history=History(FINGERPRINT, 50))
    drafter.reset([1, 2])
    drafter.extend([3, 4])
    drafter.close()
    assert list(data_folder.iterdir()) == []


def test_a_damaged_history_is_reported_and_begun_anew(
    data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = data_folder / "history" / f"{FINGERPRINT.hex()}.store"
    place.parent.mkdir()
    place.write_bytes(b"nonsense")
    drafter = HierarchyDrafter(history=History(FINGERPRINT, 50))
    assert "starting a new history" in capsys.readouterr().err
    drafter.reset([1, 2])
    drafter.extend([3, 4])
    drafter.close()
    assert History(FINGERPRINT, 50).num_tokens == 2


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_flipped_byte_of_a_history_passes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGESPEC_DATA", str(tmp_path_factory.mktemp("data")))
        written = History(FINGERPRINT, 50)
        written.num_tokens = 7
        written.save()
        (path,) = (Path(os.environ["EDGESPEC_DATA"]) / "history").iterdir()
        raw = bytearray(path.read_bytes())
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
        path.write_bytes(raw[: data.draw(st.sampled_from([len(raw), len(raw) - 1, 0]))])
        assert History(FINGERPRINT, 50).num_tokens == 0


@pytest.mark.parametrize(
    ("column", "value"),
    [(FIRST, 50), (FIRST, -2), (FIRST + WAYS, -5), (FIRST + WAYS, 2**30), (TOTAL, 0), (TOTAL, -1)],
)
def test_rows_that_no_history_has_are_refused_however_well_signed(column: int, value: int) -> None:
    written = History(FINGERPRINT, 50)
    text = np.array([1, 2, 3, 1, 2, 4], np.int32)
    count_text(written.rows, np.zeros((ORDERS, 2), np.int64), text, 0, 0)
    written.rows[int(np.flatnonzero(written.rows[:, CHECK])[0]), column] = value
    written.num_tokens = 6
    written.save()
    assert History(FINGERPRINT, 50).num_tokens == 0


def test_a_small_drafter_keeps_no_history() -> None:
    drafter = HierarchyDrafter(64 * 1024, history=History(FINGERPRINT, 50))
    assert drafter.size_bytes <= 64 * 1024
