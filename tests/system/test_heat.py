"""Half an hour on simulated phones: threads are lowered while that keeps more of the speed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from edgespec.system import heat as module
from edgespec.system.heat import Heat

HALF_HOUR_S = 1800.0
PASS_S = 0.05


@dataclass
class Phone:
    """A machine whose clock falls while it is hot; threads warm it, and it cools by itself.

    Full load reaches the limit after 5 minutes. `speed` is what so many threads do at full clock.
    """

    speed: Callable[[int], float]
    cores: int = 4
    sustained: float = 2.0
    """Threads whose heat it can get rid of."""
    hot_clock: float = 0.5
    hides: bool = False
    """Whether it keeps its clock to itself."""
    now: float = 0.0
    warmth: float = 0.0
    clock: float = 1.0
    done: float = 0.0
    used: list[int] = field(default_factory=list)

    def rate(self) -> float | None:
        return None if self.hides else self.clock * 2e6

    def time(self) -> float:
        return self.now

    def run(self, threads: int) -> float:
        """One pass; returns its seconds."""
        rate = self.speed(threads) * self.clock
        seconds = PASS_S * self.speed(self.cores) / rate
        self.now += seconds
        self.done += 1
        self.used.append(threads)
        # At full load the limit, 1, is reached after 300 s; a throttled core warms by its square.
        heat = (threads * self.clock**2 - self.sustained) / abs(self.cores - self.sustained)
        self.warmth = max(0.0, self.warmth + heat * seconds / 300)
        if self.warmth >= 1.0:
            self.clock = self.hot_clock
        elif self.warmth < 0.9:
            self.clock = 1.0
        return seconds


def fixed(phone: Phone, threads: int) -> float:
    while phone.now < HALF_HOUR_S:
        phone.run(threads)
    return phone.done


def followed(phone: Phone) -> float:
    heat = Heat(phone.cores, phone.rate, phone.time)
    while phone.now < HALF_HOUR_S:
        heat.observe(1, phone.run(heat.threads))
    return phone.done


def bound(limit: float) -> Callable[[int], float]:
    """Memory that so many threads use up."""
    return lambda threads: min(float(threads), limit)


PHONES: dict[str, Callable[[], Phone]] = {
    "computing": lambda: Phone(bound(9.0)),
    "memory": lambda: Phone(bound(2.5)),
    "memory of two": lambda: Phone(bound(2.0)),
    "falls to a third": lambda: Phone(bound(3.0), hot_clock=1 / 3),
    "eight cores": lambda: Phone(bound(5.0), cores=8, sustained=4.0),
    "one thread": lambda: Phone(bound(2.0), sustained=1.0, hot_clock=0.4),
    "fewer do not help": lambda: Phone(bound(9.0), sustained=0.2),
    "never warm": lambda: Phone(bound(9.0), sustained=5.0),
}


@pytest.mark.parametrize("name", PHONES)
def test_most_of_the_best_fixed_speed_is_kept(name: str) -> None:
    best = max(fixed(PHONES[name](), threads) for threads in range(1, PHONES[name]().cores + 1))
    assert followed(PHONES[name]()) >= 0.75 * best


def test_threads_are_lowered_before_a_minute_of_heat_is_over() -> None:
    phone = PHONES["memory of two"]()
    followed(phone)
    cool = int(300 / PASS_S)
    assert set(phone.used[: cool - 10]) == {4}
    assert set(phone.used[cool : cool + int(60 / PASS_S)]) > {4}


def test_where_the_clock_stands_slow_passes_are_no_heat() -> None:
    """A long context, or another program."""
    phone = PHONES["never warm"]()
    heat = Heat(phone.cores, phone.rate, phone.time)
    for number in range(40_000):
        seconds = phone.run(heat.threads) * (3.0 if number > 5000 else 1.0)
        heat.observe(1, seconds)
    assert set(phone.used) == {4}


@pytest.mark.parametrize("arm", [True, False])
def test_a_hidden_clock_is_believed_to_fall_on_arm_alone(
    arm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "is_arm", lambda: arm)
    phone = Phone(bound(2.0), hides=True)
    followed(phone)
    assert (min(phone.used) < 4) == arm


def test_the_clock_is_the_mean_of_the_processors_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    for cpu, rate in ((0, 2_000_000), (1, 1_000_000), (2, 9)):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_cur_freq").write_text(f"{rate}\n")
    assert module.clock_rate(tmp_path) == 1_500_000
    (folder.parents[1] / "cpu1/cpufreq/scaling_cur_freq").unlink()
    assert module.clock_rate(tmp_path) is None


def test_after_a_pause_all_threads_are_used() -> None:
    phone = PHONES["memory of two"]()
    heat = Heat(phone.cores, phone.rate, phone.time)
    while heat.threads == 4:
        heat.observe(1, phone.run(heat.threads))
    phone.now += 600.0
    heat.observe(1, PASS_S)
    assert heat.threads == 4
