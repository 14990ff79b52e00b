"""One line for all threads: replies that wait, are written and are read.

Whoever reads drives. A reader that finds nothing new writes a step of all the replies there is room
for, or waits for the thread that does and finds its own pieces there. So a single thread needs no
other one, several share passes without knowing of each other, and a stream that nobody reads for a
while keeps nobody waiting. Readers that may not block, such as coroutines, are attended to by a
thread of the line's own, which lives as long as there are any.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import contextmanager, nullcontext

from edgespec.engine.generation import Generation
from edgespec.engine.scheduler import Scheduler
from edgespec.engine.slot import Slot
from edgespec.errors import EdgeSpecError
from edgespec.system.threads import start_thread

_IDLE_S = 5.0
"""How long the line's own thread waits for the next reply before it ends."""


class Line:
    """Lets any number of threads have replies written by a scheduler, which knows of none."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._turn = threading.Condition()
        """Notified whenever somebody stops driving."""
        self._driver = 0
        """The thread that is in the scheduler; 0 for none."""
        self._called = 0
        """Threads that want to be next, whoever reads."""
        self._waiting = 0
        """Threads that wait for a step of another one."""
        self._steps: Generator[None, None, None] | None = None
        self._attended: set[Generation] = set()
        self._attendant: threading.Thread | None = None
        self.closed = False

    @property
    def is_driven(self) -> bool:
        """Whether a thread is in the scheduler now."""
        return bool(self._driver)

    @property
    def num_waiting(self) -> int:
        """Replies that wait for their turn."""
        return len(self._scheduler.waiting)

    @property
    def num_running(self) -> int:
        """Replies that are being written."""
        return len(self._scheduler.running)

    def submit(self, one: Generation) -> None:
        """Put a reply at the end of the line, once.

        Raises ContextOverflowError for a prompt that does not fit, EdgeSpecError when the engine is
        closed.
        """
        if one.submitted:
            return
        scheduler = self._scheduler
        one.fit(scheduler.plan, scheduler.file.spec.context_length)
        with self._turn:
            self._check_open()
            one.submitted = True
            one.arrive()
            scheduler.waiting.append(one)
            self._turn.notify_all()

    def advance(self, is_ready: Callable[[], bool]) -> None:
        """Write steps until something is ready or somebody else waits, at least one; or wait for
        those of another thread.
        """
        if not self._take(is_ready):
            return
        try:
            self._step()
            while not (self._waiting or self._called or is_ready()):
                self._step()
        finally:
            self._give()

    def cancel(self, one: Generation, *, wait: bool = True) -> None:
        """End a reply where it stands: before the next step if it is being written now.

        `wait` until it has ended; without, it may end later. May be called by any thread.
        """
        one.cancelled = True
        if one.stats is not None:
            return
        with self._turn:
            if not one.submitted:
                one.submitted = True
                self._scheduler.end(one)
        if self._take(lambda: one.stats is not None, wait=wait):
            try:
                self._reap()
            finally:
                self._give()

    def attend(self, one: Generation) -> None:
        """Let the line's own thread write a reply; its `wake` is called after each step."""
        with self._turn:
            if one.stats is not None or one in self._attended:
                return
            self._attended.add(one)
            self._turn.notify_all()
            if self._attendant is None:
                attendant = threading.Thread(target=self._serve, name="edgespec-line", daemon=True)
                try:
                    start_thread(attendant)
                except BaseException:
                    self._attended.discard(one)
                    raise
                self._attendant = attendant

    def forget(self, owner: Hashable) -> None:
        """Give back what is kept of an owner's sequence: now, or when nothing is written."""
        self._scheduler.idle.discard(owner)
        if self._take(lambda: False, wait=False):
            try:
                if not self.closed:
                    self._scheduler.sweep()
            finally:
                self._give()

    @contextmanager
    def free_slot(self) -> Iterator[Slot]:
        """A slot to work in between two steps; where all are taken, replies end first, and others
        wait.
        """
        scheduler = self._scheduler
        self._take_next()
        try:
            self._check_open()
            scheduler.holding = True
            while len(scheduler.running) >= scheduler.plan.sequences:
                self._step()
            slots = scheduler.take_slots(len(scheduler.running) + 1)
            taken = {id(one.slot) for one in scheduler.running}
            with nullcontext() if scheduler.running else scheduler.watched():
                yield next(slot for slot in slots if id(slot) not in taken)
        finally:
            scheduler.holding = False
            self._give()

    def close(self) -> bool:
        """End all replies, wait for the step that is being written, and let nobody in any more;
        False when that was done before. Who reads is told in an EdgeSpecError.
        """
        with self._turn:
            if self._driver == threading.get_ident():
                raise EdgeSpecError(
                    "the engine cannot be closed from inside one of its own steps, such as a "
                    "progress callback; close it when the step is over"
                )
            if self.closed:
                self._turn.wait_for(lambda: not self._driver)  # until who closes is done
                return False
            self.closed = True
            for one in (*self._scheduler.running, *self._scheduler.waiting):
                one.error = one.error or self._closed_error()
                one.cancelled = True
        self._take_next()
        try:
            self._reap()
        finally:
            self._give()
        attendant = self._attendant
        if attendant is not None and attendant is not threading.current_thread():
            attendant.join()
        return True

    def _check_open(self) -> None:
        if self.closed:
            raise self._closed_error()

    @staticmethod
    def _closed_error() -> EdgeSpecError:
        return EdgeSpecError("this engine is closed; open another with edgespec.load")

    def _take(self, is_ready: Callable[[], bool], *, wait: bool = True) -> bool:
        """Become the one that drives, True; or False when something is ready first."""
        me = threading.get_ident()
        with self._turn:
            while not is_ready():
                if not self._driver and not self._called:
                    self._driver = me
                    return True
                if not wait:
                    return False
                self._check_outside(me)
                self._waiting += 1
                try:
                    self._turn.wait()
                finally:
                    self._waiting -= 1
        return False

    def _take_next(self) -> None:
        """Become the one that drives before anybody writes another step."""
        me = threading.get_ident()
        with self._turn:
            self._check_outside(me)
            self._called += 1
            try:
                while self._driver:
                    self._turn.wait()
                self._driver = me
            finally:
                self._called -= 1

    def _check_outside(self, me: int) -> None:
        if self._driver == me:
            raise EdgeSpecError(
                "the engine was called from inside one of its own steps, such as a progress "
                "callback; call it when the step is over"
            )

    def _give(self) -> None:
        with self._turn:
            self._driver = 0
            self._turn.notify_all()

    def _step(self) -> None:
        """Let the scheduler write one step; what goes wrong is told by the replies."""
        if self._steps is None:
            self._steps = self._scheduler.run()
        steps, self._steps = self._steps, None
        for _ in steps:
            self._steps = steps
            break

    def _reap(self) -> None:
        """End the replies that were cancelled, and with the last one the session."""
        scheduler = self._scheduler
        scheduler.reap()
        if not scheduler.running and not scheduler.waiting:
            self._end_session()

    def _end_session(self) -> None:
        if self._steps is not None:
            self._steps.close()
            self._steps = None

    def _serve(self) -> None:
        """The line's own thread."""
        try:
            self._write_attended()
        except BaseException as error:  # a fault of ours: nobody may wait for this thread
            with self._turn:
                self._attendant = None
                for one in self._attended:
                    one.error = one.error or EdgeSpecError(f"writing failed: {error}")
                    self._scheduler.end(one)
            raise

    def _write_attended(self) -> None:
        """Steps as long as there is somebody to attend to."""
        while True:
            with self._turn:
                self._attended = {one for one in self._attended if one.stats is None}
                if not self._attended:
                    self._turn.wait_for(lambda: bool(self._attended) or self.closed, _IDLE_S)
                    if not self._attended or self.closed:
                        self._attendant = None
                        return
            self.advance(lambda: not any(one.stats is None for one in self._attended))
