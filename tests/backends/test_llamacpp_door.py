"""Workers that lie and clients that push: what the link and the door let through."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from edgespec.backends.llamacpp.remote.address import Address
from edgespec.backends.llamacpp.remote.asking import ask_worker
from edgespec.backends.llamacpp.remote.checking import check_reply
from edgespec.backends.llamacpp.remote.link import Link
from edgespec.backends.llamacpp.remote.protocol import (
    ALLOC_REPLY,
    ALLOC_REQUEST,
    CAPABILITIES,
    HEAD,
    MEMORY_REPLY,
    SILENT,
    SIZE,
    Command,
    reply_bytes,
    request,
    stand_in,
)
from edgespec.backends.llamacpp.remote.wire import Wire
from edgespec.errors import BackendError
from edgespec.system.size import MIB
from tests.support.command_line import edgespec as run_cli
from tests.support.llamacpp_workers import Worker, serving, workers, write_eight_layers

SHAPE = struct.pack("<QIQ4I4I", 1, 0, 2, 64, 8, 1, 1, 4, 256, 2048, 2048)
TENSOR = SHAPE.ljust(296, b"\0")
SIZES = bytes(4) + TENSOR + bytes(10 * 296)
LIES: dict[str, tuple[Command, bytes, bytes]] = {
    "alignment 3": (Command.GET_ALIGNMENT, bytes(4), SIZE.pack(3)),
    "alignment 0": (Command.GET_ALIGNMENT, bytes(4), SIZE.pack(0)),
    "alignment 2^40": (Command.GET_ALIGNMENT, bytes(4), SIZE.pack(1 << 40)),
    "no largest buffer": (Command.GET_MAX_SIZE, bytes(4), SIZE.pack(0)),
    "base 0": (Command.BUFFER_GET_BASE, bytes(8), SIZE.pack(0)),
    "an odd base": (Command.BUFFER_GET_BASE, bytes(8), SIZE.pack(4097)),
    "a base at the end": (Command.BUFFER_GET_BASE, bytes(8), SIZE.pack(2**64 - 64)),
    "a tensor of nothing": (Command.GET_ALLOC_SIZE, SIZES, SIZE.pack(0)),
    "a tensor of everything": (Command.GET_ALLOC_SIZE, SIZES, SIZE.pack(2**63)),
    "a smaller buffer": (
        Command.ALLOC_BUFFER, ALLOC_REQUEST.pack(0, 4096), ALLOC_REPLY.pack(64, 64),
    ),
    "an endless buffer": (
        Command.ALLOC_BUFFER, ALLOC_REQUEST.pack(0, 4096), ALLOC_REPLY.pack(64, 2**63),
    ),
    "2^31 devices": (Command.DEVICE_COUNT, b"", struct.pack("<I", 1 << 31)),
    "no devices": (Command.DEVICE_COUNT, b"", bytes(4)),
    "more memory than there is": (
        Command.GET_DEVICE_MEMORY, bytes(4), MEMORY_REPLY.pack(2**63, 2**63),
    ),
    "neither yes nor no": (Command.COPY_TENSOR, TENSOR * 2, b"\x07"),
}  # fmt: skip


def _honest(command: Command, payload: bytes) -> bytes:
    """What a worker with memory and no idea of computing says."""
    if command is Command.GET_DEVICE_MEMORY:
        return MEMORY_REPLY.pack(1 << 30, 1 << 30)
    if command is Command.ALLOC_BUFFER:
        return ALLOC_REPLY.pack(1 << 20, ALLOC_REQUEST.unpack(payload)[1])
    if command is Command.GET_ALLOC_SIZE:
        counts, strides = struct.unpack_from("<4I4I", payload, 24)[:4], payload[40:56]
        return SIZE.pack(counts[3] * struct.unpack("<4I", strides)[3])
    if command is Command.GET_TENSOR:
        return bytes(reply_bytes(command, payload))
    return stand_in(command)


class Liar:
    """Something that answers like a worker, but for one command."""

    def __init__(self, command: Command, lie: bytes) -> None:
        self._command, self._lie = command, lie
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        wire = Wire(connection)
        with suppress(OSError):
            while True:
                number, size = HEAD.unpack(wire.read(HEAD.size))
                payload = wire.read(size)
                command = Command(number)
                if command not in SILENT:
                    answer = self._lie if command is self._command else _honest(command, payload)
                    wire.send(SIZE.pack(len(answer)) + answer)
        wire.close()

    def close(self) -> None:
        self._listener.close()


@pytest.mark.parametrize("case", LIES)
def test_a_lie_does_not_reach_llama_cpp(case: str) -> None:
    """It is answered in the worker's place, and the worker is given up."""
    command, payload, lie = LIES[case]
    liar = Liar(command, lie)
    link = Link(liar.address)
    host, port = link.endpoint.split(":")
    wire = Wire(socket.create_connection((host, int(port)), 5))
    try:
        wire.send(request(Command.HELLO, CAPABILITIES))
        wire.read(SIZE.unpack(wire.read(SIZE.size))[0])
        wire.send(request(command, payload))
        answer = wire.read(SIZE.unpack(wire.read(SIZE.size))[0])
        assert answer == stand_in(command)
        with pytest.raises(BackendError, match="talks nonsense"):
            link.check()
    finally:
        wire.close()
        link.close()
        liar.close()


