"""Lines that wait to be answered: none is lost, none is answered twice, whoever dies."""

from __future__ import annotations

import threading
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from edgespec.tools.answer_file import Line
from edgespec.tools.cluster.work import Work


def lines(count: int) -> list[Line]:
    return [Line(number, f"prompt {number}", {}) for number in range(1, count + 1)]


@given(
    count=st.integers(0, 60),
    most=st.integers(1, 40),
    takers=st.integers(1, 5),
    fates=st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=60),
)
def test_every_line_gets_one_answer(
    count: int, most: int, takers: int, fates: list[tuple[bool, int]]
) -> None:
    """A worker dies (True) after some answers, or gives all of them."""
    work, told, dead = Work(lines(count)), Counter[int](), iter(fates)
    while taken := work.take(most, takers):
        dies, after = next(dead, (False, 0))
        assert len(taken) <= most
        answered = taken[:after] if dies else taken
        for line in answered:
            assert work.answered(line)
            assert not work.answered(line), "a second answer is refused"
            told[line.number] += 1
        if dies:
            left = taken[after:]
            for line in work.lost(left):
                assert work.answered(line)
                told[line.number] += 1
            work.give_back(left)
    assert told == Counter(range(1, count + 1))


def test_shares_shrink_towards_the_end() -> None:
    work, sizes = Work(lines(100)), []
    while len(sizes) < 100 and (taken := work.take(32, 2)):
        sizes.append(len(taken))
        for line in taken:
            work.answered(line)
    assert sizes[0] == 25 and sizes[-1] == 1
    assert sizes == sorted(sizes, reverse=True)


def test_a_line_that_kills_is_answered_alone_then_given_up() -> None:
    """Its neighbours are answered; it does not take them along a third time."""
    work, given_up, answered, shares = Work(lines(6)), [], set[int](), []
    while taken := work.take(6, 1):
        shares.append([line.number for line in taken])
        if all(line.number != 4 for line in taken):
            for line in taken:
                work.answered(line)
                answered.add(line.number)
            continue
        for line in work.lost(taken):
            work.answered(line)
            given_up.append(line.number)
        work.give_back(taken)
    assert given_up == [4]
    assert answered == {1, 2, 3, 5, 6}
    assert shares.count([4]) >= 2


def test_who_finds_nothing_waits_for_what_others_hold() -> None:
    work = Work(lines(1))
    (held,) = work.take(1, 1)
    got: list[list[Line]] = []
    waiting = threading.Thread(target=lambda: got.append(work.take(1, 1)))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    work.give_back([held])
    waiting.join(5)
    assert got == [[held]]
    work.answered(held)
    assert work.take(1, 1) == []


def test_stopping_lets_all_go() -> None:
    work = Work(lines(1))
    work.take(1, 1)
    waiting = threading.Thread(target=work.take, args=(1, 1))
    waiting.start()
    work.stop()
    waiting.join(5)
    assert not waiting.is_alive()
