"""How a team splits a stage between a fast and a slow core, which one machine can only play.

Two real threads meet at real barriers; a unit of work is a chain of multiplications, several times
as long on the slow thread. "even" splits every stage in halves, "rest" leaves the last eighth to
whoever is free, "measured" also learns shares from earlier passes, as the backend does. The bound:
both cores busy all the time.

usage: python benchmarks/unequal_cores.py [--units 88] [--stages 120] [--passes 60]
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels import table, work_sharing
from edgespec.backends.native.kernels.codegen import atomics
from edgespec.backends.native.kernels.work_sharing import (
    barrier,
    first_unit,
    next_pass,
    next_unit,
    share_out,
    start_pass,
)
from edgespec.system.jit import kernel

UNIT_STEPS = 400
EVEN, REST, MEASURED = range(3)


@kernel
def _units(c, thread, first, last, steps, values):
    value = values[thread]
    for _ in range((last - first) * steps):
        value = value * 1.0000001 + 1e-9
    values[thread] = value


@kernel
def _stages(c, thread, count, stages, mode, steps, values):
    for _ in range(stages):
        if mode == EVEN:
            _units(c, thread, count * thread // 2, count * (thread + 1) // 2, steps, values)
        else:
            unit = first_unit(c, thread, count, np.int64(1))
            while unit < count:
                _units(c, thread, unit, unit + 1, steps, values)
                unit = next_unit(c, thread, unit, count, np.int64(1))
        barrier(c, thread, np.int64(2))


@kernel
def _follow(c, count, stages, mode, steps, values):
    seen = np.int64(0)
    while True:
        seen = next_pass(c, np.int64(1), seen)
        if seen & 255 == 0:
            return
        _stages(c, np.int64(1), count, stages, mode[0], steps, values)


@kernel
def _lead(c, count, stages, mode, steps, values):
    share_out(c, 2)
    start_pass(c, np.int64(2))
    _stages(c, np.int64(0), count, stages, mode[0], steps, values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--units", type=int, default=88)
    parser.add_argument("--stages", type=int, default=120)
    parser.add_argument("--passes", type=int, default=60)
    options = parser.parse_args()
    print(f"{'slow core':<12}{'even':>12}{'rest':>12}{'measured':>12}{'bound':>12}  share")
    for factor in (1, 2, 3):
        times, share = _compare(factor, options)
        bound = times[EVEN] / factor * 2 / (1 + 1 / factor)
        cells = "".join(f"{1e3 * seconds:>9.2f} ms" for seconds in (*times, bound))
        print(f"1/{factor} as fast {cells}  {share:.2f}")


def _compare(factor: int, options: argparse.Namespace) -> tuple[list[float], float]:
    c = np.zeros(table.NUM_ENTRIES, np.int64)
    words = _words(c)
    mode, values = np.zeros(1, np.int64), np.ones(2)
    arguments = (options.units, options.stages, mode)
    slow = threading.Thread(target=_follow, args=(c, *arguments, UNIT_STEPS * factor, values))
    slow.start()
    share = words[(work_sharing.MEMBERS + work_sharing.SHARE) // 8 :: work_sharing.LINE // 8][:2]
    learnt = np.full(2, 1 << work_sharing.ONE - 1)
    seconds: list[list[float]] = [[], [], []]
    for _ in range(options.passes):
        for mode[0] in (EVEN, REST, MEASURED):
            share[:] = learnt if mode[0] == MEASURED else 1 << work_sharing.ONE - 1
            start = time.perf_counter()
            _lead(c, *arguments, UNIT_STEPS, values)
            seconds[mode[0]].append(time.perf_counter() - start)
            if mode[0] == MEASURED:
                share_out(c, 2)  # learn now: the next pass is of another kind
                learnt = share.copy()
            words[(work_sharing.MEMBERS + work_sharing.DONE) // 8 :: work_sharing.LINE // 8][:2] = 0
    work_sharing.dismiss(c, 2)
    slow.join()
    settled = [statistics.median(times[len(times) // 2 :]) for times in seconds]
    return settled, float(learnt[0] / learnt.sum())


def _words(c: NDArray[np.int64]) -> NDArray[np.int64]:
    """The words of a team of two that never sleeps."""
    words = np.zeros((work_sharing.MEMBERS + 3 * work_sharing.LINE) // 8, np.int64)
    words = words[-words.ctypes.data % work_sharing.LINE // 8 :]
    words[work_sharing.SPINS // 8], words[work_sharing.SIZE // 8] = 1 << 40, 2
    c[table.TEAM] = words.ctypes.data
    c[table.ACQUIRE], c[table.RELEASE] = atomics.ACQUIRE, atomics.RELEASE
    return words


if __name__ == "__main__":
    main()
