"""From lines to answers, over all nodes of a Ray cluster."""

from __future__ import annotations

import logging
import os
import queue
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edgespec.errors import BackendError, OptionError
from edgespec.tools.answer_file import Answer, Line
from edgespec.tools.cluster.work import Work
from edgespec.verification.sampling import random_seed

if TYPE_CHECKING:
    from edgespec.tools.cluster.node import Node

_CONNECT_S = _END_S = 5.0
Note = Callable[[str], None]


def cluster_answers(
    address: str,
    lines: Sequence[Line],
    arguments: dict[str, Any],
    defaults: dict[str, Any],
    note: Note,
) -> Iterator[tuple[Line, Answer]]:
    """Lines and their output, in the order in which they end, each exactly once.

    address: HOST:PORT of the cluster's head, "auto" for the one this machine is part of, or
    "local" to start one here. arguments: of `edgespec.load`, for one engine a node; defaults: of
    `Engine.stream`. `note` is told when a worker dies or a node leaves. A line whose worker dies is
    answered by another, with the same seed, so the text does not depend on who died. Raises
    OptionError for a wrong address, BackendError when no node is left that can answer.
    """
    seeded = [_with_seed(line, defaults) for line in lines]
    with _cluster(address):
        work, found = Work(seeded), queue.Queue[Any]()
        nodes = _nodes(arguments, defaults, work, found)
        for node in nodes:
            node.start()
        try:
            yield from _gather(nodes, len(seeded), found, note)
        finally:
            work.stop()
            for node in nodes:
                node.close()
            for node in nodes:
                node.join(_END_S)


def _with_seed(line: Line, defaults: dict[str, Any]) -> Line:
    """The line with a seed: whoever answers it, and however often, writes the same."""
    if line.options.get("seed", defaults.get("seed")) is not None:
        return line
    return replace(line, options=line.options | {"seed": random_seed()})


def _nodes(
    arguments: dict[str, Any], defaults: dict[str, Any], work: Work, found: queue.Queue[Any]
) -> list[Node]:
    import ray

    from edgespec.tools.cluster.node import Job, Node

    alive = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    if not alive:
        raise BackendError("the cluster has no node with a processor to use")
    job = Job(arguments, defaults, work, found, len(alive))
    return [
        Node(node["NodeID"], node["NodeManagerHostname"], int(node["Resources"]["CPU"]), job)
        for node in alive
    ]


def _gather(
    nodes: list[Node], num_lines: int, found: queue.Queue[Any], note: Note
) -> Iterator[tuple[Line, Answer]]:
    left = len(nodes)
    while num_lines:
        news = found.get()
        if isinstance(news, tuple):
            num_lines -= 1
            yield news
            continue
        if isinstance(news, str):
            note(news)
            continue
        left -= 1
        if news.reason is not None:
            note(f"node {news.node_name} is left out: {news.reason}")
        if not left and num_lines:
            raise BackendError(
                f"no node of the cluster is left, and {num_lines} prompts are without a reply: "
                f"{news.reason}"
            )


@contextmanager
def _cluster(address: str) -> Iterator[None]:
    try:
        # A cluster started here reports nothing to Ray's makers unless the user asks for that.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray
    except ImportError:
        raise OptionError(
            "--ray needs the package ray, which is not installed: pip install 'edgespec[ray]'"
        ) from None
    _check_address(address)
    # Ray tells of dead workers on the standard output, where the replies go.
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                include_dashboard=False if address == "local" else None,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            said = str(error).strip().split("\n")[0]
            raise OptionError(
                f"no Ray cluster was found at {address} ({said}); start one with "
                "`ray start --head`, or say --ray local"
            ) from None
        try:
            yield
        finally:
            ray.shutdown()


def _check_address(address: str) -> None:
    """Find out early that nobody listens: Ray itself would wait for a minute, then abort."""
    if address in ("auto", "local"):
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit():
        raise OptionError(
            f"--ray {address} is no address: it is HOST:PORT of the cluster's head (port 6379 if "
            "nothing else was chosen), auto or local"
        )
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except (OSError, OverflowError):
        raise OptionError(
            f"nobody listens at {address}; start a cluster with `ray start --head` and use the "
            "address it names"
        ) from None
