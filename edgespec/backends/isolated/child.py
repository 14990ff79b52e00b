"""The engine's side of the wall: opens the model, encloses itself and answers."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from edgespec import errors
from edgespec.backends.base import Target
from edgespec.backends.isolated.rows import SharedRows
from edgespec.backends.passes import TokenTree
from edgespec.backends.registry import open_target
from edgespec.backends.sequence import KvSequence
from edgespec.errors import EdgeSpecError
from edgespec.memory.plan.plan import Footprint, FootprintItem, Plan
from edgespec.models.open_model import open_model
from edgespec.system.child_process import serve
from edgespec.system.disk_cache import cached_facts
from edgespec.system.memory_limit import limit_memory
from edgespec.system.resident_memory import resident_bytes
from edgespec.system.wall import enclose, folders_of


class Served:
    """A target, its sequences and snapshots by number; answers are plain values.

    How many sequences there may be is counted on the other side, as contents change owners there.
    """

    def __init__(self, target: Target, rows: SharedRows) -> None:
        self._target, self._rows = target, rows
        self._sequences: dict[int, KvSequence] = {0: target.own}
        self._snapshots: dict[int, Any] = {}
        self._count = 0

    def answer(self, question: Any) -> Any:
        """The answer to (operation, arguments), or the error that was met."""
        try:
            return {"found": getattr(self, f"_{question[0]}")(*question[1:])}
        except EdgeSpecError as error:
            return refusal(error)

    def _new(self, state: Any, length: int) -> int:
        self._count += 1
        self._sequences[self._count] = KvSequence(self._target, state, length)
        return self._count

    def _open(self) -> int:
        return self._new(self._target._open_sequence(), 0)

    def _fork(self, number: int, length: int) -> int:
        return self._new(self._target._fork(self._sequences[number], length), length)

    def _forward(self, parts: Sequence[Any], rows: Any) -> int:
        trees = [
            (
                self._sequences[number],
                TokenTree(np.array(tokens, np.int32), np.array(parents, np.int16)),
            )
            for number, tokens, parents in parts
        ]
        logits = self._target.forward(trees, rows=rows).logits
        self._rows.values[: len(logits)] = logits
        return len(logits)

    def _commit(self, number: int, path: Sequence[int]) -> None:
        self._sequences[number].commit(path)

    def _truncate(self, number: int, length: int) -> None:
        self._sequences[number].truncate(length)

    def _prefill(self, number: int, tokens: Sequence[int]) -> None:
        self._sequences[number].prefill(tokens)

    def _snapshot(self, number: int) -> int:
        self._count += 1
        self._snapshots[self._count] = self._sequences[number].snapshot()
        return self._count

    def _restore(self, number: int, snapshot: int) -> int:
        sequence = self._sequences[number]
        sequence.restore(self._snapshots[snapshot])
        return sequence.length

    def _forget(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._snapshots.pop(number, None)
            self._sequences.pop(number, None)

    def _limit_threads(self, most: int | None) -> None:
        self._target.limit_threads(most)

    def _allocated(self) -> dict[str, int]:
        told: Callable[[], dict[str, int]] | None = getattr(self._target, "allocated_bytes", None)
        return told() if told is not None else {}


def refusal(error: EdgeSpecError) -> dict[str, str]:
    """An error as plain values."""
    kind = type(error).__name__
    return {"error": kind if hasattr(errors, kind) else "BackendError", "message": str(error)}


def _start(request: Any) -> tuple[Any, Callable[[Any], Any]]:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asks decides what it ends
    if request is None:
        return {"resident_bytes": resident_bytes()}, lambda question: question
    path = Path(request["path"])
    items = [FootprintItem(*item) for item in request["items"]]
    plan = Plan(**request["plan"], footprint=Footprint(tuple(items)))
    rows = SharedRows(plan.max_nodes, request["vocab"], Path(request["rows"]))
    walled = enclose([*folders_of(path), *cached_facts()])
    limit_memory(plan.budget_bytes)
    try:
        with open_model(path, any_engine=True) as file:
            file.adopt_tokenizer(None)  # type: ignore[arg-type]  # text is not its business
            target = open_target(file, plan)
    except EdgeSpecError as error:
        return refusal(error), lambda question: question
    greeting = {
        "capabilities": asdict(target.capabilities),
        "chunk": target.prefill_chunk,
        "walled": walled,
    }
    return greeting, Served(target, rows).answer


if __name__ == "__main__":
    serve(_start)
