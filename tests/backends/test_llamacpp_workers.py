"""Layers on other machines: real workers on loopback, their budgets, and how they end."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import edgespec
from edgespec.backends.llamacpp import library
from edgespec.backends.llamacpp.remote import front
from edgespec.backends.llamacpp.remote.address import Address, check_listening, parse_workers
from edgespec.backends.llamacpp.remote.asking import ask_worker
from edgespec.backends.llamacpp.remote.key import Key
from edgespec.backends.llamacpp.remote.offloaded import OffloadedTarget
from edgespec.backends.llamacpp.remote.protocol import (
    ALLOC_REPLY,
    ALLOC_REQUEST,
    CAPABILITIES,
    HELLO_REPLY,
    SIZE,
    Command,
    request,
)
from edgespec.backends.llamacpp.remote.server import RpcServer
from edgespec.backends.llamacpp.remote.wire import Wire
from edgespec.backends.llamacpp.target import LlamaTarget
from edgespec.backends.passes import TokenTree
from edgespec.errors import BackendError, BudgetError, OptionError
from edgespec.models.open_model import open_model
from edgespec.system.size import MIB
from tests.support.command_line import edgespec as run_cli
from tests.support.external_models import write_mamba
from tests.support.gguf_models import CHATML, write_gguf
from tests.support.llamacpp_workers import (
    WHY,
    Worker,
    addresses,
    load,
    serving,
    workers,
    write_eight_layers,
)
from tests.support.worker_keys import write_key

LIMIT_S = 5.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_eight_layers(tmp_path_factory)


@pytest.fixture(scope="module")
def pair() -> Iterator[list[Worker]]:
    """Two workers, neither of which holds the model."""
    if WHY:
        pytest.skip(WHY)
    with workers(14 * MIB, 15 * MIB) as made:
        yield made


@serving
def test_a_split_model_writes_the_same_text_inside_every_budget(
    model: Path, pair: list[Worker]
) -> None:
    prompt = "the cat and the hat " * 10
    with load(model) as local:
        expected = local.generate(prompt, max_tokens=60, temperature=0, ignore_eos=True)
    with load(model, workers=addresses(pair)) as engine:
        parts = engine.plan.devices
        assert [part.name for part in parts] == [worker.address for worker in pair]
        assert parts[0].head and parts[0].first_layer + parts[0].num_layers == 8
        assert parts[1].first_layer + parts[1].num_layers == parts[0].first_layer
        assert all(part.total_bytes <= part.budget_bytes for part in parts)
        assert engine.plan.gpu_layers == sum(part.units for part in parts)
        for speculation in (True, False):
            reply = engine.generate(
                prompt, max_tokens=60, temperature=0, ignore_eos=True, speculation=speculation
            )
            assert reply.token_ids == expected.token_ids
        assert reply.stats.peak_memory_bytes <= engine.plan.budget_bytes
        held = engine.scheduler.target.device_bytes()  # type: ignore[attr-defined]
        for part in parts:
            assert sum(held[part.name].values()) <= part.total_bytes + 3 * 16 * 1024
            offer = ask_free(engine, part.name)
            assert offer <= part.budget_bytes - sum(held[part.name].values()) + 3 * 16 * 1024
    for worker in pair:
        assert 0 < worker.peak_bytes <= worker.memory_bytes


def ask_free(engine: edgespec.Engine, name: str) -> int:
    """What a device of an open model says is free, through llama.cpp."""
    target = engine.scheduler.target
    assert isinstance(target, OffloadedTarget)
    free = reversed(target._model.devices.free_bytes())
    return dict(zip((part.name for part in engine.plan.devices), free, strict=True))[name]


@serving
def test_layers_that_no_worker_takes_stay_here(model: Path, pair: list[Worker]) -> None:
    chosen = edgespec.plan(
        model, context=256, threads=1, workers=pair[0].address, backend="llamacpp"
    )
    (part,) = chosen.devices
    assert 0 < part.first_layer < 8 and part.num_layers == 8 - part.first_layer
    alone = edgespec.plan(model, context=256, threads=1, backend="llamacpp")
    assert chosen.footprint["weights"] < alone.footprint["weights"]
    assert chosen.footprint["weights"] + part.weights_bytes >= alone.footprint["weights"]
    assert chosen.footprint["KV cache"] + part.cache_bytes >= alone.footprint["KV cache"]
    fewer = edgespec.plan(
        model, context=256, threads=1, workers=addresses(pair), vram=8 * MIB, backend="llamacpp"
    )
    assert sum(one.total_bytes for one in fewer.devices) <= 8 * MIB
    assert part.describe() in chosen.explain()
    assert chosen.as_dict()["devices"][0]["total_bytes"] == part.total_bytes


@serving
def test_a_model_too_large_for_all_budgets_together_is_refused(
    model: Path, pair: list[Worker]
) -> None:
    alone = edgespec.plan(model, context=256, threads=1, backend="llamacpp", memory="2GiB")
    with pytest.raises(BudgetError, match="needs"):
        edgespec.plan(
            model, context=256, threads=1, workers=pair[0].address, backend="llamacpp",
            memory=alone.planned_bytes // 2,
        )  # fmt: skip


@serving
def test_trees_and_snapshots_work_over_workers(model: Path, pair: list[Worker]) -> None:
    tree = TokenTree(np.array([5, 9, 9, 30], np.int32), np.array([-1, 0, 0, 1], np.int16))
    plan = edgespec.plan(model, context=256, threads=1, workers=addresses(pair), backend="llamacpp")
    with (
        open_model(model) as file,
        LlamaTarget(file, plan) as local,
        OffloadedTarget(file, plan) as target,
    ):
        for one in (local, target):
            one.own.prefill(list(range(3, 40)))
        assert np.allclose(
            target.own.forward(tree).logits, local.own.forward(tree).logits, atol=1e-3
        )
        target.own.commit([0, 1])
        local.own.commit([0, 1])
        kept = target.own.snapshot()
        target.own.truncate(3)
        target.own.restore(kept)
        chain = TokenTree.chain([7])
        assert np.allclose(
            target.own.forward(chain).logits, local.own.forward(chain).logits, atol=1e-3
        )


@serving
def test_a_dead_worker_is_told_before_anything_is_loaded(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(BackendError, match=rf"no worker answers at 127.0.0.1:{port}.*edgespec wor"):
        load(model, workers=f"127.0.0.1:{port}")
    found = run_cli("run", "-m", model, "--workers", f"127.0.0.1:{port}", "hello")
    found.assert_refused(1, "no worker answers", str(port))


@serving
@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", SIZE.pack(28) + bytes(27), b"\xff" * 99]
)
def test_whatever_else_listens_there_is_told(model: Path, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        address = Address("127.0.0.1", server.getsockname()[1])
        with pytest.raises(BackendError, match="does not answer like a worker"):
            ask_worker(address, 2.0)


def test_another_version_of_the_protocol_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(SIZE.pack(28) + HELLO_REPLY.pack(6, 1, 0, 0, CAPABILITIES))

        threading.Thread(target=serve, daemon=True).start()
        address = Address("127.0.0.1", server.getsockname()[1])
        with pytest.raises(BackendError, match="speaks version 6.1.0"):
            ask_worker(address, 2.0)


def test_a_silent_address_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        begin = time.perf_counter()
        with pytest.raises(BackendError, match="does not answer within 0.2 s"):
            ask_worker(Address("127.0.0.1", server.getsockname()[1]), 0.2)
        assert time.perf_counter() - begin < 2


@serving
def test_a_worker_gives_no_more_than_it_offers_and_survives_nonsense() -> None:
    with workers(40 * MIB) as (worker,):
        wire = Wire(socket.create_connection(("127.0.0.1", worker.port), 5))
        wire.send(request(Command.HELLO, CAPABILITIES))
        wire.read(SIZE.size + HELLO_REPLY.size)

        def allocate(size: int) -> int:
            wire.send(request(Command.ALLOC_BUFFER, ALLOC_REQUEST.pack(0, size)))
            place: int = ALLOC_REPLY.unpack(wire.read(SIZE.size + ALLOC_REPLY.size)[8:])[0]
            return place

        offer = ask(wire)
        assert allocate(offer + 1) == 0
        whole = allocate(offer - MIB)
        assert whole and ask(wire) <= MIB
        assert allocate(2 * MIB) == 0
        wire.send(request(Command.BUFFER_CLEAR, SIZE.pack(whole) + b"\x07"))  # touches all of it
        wire.send(request(Command.FREE_BUFFER, SIZE.pack(whole)))
        assert ask(wire) == offer

        wire.send(request(Command.GRAPH_COMPUTE, bytes(12)))  # an empty graph
        with pytest.raises(OSError):  # noqa: PT011, SIM117
            wire.send(request(Command.GRAPH_COMPUTE, b"\xff" * 4096))
            wire.read(1)
        wire.close()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                assert ask_worker(parse_workers(worker.address)[0]).free_bytes == offer
                break
            except BackendError:
                time.sleep(0.1)
        else:
            raise AssertionError("the worker did not come back")
        assert worker.peak_bytes <= worker.memory_bytes


def ask(wire: Wire) -> int:
    """Free bytes of the worker at the other end."""
    wire.send(request(Command.GET_DEVICE_MEMORY, bytes(4)))
    return int.from_bytes(wire.read(24)[8:16], "little")


@serving
def test_past_the_hard_line_the_server_is_stopped() -> None:
    said: list[str] = []
    server = RpcServer(library.shared_folder(), 1)
    door = front.Front("127.0.0.1", 0, 1 << 40, server, said.append)
    try:
        door._budget_bytes = 1
        deadline = time.monotonic() + 5
        while server.runs() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not server.runs()
        assert "over its budget of 1 B" in said[0]
    finally:
        server.stop()


@serving
def test_a_second_client_is_told_that_the_worker_is_busy(model: Path) -> None:
    with workers(24 * MIB) as made, load(model, workers=addresses(made)) as engine:
        begin = time.perf_counter()
        with pytest.raises(BackendError, match=made[0].address):
            load(model, workers=addresses(made))
        assert time.perf_counter() - begin < 10
        assert engine.generate("the cat", max_tokens=3).stats.output_tokens > 0


@serving
def test_the_command_line_runs_and_explains(model: Path, pair: list[Worker]) -> None:
    options = ("-m", model, "--workers", addresses(pair), "--context", 256, "--threads", 1)
    planned = json.loads(run_cli("plan", *options, "--json").out)["planned_bytes"]
    budget = planned + 4 * MIB
    found = run_cli(
        "run", *options, "--memory", budget, "--max-tokens", 4, "--seed", 1, "--json", "hello"
    )
    assert found.code == 0, found.err
    values = json.loads(found.out)
    assert values["stats"]["peak_memory_bytes"] <= budget == values["plan"]["budget_bytes"]
    assert [part["name"] for part in values["plan"]["devices"]] == [w.address for w in pair]
    assert values["stats"]["backend"] == "llamacpp"
    told = run_cli("plan", "-v", "-m", model, "--workers", addresses(pair), "--context", 256)
    assert f"worker {pair[0].address}: layers" in told.out.replace("\n", " ")


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.7.7", "8.8.8.8", "::"])
def test_a_worker_that_others_could_reach_needs_a_key(host: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--key-file"):
        check_listening(host, None)
    check_listening(host, Key(write_key(tmp_path)))


def test_loopback_needs_no_key() -> None:
    for host in ("127.0.0.1", "localhost", "::1"):
        check_listening(host, None)
    run_cli("worker", "--host", "0.0.0.0").assert_refused(2, "needs a key", "--key-file")


@serving
def test_a_budget_that_leaves_nothing_to_offer_is_refused() -> None:
    run_cli("worker", "--port", 0, "--memory", "70MiB").assert_refused(1, "nothing to offer")


@pytest.mark.parametrize("text", ["", "host:", ":5", "host:0", "host:70000", "a:b", "x:1,x:1"])
def test_addresses_that_are_none_are_told(text: str) -> None:
    with pytest.raises(OptionError):
        parse_workers(text or ",")


def test_addresses_are_read() -> None:
    assert parse_workers("a.invalid:1, 127.0.0.1,[::1]:7") == (
        Address("a.invalid", 1), Address("127.0.0.1", 50052), Address("::1", 7),
    )  # fmt: skip
    assert parse_workers(None) == () and str(Address("::1", 7)) == "[::1]:7"


def test_devices_are_for_one_backend(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgespec.backends import registry as backends

    with open_model(model) as file, pytest.raises(OptionError, match="--backend llamacpp"):
        backends.offer_with_devices("native", file)
    monkeypatch.setattr(
        "edgespec.backends.llamacpp.remote.devices.missing_rpc", lambda: "built without"
    )
    monkeypatch.setattr("edgespec.backends.llamacpp.remote.devices.missing", lambda: "")
    with pytest.raises(BackendError, match="workers were named and built without"):
        edgespec.plan(model, workers="127.0.0.1:1")


@serving
def test_a_draft_model_drafts_here_while_workers_verify(
    model: Path, pair: list[Worker], tmp_path: Path
) -> None:
    small = write_gguf(tmp_path / "small.gguf", layers=1, template=CHATML, context=2048)
    options = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
    with load(model, workers=addresses(pair)) as plain:
        expected = plain.generate("the cat", speculation=False, **options)
    with load(model, workers=addresses(pair), draft_model=small, drafters="none") as engine:
        reply = engine.generate("the cat", max_nodes=4, **options)
        assert reply.token_ids == expected.token_ids
        assert "draft model" in {item.name for item in engine.plan.footprint}


@serving
@pytest.mark.parametrize("kind", ["int8", "state"])
def test_other_kinds_of_memory_are_placed_too(
    model: Path, pair: list[Worker], tmp_path: Path, kind: str
) -> None:
    """Quantised keys and values, and the states of a model that has none."""
    path = model if kind == "int8" else write_mamba(tmp_path / "mamba.gguf")
    options = {"max_tokens": 16, "temperature": 0, "ignore_eos": True, "raw": True}
    kv_type = kind if kind == "int8" else "f16"
    found = []
    for named in (None, addresses(pair)):
        with load(path, workers=named, kv_type=kv_type) as engine:
            found.append([engine.generate("the cat", **options).token_ids for _ in range(2)])
            assert bool(engine.plan.devices) == bool(named)
    assert found[0] == found[1]
