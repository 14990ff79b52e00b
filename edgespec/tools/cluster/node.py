"""A node of the cluster as the one who asks sees it."""

from __future__ import annotations

import queue
import threading
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from edgespec.system.records import dataclass
from edgespec.tools.answer_file import Answer, Line
from edgespec.tools.cluster.node_worker import Worker
from edgespec.tools.cluster.work import Work
from edgespec.version import __version__

_MOST_DEATHS = 3
"""In a row, without an answer between them: then the node is left out."""
_SHARE = 4
"""Lines taken at once, for each that is written at once: enough to keep the batch full."""


@dataclass(frozen=True, slots=True)
class Job:
    """What all nodes do."""

    arguments: dict[str, Any]
    """Of `edgespec.load`."""
    defaults: dict[str, Any]
    """Of `Engine.stream`."""
    work: Work
    found: queue.Queue[Any]
    """Gets (line, output) for each answer, a sentence to tell, and a node when it leaves."""
    num_nodes: int


class Node(threading.Thread):
    """Starts a worker on its node, hands it lines, and starts another when it dies."""

    def __init__(self, node_id: str, name: str, cpus: int, job: Job) -> None:
        super().__init__(daemon=True, name=f"edgespec-node-{name}")
        self.node_id, self.node_name = node_id, name
        self._cpus, self._job = cpus, job
        self._worker: Any = None
        self.reason: str | None = None
        """Why it left before all was over."""

    def run(self) -> None:
        work = self._job.work
        most = _SHARE * int(self._job.arguments["sequences"])
        deaths = 0
        # A node that is lost is noticed late: nobody's lines wait for a worker that cannot begin.
        while self.reason is None and work.wait():
            lines: list[Line] = []
            left: dict[int, Line] = {}
            try:
                if self._open() and (lines := work.take(most, self._job.num_nodes)):
                    left = {line.number: line for line in lines}
                    self._answer(left)
            except RayActorError:
                deaths = deaths + 1 if len(left) == len(lines) else 1
                self._mourn(left, deaths)
            except RayError as error:
                self.reason = str(error).strip().split("\n")[-1]
            work.give_back(list(left.values()))
        self.close()
        self._job.found.put(self)

    def _mourn(self, left: dict[int, Line], deaths: int) -> None:
        """Another worker is to answer what this one left, here if the node is not to blame."""
        self._worker = None
        if self._job.work.is_stopped:
            return
        for line in self._job.work.lost(list(left.values())):
            self._tell(left.pop(line.number), line.head | {"error": _lost(line)})
        if not self._is_alive():
            self.reason = "the node is gone"
        elif deaths >= _MOST_DEATHS:
            self.reason = f"{deaths} workers died there one after the other"
        else:
            self._job.found.put(f"a worker on node {self.node_name} died; another takes its lines")

    def _open(self) -> bool:
        """Have a worker; False when this node cannot have one, and why is in `reason`."""
        if self._worker is not None:
            return True
        here = NodeAffinitySchedulingStrategy(self.node_id, soft=False)
        worker = (
            ray.remote(Worker)
            .options(num_cpus=self._cpus, max_restarts=0, scheduling_strategy=here)
            .remote()
        )
        arguments = self._job.arguments
        threads = arguments["threads"] or self._cpus
        self._worker = worker
        self.reason = ray.get(worker.open.remote(__version__, arguments | {"threads": threads}))
        return self.reason is None

    def _answer(self, left: dict[int, Line]) -> None:
        """Have all lines answered; `left` loses those that are."""
        answer = self._worker.answer.options(num_returns="streaming")
        for reference in answer.remote(list(left.values()), self._job.defaults):
            number, output = ray.get(reference)
            if number == 0:
                self.reason = output["error"]
                return
            self._tell(left.pop(number), output)

    def _tell(self, line: Line, output: Answer) -> None:
        if self._job.work.answered(line):
            self._job.found.put((line, output))

    def _is_alive(self) -> bool:
        return any(node["Alive"] for node in ray.nodes() if node["NodeID"] == self.node_id)

    def close(self) -> None:
        """End the worker."""
        worker, self._worker = self._worker, None
        if worker is not None:
            ray.kill(worker)


def _lost(line: Line) -> str:
    return f"every worker that was given line {line.number} died; nothing more is known of it"
