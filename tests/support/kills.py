"""Commands killed or interrupted at moments of chance: what they had acknowledged is there, all
else is whole.

Each kind of work writes again and again in a folder of its own, each time something else in the
place of what it wrote before, and is killed: half of the times at any moment of its run, half some
milliseconds after it touched its files. Then its files are looked at by the package's own readers,
or compared with those of runs that nobody killed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.support.command_line import environment

SOON_S = 0.03
"""After its files were touched, at most."""
_LOOK_S = 0.0005
MOST_S = 60.0
"""From a signal to the end."""


@dataclass(slots=True)
class Killed:
    """What came of so many runs of one command."""

    name: str
    kills: int = 0
    at_writes: int = 0
    """Of these, those that came right after it touched its files."""
    finished: int = 0
    """Runs that were over before."""
    new: int = 0
    """Kills after which what was being written was there already."""
    left: int = 0
    """Most files with half of something that lay there at a time; the next run removes them."""
    lost: list[str] = field(default_factory=list)
    """What was missing or wrong."""


class Work:
    """A command that writes, again and again."""

    name = ""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.model = folder, model
        """All that it writes is below the folder."""
        folder.mkdir(parents=True)
        self.turn = 0
        """How often it was started."""

    def arguments(self) -> list[str]:
        """What is typed after `edgespec`; the next time it is something else."""
        raise NotImplementedError

    def lost(self, said: str, ended: bool) -> str:
        """What is missing or wrong now, by what the command said and whether it ended; "" if
        nothing is.
        """
        raise NotImplementedError

    def is_new(self) -> bool:
        """Whether what it was to write is there."""
        return False

    def environment(self) -> dict[str, str]:
        return environment() | {"EDGESPEC_DATA": str(self.folder), "EDGESPEC_HISTORY": ""}

    def start(self) -> Running:
        """Begin the next run."""
        command = [sys.executable, "-m", "edgespec", *self.arguments()]
        self.turn += 1
        return Running(command, self.environment())

    def finish(self) -> str:
        """A run that nobody kills; returns what it said. Raises RuntimeError where it fails."""
        running = self.start()
        if running.process.wait(300):
            raise RuntimeError(f"{self.name}: {running.said()}")
        return running.said()

    def close(self) -> None:
        """End what it needs to run."""


class Running:
    """A process, and what it says."""

    def __init__(self, command: list[str], variables: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=variables,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self._raw = b""
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout,))
        self._reader.start()

    def _read(self, out: IO[bytes]) -> None:
        with out:
            for line in out:
                self._raw += line

    def kill(self) -> None:
        """kill -9 for the command and the processes that it began."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def said(self) -> str:
        """All that it has said, once it has ended."""
        self._reader.join()
        return self._raw.decode("utf-8", "replace")


def killed(work: Work, times: int, seed: int) -> Killed:
    """Run a command until it was killed so often."""
    rng = random.Random(f"{work.name} {seed}")
    found = Killed(work.name)
    for _ in range(2):  # the first compiles what it needs
        begin = time.monotonic()
        work.finish()
        seconds = time.monotonic() - begin
    while found.kills < times:
        before = set(_touched(work.folder))
        running = work.start()
        at_write = rng.random() < 0.5
        if at_write:
            _wait_for_a_write(work.folder, before, running)
            time.sleep(rng.uniform(0, SOON_S))
        else:
            with suppress(subprocess.TimeoutExpired):
                running.process.wait(rng.uniform(0, seconds))
        ended = running.process.poll() is not None
        running.kill()
        found.finished += ended
        found.kills += not ended
        found.at_writes += at_write and not ended
        why = work.lost(running.said(), ended and not running.process.returncode)
        found.new += not ended and not why and work.is_new()
        found.left = max(found.left, len(list(work.folder.rglob("*.part"))))
        if ended and running.process.returncode:
            why = why or f"exit code {running.process.returncode}: {running.said()[-300:]}"
        if why:
            found.lost.append(f"run {work.turn}: {why}")
            if len(found.lost) == 5:
                break
    for _ in range(2):  # what is written in turns
        work.finish()
    left = [path.name for path in work.folder.rglob("*.part")]
    if left:
        found.lost.append(f"nobody removes {', '.join(left)}")
    return found


def interrupted(work: Work, times: int, seed: int) -> Killed:
    """The same with Ctrl-C and with SIGTERM: the command ends soon, and says no more than it was
    asked to stop.
    """
    rng = random.Random(f"{work.name} {seed}")
    found = Killed(work.name)
    for _ in range(2):
        begin = time.monotonic()
        work.finish()
        seconds = time.monotonic() - begin
    while found.kills < times:
        running = work.start()
        sent = rng.choice([signal.SIGINT, signal.SIGTERM])
        with suppress(subprocess.TimeoutExpired):
            running.process.wait(rng.uniform(0, seconds))
        ended = running.process.poll() is not None
        running.process.send_signal(sent)
        try:
            code = running.process.wait(MOST_S)
        except subprocess.TimeoutExpired:
            found.lost.append(f"run {work.turn}: it goes on {MOST_S:.0f} s after {sent.name}")
            running.kill()
            continue
        said = running.said()
        found.finished += ended
        found.kills += not ended
        # Before Python's own handlers are there, and once they are taken away at the end, the
        # signal ends a process by itself: a shell tells 130 for that, too.
        wanted = (0, 130, -sent) if sent is signal.SIGINT else (0, -sent)
        why = work.lost(said, ended)
        if code not in wanted and not ended:
            why = why or f"{sent.name} and exit code {code}"
        if why or "Traceback" in said or "Error" in said:
            found.lost.append(f"run {work.turn}, {sent.name}: {why} {said[-400:]}")
        if len(found.lost) == 5:
            break
    return found


def _touched(folder: Path) -> Iterator[tuple[str, int, int]]:
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                status = os.lstat(os.path.join(root, name))
                yield os.path.join(root, name), status.st_size, status.st_mtime_ns


def _wait_for_a_write(folder: Path, before: set[tuple[str, int, int]], running: Running) -> None:
    while running.process.poll() is None and set(_touched(folder)) == before:
        time.sleep(_LOOK_S)
