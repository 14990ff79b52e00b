"""Threads of a team: every unit computed once, sleeping and waking, ending, forking."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config
from numpy.typing import NDArray

from edgespec.backends.native.kernels import table as t
from edgespec.backends.native.kernels import work_sharing
from edgespec.backends.native.kernels.work_sharing import first_unit, next_unit
from edgespec.backends.native.target import NativeTarget
from edgespec.backends.passes import TokenTree
from edgespec.system.jit import kernel
from tests.support.targets import open_target

pytestmark = pytest.mark.skipif(config.DISABLE_JIT, reason="without the JIT there is one thread")


@kernel
def take_units(c, thread, count, hits):
    """Mark all units this thread is given."""
    unit = first_unit(c, thread, count, np.int64(8))
    while unit < count:
        hits[unit] += 1
        unit = next_unit(c, thread, unit, count, np.int64(8))


def words(shares: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A table and its team's words, with shares not yet split."""
    c = np.zeros(t.NUM_ENTRIES, np.int64)
    memory = np.zeros((work_sharing.MEMBERS + len(shares) * work_sharing.LINE) // 8, np.int64)
    c[t.TEAM] = memory.ctypes.data
    memory[work_sharing.SIZE // 8] = len(shares)
    for thread, share in enumerate(shares):
        memory[(work_sharing.MEMBERS + thread * work_sharing.LINE + work_sharing.SHARE) // 8] = (
            share
        )
    return c, memory


@settings(deadline=None)  # the first call compiles
@given(
    st.lists(st.integers(1, 1 << work_sharing.ONE), min_size=1, max_size=9),
    st.integers(1, 9),
    st.integers(0, 200),
    st.randoms(use_true_random=False),
)
def test_every_unit_is_taken_once(
    shares: list[int], threads: int, count: int, random: Random
) -> None:
    """Whatever the shares and the threads of the pass, which come one after the other."""
    c, memory = words(shares)
    threads = min(threads, len(shares))
    work_sharing.share_out(c, threads)
    hits = np.zeros(count, np.int64)
    order = list(range(threads))
    random.shuffle(order)
    for thread in order:
        take_units(c, thread, count, hits)
    assert (hits == 1).all()
    done = (work_sharing.MEMBERS + work_sharing.DONE) // 8
    assert memory[done :: work_sharing.LINE // 8].sum() == 8 * count


def test_nearly_equal_threads_split_a_few_units_evenly() -> None:
    """Units are heads there: one and three of four would take half as long again."""
    c, memory = words([(1 << 19) - 9000, (1 << 19) + 9000])
    work_sharing.share_out(c, 2)
    hits = np.zeros(4, np.int64)
    for thread in range(2):
        take_units(c, thread, 4, hits)
        assert hits.sum() == 2 * (thread + 1)


def test_shares_follow_what_threads_did() -> None:
    """A core three times as fast ends with three quarters."""
    c, memory = words([1 << 19, 1 << 19])
    done = (work_sharing.MEMBERS + work_sharing.DONE) // 8
    for _ in range(200):
        memory[done], memory[done + work_sharing.LINE // 8] = 3000, 1000
        work_sharing.share_out(c, 2)
    end = memory[(work_sharing.MEMBERS + work_sharing.TO) // 8]
    assert end / (1 << work_sharing.ONE) == pytest.approx(0.75, abs=0.01)


@pytest.fixture
def target() -> Iterator[NativeTarget]:
    with native("llama-Q8_0", 3) as opened:
        yield opened


def native(model: str, threads: int) -> NativeTarget:
    opened = open_target("native", model, threads=threads)
    assert isinstance(opened, NativeTarget)
    return opened


def logits(target: NativeTarget) -> NDArray[np.float32]:
    return target.own.forward(TokenTree.chain([5, 6, 7])).logits.copy()


def test_sleepers_wake(target: NativeTarget) -> None:
    """Pauses longer than threads spin, and passes of changing numbers of threads."""
    expected = logits(target)
    starts = target._program.starts
    for number in range(60):
        target._team.run((starts[0], starts[-1], 0, 0), 3, 0, 1 + number % 3)
        if number % 10 == 0:
            time.sleep(0.02)
            np.testing.assert_array_equal(logits(target), expected)


def test_threads_end_with_their_target() -> None:
    def helpers() -> int:
        return sum(thread.name.startswith("edgespec-") for thread in threading.enumerate())

    before = helpers()
    with native("llama-Q8_0", 3) as opened:
        assert helpers() == before + 2
        logits(opened)
    assert helpers() == before
    forgotten = native("llama-Q8_0", 2)
    logits(forgotten)
    del forgotten, opened
    assert helpers() == before


def test_two_models_compute_at_once() -> None:
    """From two threads of the program, each with a team of its own."""
    with (
        native("llama-Q8_0", 2) as one,
        native("llama-Q4_0", 2) as other,
    ):
        expected = {one: logits(one), other: logits(other)}
        wrong: list[str] = []

        def repeat(target: NativeTarget) -> None:
            for _ in range(30):
                if not np.array_equal(logits(target), expected[target]):
                    wrong.append(target.spec.name)

        threads = [threading.Thread(target=repeat, args=(target,)) for target in expected]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_gets_threads_of_its_own(target: NativeTarget) -> None:
    expected = logits(target)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if np.array_equal(logits(target), expected) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    np.testing.assert_array_equal(logits(target), expected)


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 6))
def test_more_threads_than_processors(threads: int) -> None:
    with native("llama-Q8_0", threads) as opened:
        assert opened._team.size == threads
        assert np.isfinite(logits(opened)).all()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not pin")
def test_threads_are_pinned_where_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others each to one processor; the caller keeps all."""
    allowed = os.sched_getaffinity(0)
    monkeypatch.setenv("EDGESPEC_PIN", "1")
    before = set(threading.enumerate())
    with native("llama-Q8_0", 2) as opened:
        logits(opened)
        (other,) = (
            thread
            for thread in set(threading.enumerate()) - before
            if thread.name.startswith("edgespec-")
        )
        assert other.native_id is not None
        assert len(os.sched_getaffinity(other.native_id)) == 1
    assert os.sched_getaffinity(0) == allowed
