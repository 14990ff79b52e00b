"""The key of a worker: who is let in, what others can read, and what a key file must be."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from edgespec.backends.llamacpp.remote.address import Address, parse_workers
from edgespec.backends.llamacpp.remote.asking import ask_worker
from edgespec.backends.llamacpp.remote.key import Key
from edgespec.backends.llamacpp.remote.protocol import CAPABILITIES, Command, request
from edgespec.errors import BackendError, EdgeSpecError, OptionError
from edgespec.system.size import MIB
from tests.support.command_line import edgespec as run_cli
from tests.support.gguf_models import write_gguf
from tests.support.llamacpp_workers import Worker, load, own_bytes, serving
from tests.support.worker_keys import write_key

GREETING = request(Command.HELLO, CAPABILITIES)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_key(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def worker(key: Path) -> Iterator[Worker]:
    with Worker(own_bytes() + 96 * MIB, key=key) as made:
        yield made


class Wiretap:
    """Passes connections on to a worker and keeps what clients sent."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.sent: list[bytearray] = []
        self._open: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self.sent.append(bytearray())
                self._open += [client, server]
                for pair in ((client, server, self.sent[-1]), (server, client, bytearray())):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    @staticmethod
    def _carry(here: socket.socket, there: socket.socket, kept: bytearray) -> None:
        with suppress(OSError):
            while data := here.recv(1 << 16):
                kept += data
                there.sendall(data)
            there.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for each in (self._listener, *self._open):
            each.close()


@serving
def test_with_the_key_a_model_runs_and_nobody_reads_along(
    key: Path, worker: Worker, tmp_path: Path
) -> None:
    model = write_gguf(tmp_path / "m.gguf", dim=256, ffn=1024, layers=2, type="F16")
    asked = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
    with load(model) as engine:
        expected = engine.generate("the cat", **asked).token_ids
    tap = Wiretap(worker.port)
    try:
        address = f"127.0.0.1:{tap.port}"
        with load(model, workers=address, key_file=key) as engine:
            assert engine.plan.devices[0].key_file == str(key)
            assert engine.generate("the cat", **asked).token_ids == expected
        whole = b"".join(tap.sent)
        assert len(whole) > MIB  # the weights went this way
        assert GREETING not in whole and b"blk.7.ffn" not in whole
        # What was recorded opens nothing when it is sent again.
        for kept in tap.sent:
            with socket.create_connection(("127.0.0.1", worker.port), 10) as again:
                again.settimeout(10)
                with suppress(OSError):  # it may be closed at any of these
                    again.sendall(kept[: 1 << 16])
                    again.shutdown(socket.SHUT_WR)
                    answer = b""
                    while data := again.recv(1 << 12):
                        answer += data
                    assert len(answer) < 1 << 12
        assert ask_worker(Address("127.0.0.1", worker.port, Key(key))).free_bytes > 64 * MIB
    finally:
        tap.close()


@serving
def test_without_the_key_nobody_is_let_in(worker: Worker, key: Path, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="--key-file"):
        ask_worker(Address("127.0.0.1", worker.port))
    other = Key(write_key(tmp_path, 1))
    with pytest.raises(BackendError, match="does not (have the key|answer like a worker)"):
        ask_worker(Address("127.0.0.1", worker.port, other))
    assert ask_worker(Address("127.0.0.1", worker.port, Key(key))).free_bytes
    found = run_cli("plan", "--workers", worker.address)
    found.assert_refused(1, "--key-file")


@serving
def test_an_older_tls_is_refused(worker: Worker, key: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("127.0.0.1", worker.port), 5) as plain,
        pytest.raises(OSError, match="(?i)protocol|alert|eof|reset"),
    ):
        context.wrap_socket(plain)


@serving
def test_a_worker_without_the_key_is_not_used(key: Path) -> None:
    with Worker(own_bytes() + 8 * MIB) as plain, pytest.raises(BackendError, match="the key in"):
        ask_worker(Address("127.0.0.1", plain.port, Key(key)), 3.0)


def test_other_machines_are_not_used_without_a_key(key: Path) -> None:
    for text in ("192.168.7.7:1", "127.0.0.1:1,10.1.1.1", "[2001:db8::1]:5"):
        with pytest.raises(OptionError, match="--key-file"):
            parse_workers(text)
        assert parse_workers(text, Key(key))
    assert parse_workers("localhost:1,[::1]:2")


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="Windows keeps user folders apart itself")
def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = write_key(tmp_path)
    for mode in (0o640, 0o604, 0o620, 0o777):
        path.chmod(mode)
        with pytest.raises(OptionError, match="chmod 600"):
            Key(path)


def test_a_file_that_is_no_key_is_refused(tmp_path: Path) -> None:
    sound = write_key(tmp_path).read_text("ascii")
    certificate = sound[sound.index("-----BEGIN CERT") :]
    path = tmp_path / "bad.key"
    middle = len(sound) // 2
    for text in ("", "hello", certificate, sound.replace(certificate, ""), sound[:middle],
                 sound.replace("MI", "MA"), "\0" * 99):  # fmt: skip
        path.write_text(text, encoding="ascii")
        path.chmod(0o600)
        with pytest.raises(OptionError, match="not a key file"):
            Key(path)
    with pytest.raises(OptionError, match="--new-key"):
        Key(tmp_path / "none.key")


def test_a_new_key_is_the_users_own_and_takes_no_files_place(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    path = tmp_path / "new.key"
    made = Key.new(path)
    assert made.path == path and Key(path)
    if hasattr(os, "getuid"):
        assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(EdgeSpecError, match="already there"):
        Key.new(path)
    assert path.read_bytes() != Key.new(tmp_path / "other.key").path.read_bytes()