def test_honest_answers_pass() -> None:
    for command, payload, _ in LIES.values():
        if command is not Command.GET_ALLOC_SIZE:
            check_reply(command, payload, stand_in(command))
    check_reply(Command.GET_ALLOC_SIZE, SIZES, SIZE.pack(64 * 8 * 4))
    check_reply(Command.GET_ALLOC_SIZE, SIZES, SIZE.pack(64 * 8 * 4 + 512))
    check_reply(Command.ALLOC_BUFFER, ALLOC_REQUEST.pack(0, 4096), ALLOC_REPLY.pack(64, 4096))


@pytest.mark.parametrize("case", ["2^31 devices", "no devices", "more memory than there is"])
def test_a_lie_is_noticed_when_it_is_asked(case: str) -> None:
    command, _, lie = LIES[case]
    liar = Liar(command, lie)
    try:
        with pytest.raises(BackendError, match="does not answer like a worker"):
            ask_worker(liar.address)
    finally:
        liar.close()


@serving
@pytest.mark.parametrize("case", ["alignment 3", "base 0", "a smaller buffer"])
def test_a_command_outlives_a_worker_that_lies(
    case: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    command, _, lie = LIES[case]
    liar = Liar(command, lie)
    model = write_eight_layers(tmp_path_factory)
    try:
        found = run_cli(
            "run", "-m", model, "--backend", "llamacpp", "--workers", liar.address,
            "--context", 256, "--threads", 1, "--max-tokens", 2, "hello",
        )  # fmt: skip
    finally:
        liar.close()
    found.assert_refused(1, str(liar.address))


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with workers(64 * MIB) as made:
        yield made[0]


def _connect(worker: Worker) -> socket.socket:
    return socket.create_connection(("127.0.0.1", worker.port), 5)


def _answers(worker: Worker) -> bool:
    address = Address("127.0.0.1", worker.port)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with suppress(BackendError):
            ask_worker(address)
            return True
        time.sleep(0.2)
    return False


def _closed_within(connection: socket.socket, seconds: float) -> bool:
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


PUSHES: dict[str, Callable[[], bytes]] = {
    "another first word": lambda: request(Command.DEVICE_COUNT),
    "an unknown command": lambda: HEAD.pack(200, 0),
    "a hello of another length": lambda: HEAD.pack(Command.HELLO, 1 << 62),
    "a wrong length": lambda: request(Command.HELLO, CAPABILITIES) + request(
        Command.ALLOC_BUFFER, b"123"
    ),
    "an endless graph": lambda: request(Command.HELLO, CAPABILITIES) + HEAD.pack(
        Command.GRAPH_COMPUTE, 1 << 60
    ),
    "a tensor of no head": lambda: request(Command.HELLO, CAPABILITIES) + request(
        Command.SET_TENSOR, b"x"
    ),
    "text": lambda: b"GET / HTTP/1.1\r\n\r\n",
}  # fmt: skip


@serving
@pytest.mark.parametrize("case", PUSHES)
def test_a_client_that_talks_nonsense_is_dropped(case: str, worker: Worker) -> None:
    with _connect(worker) as connection:
        connection.sendall(PUSHES[case]())
        connection.settimeout(10)
        with suppress(ConnectionError):
            while connection.recv(1 << 12):
                pass
    assert _answers(worker)


@serving
def test_a_greeting_that_trickles_ends(worker: Worker) -> None:
    """The limit is for all of it, not for each byte."""
    with _connect(worker) as connection:
        begin = time.monotonic()
        ended = False
        while not ended and time.monotonic() - begin < 12:
            with suppress(OSError):
                connection.sendall(b"\x0e")
            ended = _closed_within(connection, 1.0)
        assert time.monotonic() - begin < 9
    assert _answers(worker)


@serving
@pytest.mark.slow
def test_one_silent_client_keeps_nobody_out(worker: Worker) -> None:
    with _connect(worker) as connection:
        connection.sendall(request(Command.HELLO, CAPABILITIES))
        assert connection.recv(1)
        assert _answers(worker)


@serving
def test_many_connections_take_little(worker: Worker) -> None:
    """Before, each took 256 KiB and a thread, and the process died when it had no more files."""
    process = psutil.Process(worker._process.pid)
    held = process.memory_info().rss
    if hasattr(process, "rlimit"):
        process.rlimit(psutil.RLIMIT_NOFILE, (128, 128))
    made = []
    try:
        for _ in range(400):
            with suppress(OSError):
                made.append(_connect(worker))
        time.sleep(0.5)
        assert process.is_running() and process.num_threads() < 200
        assert process.memory_info().rss - held < 16 * MIB
    finally:
        for connection in made:
            connection.close()
    assert _answers(worker)
    assert Path(f"/proc/{process.pid}").exists() or process.is_running()
