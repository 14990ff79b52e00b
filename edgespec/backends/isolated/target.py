"""A target whose engine is in a process of its own, behind a wall.

What the engine does to its process ends as a sentence here: crashes, memory it does not give back,
files and networks it tries. Questions go through a pipe and logits through shared memory.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec import errors
from edgespec.backends.base import Part, Target, check_not_forked
from edgespec.backends.isolated import known
from edgespec.backends.isolated.rows import SharedRows
from edgespec.backends.passes import Capabilities, Pass, Progress, Rows
from edgespec.backends.sequence import KvSequence
from edgespec.errors import BackendError
from edgespec.memory.plan.plan import Plan
from edgespec.models.file import ModelFile
from edgespec.system.child_process import Child, PeerError
from edgespec.system.lost_pages import guard
from edgespec.system.resident_memory import count_process

_CHILD = "edgespec.backends.isolated.child"
_NO_WALL = "but this system has no wall around it: it can read and write what you can"


@cache
def process_bytes() -> int:
    """What such a process holds before its engine, in bytes; measured once, which takes a start."""
    with Child(_CHILD, None, name="an isolated engine") as child:
        return int(child.greeting["resident_bytes"])


class Kept:
    """What the engine's process keeps, by its number there: a sequence's content, or a copy."""

    def __init__(self, number: int, dropped: list[int]) -> None:
        self.number = number
        weakref.finalize(self, dropped.append, number)


class IsolatedTarget(Target):
    """Any target that `open_target` opens, elsewhere; raises what that raises."""

    def __init__(self, file: ModelFile, plan: Plan, progress: Progress | None = None) -> None:
        del progress  # of a file that another process reads
        _ = file.tokenizer  # the engine's own cannot be asked from here
        self._path, self._backend = file.path, plan.backend
        self._has_computed = False
        self._dead = ""
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._dropped: list[int] = []
        """What nobody has any more."""
        self._rows = SharedRows(plan.max_nodes, file.spec.vocab_size)
        guard()  # who shares them may cut them
        simple = {
            one.name: getattr(plan, one.name)
            for one in fields(plan)
            if isinstance(getattr(plan, one.name), (str, int))
        } | {"isolated": False}
        items = [[one.name, one.size_bytes, one.note, one.exact] for one in plan.footprint]
        request = {
            "path": str(file.path.absolute()),
            "plan": simple,
            "items": items,
            "vocab": file.spec.vocab_size,
            "rows": str(self._rows.path),
        }
        name = f"the isolated {plan.backend} engine"
        try:
            self._child = Child(_CHILD, request, name=name, GGML_NO_BACKTRACE="1")
        except PeerError as error:
            self._rows.close()
            raise BackendError(f"{file.path} cannot be opened: {error}") from None
        self._uncount = count_process(self._child.pid)
        self._rows.unlink()
        try:
            facts = self._told(self._child.greeting)
            self.is_walled: bool = facts["walled"]
            if not self.is_walled:
                print(f"edgespec: {name} runs in its own process, {_NO_WALL}", file=sys.stderr)
            self.capabilities = Capabilities(**facts["capabilities"])
            self._chunk: int = facts["chunk"]
            super().__init__(file.spec, plan.context_length, plan.max_nodes, plan.sequences)
        except (LookupError, TypeError) as error:
            self._close()
            raise BackendError(f"{name} did not say what it can do ({error})") from None
        except BaseException:
            self._close()
            raise

    @staticmethod
    def _told(answer: Any) -> Any:
        """An answer, or the error that was met there; what is neither is a fault."""
        if isinstance(answer, dict) and "error" in answer:
            kind = vars(errors).get(str(answer["error"]), BackendError)
            if not (isinstance(kind, type) and issubclass(kind, errors.EdgeSpecError)):
                kind = BackendError
            raise kind(str(answer.get("message", "")))
        if not isinstance(answer, dict):
            raise BackendError("the isolated engine gave an answer that is none")
        return answer

    def _ask(self, *question: Any) -> Any:
        with self._lock:
            if self._dead:
                raise BackendError(self._dead)
            check_not_forked(self._process, "the isolated engine")
            try:
                if self._dropped:
                    gone = [self._dropped.pop() for _ in range(len(self._dropped))]
                    self._child.ask(["forget", gone])
                answer = self._child.ask(question)
            except PeerError as error:
                self._dead = f"{error}; load the model again"
                raise BackendError(self._dead) from None
        return self._told(answer).get("found")

    @property
    def prefill_chunk(self) -> int:
        return self._chunk

    def limit_threads(self, most: int | None) -> None:
        self._ask("limit_threads", most)

    def allocated_bytes(self) -> dict[str, int]:
        """What the engine says it has allocated."""
        return dict(self._ask("allocated"))

    def _kept(self, number: int) -> Kept:
        return Kept(number, self._dropped)

    def _open_sequence(self) -> Kept:
        return self._kept(self._ask("open") if hasattr(self, "own") else 0)

    def _fork(self, sequence: KvSequence, length: int) -> Kept:
        return self._kept(self._ask("fork", sequence.state.number, length))

    def _forward(self, parts: Sequence[Part], rows: Rows) -> Pass:
        asked = [
            (sequence.state.number, tree.tokens.tolist(), tree.parents.tolist())
            for sequence, tree in parts
        ]
        count = {"all": sum(len(tree) for _, tree in parts), "last": 1, "none": 0}[rows]
        if self._ask("forward", asked, rows) != count:
            raise BackendError(f"the isolated engine did not compute the {count} rows asked for")
        self._has_computed = True
        return Pass(self._rows.values[:count])

    def _commit(self, sequence: KvSequence, path: Sequence[int]) -> None:
        self._ask("commit", sequence.state.number, [int(node) for node in path])

    def _truncate(self, sequence: KvSequence, length: int) -> None:
        if not (self._closed or self._dead):
            self._ask("truncate", sequence.state.number, length)

    def _prefill(
        self,
        sequence: KvSequence,
        tokens: NDArray[np.int32],
        states: NDArray[np.float32] | None = None,
    ) -> None:
        self._ask("prefill", sequence.state.number, tokens.tolist())

    def _snapshot(self, sequence: KvSequence) -> Kept:
        return self._kept(self._ask("snapshot", sequence.state.number))

    def _restore(self, sequence: KvSequence, snapshot: Any) -> int:
        if not isinstance(snapshot, Kept):
            raise BackendError(f"an isolated target cannot restore a {type(snapshot).__name__}")
        return int(self._ask("restore", sequence.state.number, snapshot.number))

    def _close(self) -> None:
        self._uncount()
        self._child.close()
        self._rows.close()
        if self._has_computed and not self._dead:
            with suppress(OSError):  # the file may be gone by now
                known.remember(self._path, self._backend)
