"""Workers that die, halt or hang: an error within seconds, and the conversation goes on."""

from __future__ import annotations

import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from edgespec.backends.llamacpp.remote import link, pulse
from edgespec.backends.llamacpp.remote.address import Address
from edgespec.backends.llamacpp.remote.protocol import (
    CAPABILITIES,
    HAS_PULSE,
    HEAD,
    HELLO_REPLY,
    MEMORY_REPLY,
    PULSE,
    PULSE_REPLY,
    SIZE,
    Command,
    request,
)
from edgespec.backends.llamacpp.remote.wire import Wire
from edgespec.errors import BackendError
from edgespec.memory.plan.placement import Device
from edgespec.system.size import MIB
from tests.support.llamacpp_workers import (
    Worker,
    addresses,
    load,
    serving,
    workers,
    write_eight_layers,
)

LIMIT_S = 5.0
"""From a worker's death to the error."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_eight_layers(tmp_path_factory)


@serving
def test_a_worker_killed_mid_reply_costs_an_error_and_nothing_of_the_chat(model: Path) -> None:
    with (
        workers(18 * MIB, 18 * MIB) as made,
        load(model, workers=addresses(made), context=1024) as engine,
    ):
        assert len(engine.plan.devices) == 2
        chat = engine.chat("Be a cat.")
        first = chat.send("hello", max_tokens=8, temperature=0, ignore_eos=True)
        stream = chat.stream("go on", max_tokens=600, temperature=0, ignore_eos=True)
        pieces = [next(stream) for _ in range(5)]
        made[1].kill()
        begin = time.perf_counter()
        with pytest.raises(BackendError, match=f"{made[1].address} is gone .* nothing of the"):
            pieces += list(stream)
        assert time.perf_counter() - begin < LIMIT_S
        assert [turn["role"] for turn in chat.messages] == [
            "system", "user", "assistant", "user", "assistant",
        ]  # fmt: skip
        assert chat.messages[2]["content"] == first.text
        assert chat.messages[4]["content"].startswith("".join(pieces))

        begin = time.perf_counter()
        with pytest.raises(BackendError, match="no worker answers"):
            chat.send("still there?", max_tokens=8)
        assert time.perf_counter() - begin < LIMIT_S
        assert len(chat.messages) == 5

        with Worker(made[1].memory_bytes, made[1].port), load(model, context=1024) as local:
            other = local.chat("Be a cat.")
            other.messages, other._text, other._ids = chat.messages, chat._text, chat._ids
            again = chat.send("and now?", max_tokens=20, temperature=0, ignore_eos=True)
            same = other.send("and now?", max_tokens=20, temperature=0, ignore_eos=True)
            assert again.token_ids == same.token_ids
            assert len(chat.messages) == 7


@serving
def test_several_texts_come_back_with_their_worker(model: Path) -> None:
    options = {"temperature": 0, "max_tokens": 12, "ignore_eos": True, "raw": True}
    prompts = ["the cat", "a hat on the mat", "the cat and you"]
    with load(model, sequences=3) as local:
        expected = [reply.token_ids for reply in local.generate_batch(prompts, **options)]
    with workers(24 * MIB) as made, load(model, sequences=3, workers=addresses(made)) as engine:
        assert [r.token_ids for r in engine.generate_batch(prompts, **options)] == expected
        made[0].kill()
        with pytest.raises(BackendError):
            engine.generate_batch(prompts, **options)
        with Worker(made[0].memory_bytes, made[0].port):
            assert [r.token_ids for r in engine.generate_batch(prompts, **options)] == expected


halting = pytest.mark.skipif(sys.platform == "win32", reason="processes cannot be halted")


@serving
@halting
@pytest.mark.parametrize("halted", ["worker and server", "worker", "server"])
def test_a_halted_worker_costs_an_error_and_nothing_of_the_chat(model: Path, halted: str) -> None:
    """No connection is closed, as where a machine hangs or its cable is pulled."""
    with (
        workers(24 * MIB) as made,
        load(model, workers=addresses(made), context=1024) as engine,
        load(model, context=1024) as local,
    ):
        chat, other = engine.chat("Be a cat."), local.chat("Be a cat.")
        stream = chat.stream("go on", max_tokens=900, temperature=0, ignore_eos=True)
        pieces = [next(stream) for _ in range(5)]
        both = made[0].processes()
        stopped = {"worker": both[:1], "server": both[1:]}.get(halted, both)
        for process in stopped:
            process.suspend()
        begin = time.perf_counter()
        with pytest.raises(BackendError, match=f"{made[0].address} .* nothing of the"):
            pieces += list(stream)
        assert time.perf_counter() - begin < LIMIT_S
        assert chat.messages[-1]["content"].startswith("".join(pieces))
        if halted != "server":  # the worker itself starts another server
            begin = time.perf_counter()
            with pytest.raises(BackendError, match="does not answer within"):
                chat.send("still there?", max_tokens=8)
            assert time.perf_counter() - begin < LIMIT_S
        assert len(chat.messages) == 3
        for process in stopped if halted != "server" else ():
            process.resume()
        other.messages, other._text, other._ids = chat.messages, chat._text, chat._ids
        again = chat.send("and now?", max_tokens=20, temperature=0, ignore_eos=True)
        same = other.send("and now?", max_tokens=20, temperature=0, ignore_eos=True)
        assert again.token_ids == same.token_ids


@serving
@halting
def test_a_worker_that_pauses_is_waited_for(model: Path) -> None:
    with workers(24 * MIB) as made, load(model, workers=addresses(made)) as engine:
        stream = engine.stream("hello", max_tokens=200, ignore_eos=True)
        next(stream)
        for process in made[0].processes():
            process.suspend()
        time.sleep(0.7)
        for process in made[0].processes():
            process.resume()
        assert len(list(stream)) > 0


@pytest.mark.parametrize("told_ahead", [False, True])
def test_a_client_that_hung_up_is_seen_beside_its_work(told_ahead: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        connection, _ = server.accept()
        wire = Wire(connection)
        assert not wire.has_hung_up()
        if told_ahead:
            client.sendall(b"more")
            assert not wire.has_hung_up()
        client.close()
        end = time.monotonic() + 5.0
        while not wire.has_hung_up() and time.monotonic() < end:
            time.sleep(0.01)
        # Behind bytes that nobody read, the end is seen where the system can be asked for it.
        assert wire.has_hung_up() or (told_ahead and sys.platform != "linux")
        wire.close()


class SlowWorker:
    """Answers pulses, if it does, and everything else late."""

    def __init__(self, reply_s: float, idle_s: int, *, has_pulse: bool = True) -> None:
        self._reply_s, self._idle_s, self._more = reply_s, idle_s, HAS_PULSE * has_pulse
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._server.getsockname()[1])
        self.pulses = 0
        self._over = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        wire = Wire(connection)
        with suppress(OSError), connection:
            while True:
                number, size = HEAD.unpack(wire.read(HEAD.size))
                wire.read(size)
                if number == PULSE:
                    self.pulses += 1
                    wire.send(PULSE_REPLY.pack(4, self._idle_s))
                elif number == Command.HELLO:
                    told = HELLO_REPLY.pack(7, 0, 0, self._more, CAPABILITIES)
                    wire.send(SIZE.pack(len(told)) + told)
                else:
                    self._over.wait(self._reply_s)
                    wire.send(SIZE.pack(16) + MEMORY_REPLY.pack(5, 7))

    def close(self) -> None:
        self._over.set()
        self._server.close()


@pytest.mark.parametrize(
    ("reply_s", "idle_s", "has_pulse", "failure"),
    [
        (1.5, 0, True, ""),
        (60.0, 9, True, "has computed nothing for 0.4 s"),
        (60.0, 0, False, "said nothing for 0.4 s"),
        (0.2, 0, False, ""),
    ],
    ids=["a long pass", "a hanging server", "a silent bare server", "a bare server"],
)
def test_who_computes_is_waited_for_and_who_hangs_is_not(
    monkeypatch: pytest.MonkeyPatch, reply_s: float, idle_s: int, has_pulse: bool, failure: str
) -> None:
    monkeypatch.setattr(pulse, "BEAT_S", 0.05)
    monkeypatch.setattr(pulse, "PATIENCE_S", 0.4)
    monkeypatch.setattr(link, "SILENCE_S", 0.4)
    worker = SlowWorker(reply_s, idle_s, has_pulse=has_pulse)
    with link.Links([Device(str(worker.address), "worker", 0)]) as links:
        host, port = links.all[0].endpoint.split(":")
        wire = Wire(socket.create_connection((host, int(port)), 10))
        wire.send(request(Command.HELLO, CAPABILITIES))
        wire.read(SIZE.size + HELLO_REPLY.size)
        begin = time.perf_counter()
        wire.send(request(Command.GET_DEVICE_MEMORY, bytes(4)))
        free = MEMORY_REPLY.unpack(wire.read(SIZE.size + MEMORY_REPLY.size)[SIZE.size :])[0]
        assert free == (0 if failure else 5)
        assert time.perf_counter() - begin < 3.0
        wire.close()
        assert failure in links.all[0].failure and bool(failure) == links.failed
        if has_pulse:
            assert worker.pulses > 2
    worker.close()
