"""What a door lets through to ggml: requests inside the buffers that a client was given."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

import pytest

from edgespec.backends.llamacpp import ggml, library
from edgespec.backends.llamacpp.remote.buffers import Buffers, Operations
from edgespec.backends.llamacpp.remote.protocol import (
    ALLOC_REPLY,
    ALLOC_REQUEST,
    CAPABILITIES,
    GET_REQUEST,
    HELLO_REPLY,
    SET_HEAD,
    SIZE,
    Command,
    request,
)
from edgespec.backends.llamacpp.remote.wire import Wire
from edgespec.models.spec import TensorType
from edgespec.system import wall
from edgespec.system.size import MIB
from tests.support.llamacpp_workers import Worker, own_bytes, serving

NAMES = ("NONE", "ADD", "VIEW", "MAP_CUSTOM1", "CUSTOM", "OPT_STEP_ADAMW", "GLU")
NONE, ADD, VIEW, CUSTOM, LAST = 0, 1, 2, 3, 6
HELD, BASE, ROOM = 0x7000, 0x10000, 4096


def test_the_process_that_serves_needs_nothing_of_the_package() -> None:
    for module in (ggml, wall):
        program = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            "import runpy, sys; runpy.run_path(sys.argv[1])",
        ]
        done = subprocess.run([*program, module.__file__], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def _tensor(
    *,
    id: int = 1,
    type: int = 0,
    buffer: int = HELD,
    counts: tuple[int, ...] = (64, 4, 1, 1),
    strides: tuple[int, ...] = (4, 256, 1024, 1024),
    operation: int = NONE,
    sources: tuple[int, ...] = (),
    view: int = 0,
    data: int = BASE,
) -> bytes:
    return struct.pack(
        "<QIQ4I4II64si10Q3Q64si", id, type, buffer, *counts, *strides, operation, bytes(64), 0,
        *(*sources, *[0] * (10 - len(sources))), view, 0, data, b"t", 0,
    )  # fmt: skip


def _graph(nodes: list[int], tensors: list[bytes], device: int = 0) -> bytes:
    head = struct.pack(f"<II{len(nodes)}QI", device, len(nodes), *nodes, len(tensors))
    return head + b"".join(tensors)


def _add(**changes: int) -> list[bytes]:
    return [_tensor(id=1), _tensor(id=2, data=BASE + 1024),
            _tensor(id=3, operation=ADD, sources=(1, 2), data=BASE + 2048, **changes)]  # fmt: skip


@pytest.fixture
def buffers() -> Buffers:
    made = Buffers(Operations(NAMES))
    made.add(HELD, BASE, ROOM)
    return made


SOUND: dict[str, tuple[Command, Callable[[], bytes]]] = {
    "read all": (Command.GET_TENSOR, lambda: GET_REQUEST.pack(_tensor(), 0, 1024)),
    "read an end": (
        Command.GET_TENSOR, lambda: GET_REQUEST.pack(_tensor(data=BASE + 3072), 0, 1024)),
    "quantised": (
        Command.GET_TENSOR,
        lambda: GET_REQUEST.pack(_tensor(type=8, counts=(64, 1, 1, 1), strides=(34,) * 4), 0, 68),
    ),
    "fill": (Command.MEMSET_TENSOR, lambda: _tensor() + struct.pack("<QQB", 0, 1024, 7)),
    "copy": (Command.COPY_TENSOR, lambda: _tensor() + _tensor(id=2, data=BASE + 1024)),
    "size of one without memory": (
        Command.GET_ALLOC_SIZE,
        lambda: bytes(4) + _tensor(buffer=0, data=0) + bytes(2960),
    ),
    "a graph": (Command.GRAPH_COMPUTE, lambda: _graph([3], _add())),
    "a graph of nothing": (Command.GRAPH_COMPUTE, lambda: _graph([], [])),
    "a view of what is elsewhere": (
        Command.GRAPH_COMPUTE,
        lambda: _graph([2], [_tensor(id=1, buffer=0, data=0),
                             _tensor(id=2, operation=VIEW, view=1, buffer=0, data=0)]),
    ),
    "clear": (Command.BUFFER_CLEAR, lambda: SIZE.pack(HELD) + b"\0"),
}  # fmt: skip

BROKEN: dict[str, tuple[Command, Callable[[], bytes]]] = {
    "read before the buffer": (
        Command.GET_TENSOR, lambda: GET_REQUEST.pack(_tensor(data=BASE - 64), 0, 64)),
    "read behind it": (
        Command.GET_TENSOR, lambda: GET_REQUEST.pack(_tensor(), 4000, 128)),
    "an offset around the end of all memory": (
        Command.GET_TENSOR, lambda: GET_REQUEST.pack(_tensor(), 2**64 - 64, 64)),
    "a size of everything": (
        Command.GET_TENSOR, lambda: GET_REQUEST.pack(_tensor(), 0, 2**64 - 1)),
    "no buffer and an address": (  # CVE-2026-34159
        Command.GET_TENSOR, lambda: GET_REQUEST.pack(_tensor(buffer=0, data=0x41414141), 0, 8)),
    "no buffer and none": (
        Command.GET_TENSOR, lambda: GET_REQUEST.pack(_tensor(buffer=0, data=0), 0, 8)),
    "another's buffer": (
        Command.GET_TENSOR, lambda: GET_REQUEST.pack(_tensor(buffer=HELD + 8), 0, 8)),
    "type 256": (  # CVE-2024-42477
        Command.GET_TENSOR, lambda: GET_REQUEST.pack(_tensor(type=0x100), 0, 8)),
    "a type that is gone": (
        Command.GET_TENSOR, lambda: GET_REQUEST.pack(_tensor(type=4), 0, 8)),
    "half a block": (
        Command.GET_TENSOR,
        lambda: GET_REQUEST.pack(_tensor(type=8, counts=(33, 1, 1, 1)), 0, 8)),
    "strides beyond": (
        Command.INIT_TENSOR, lambda: _tensor(strides=(4, 2**31, 4, 4))),
    "counts whose product overflows": (
        Command.INIT_TENSOR, lambda: _tensor(counts=(2**32 - 1,) * 4, strides=(2**32 - 1,) * 4)),
    "fill beyond the tensor": (
        Command.MEMSET_TENSOR, lambda: _tensor() + struct.pack("<QQB", 1000, 64, 7)),
    "a copy that is too long": (
        Command.COPY_TENSOR, lambda: _tensor() + _tensor(id=2, data=BASE + 3584,
                                                         counts=(64, 1, 1, 1))),
    "free what is not there": (Command.BUFFER_GET_BASE, lambda: SIZE.pack(HELD + 1)),
    "clear an address": (Command.BUFFER_CLEAR, lambda: SIZE.pack(0xDEAD) + b"\0"),
    "a second device": (Command.ALLOC_BUFFER, lambda: ALLOC_REQUEST.pack(1, 64)),
    "a source's memory outside": (
        Command.GET_ALLOC_SIZE, lambda: bytes(4) + _tensor() + _tensor(data=1) + bytes(2664)),
    "a function by its address": (
        Command.GRAPH_COMPUTE, lambda: _graph([1], [_tensor(operation=CUSTOM)])),
    "an operation past the last": (
        Command.GRAPH_COMPUTE, lambda: _graph([1], [_tensor(operation=LAST + 1)])),
    "training": (Command.GRAPH_COMPUTE, lambda: _graph([1], [_tensor(operation=5)])),
    "a node without memory": (
        Command.GRAPH_COMPUTE, lambda: _graph([1], [_tensor(operation=ADD, buffer=0, data=0)])),
    "a source without memory": (
        Command.GRAPH_COMPUTE, lambda: _graph([3], [_tensor(id=1, buffer=0, data=0), *_add()[1:]])),
    "a source that is not there": (
        Command.GRAPH_COMPUTE, lambda: _graph([3], _add()[1:])),
    "tensors in a circle": (
        Command.GRAPH_COMPUTE, lambda: _graph([1], [_tensor(id=1, sources=(2,)),
                                                    _tensor(id=2, sources=(1,))])),
    "a tensor of itself": (
        Command.GRAPH_COMPUTE, lambda: _graph([1], [_tensor(id=1, view=1)])),
    "two of one name": (Command.GRAPH_COMPUTE, lambda: _graph([1], [_tensor(), _tensor()])),
    "a node twice": (Command.GRAPH_COMPUTE, lambda: _graph([3, 3], _add())),
    "a node that is not there": (Command.GRAPH_COMPUTE, lambda: _graph([9], _add())),
    "node 0": (Command.GRAPH_COMPUTE, lambda: _graph([0], _add())),
    "more nodes than bytes": (
        Command.GRAPH_COMPUTE, lambda: struct.pack("<III", 0, 2**32 - 1, 0)),
    "more tensors than bytes": (
        Command.GRAPH_COMPUTE, lambda: struct.pack("<III", 0, 0, 2**32 - 1)),
    "bytes behind the graph": (Command.GRAPH_COMPUTE, lambda: _graph([3], _add()) + b"x"),
    "a graph of 3 bytes": (Command.GRAPH_COMPUTE, lambda: b"abc"),
    "a graph elsewhere": (Command.GRAPH_COMPUTE, lambda: _graph([3], _add(), device=1)),
    "the graph of another device": (Command.GRAPH_RECOMPUTE, lambda: struct.pack("<I", 7)),
}  # fmt: skip


@pytest.mark.parametrize("case", SOUND)
def test_what_stays_inside_passes(case: str, buffers: Buffers) -> None:
    command, payload = SOUND[case]
    buffers.check(command, payload())


@pytest.mark.parametrize("case", BROKEN)
def test_what_leaves_the_buffers_does_not_pass(case: str, buffers: Buffers) -> None:
    command, payload = BROKEN[case]
    with pytest.raises(ValueError, match="."):
        buffers.check(command, payload())


def test_what_is_written_stays_inside(buffers: Buffers) -> None:
    buffers.set_bytes(SET_HEAD.pack(_tensor(), 0, 0), 1024)
    for tensor, offset, size in (
        (_tensor(), 4000, 97), (_tensor(), 2**64 - 8, 8), (_tensor(buffer=0, data=0), 0, 1),
        (_tensor(data=BASE + ROOM), 0, 1), (_tensor(buffer=1), 0, 1),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="."):
            buffers.set_bytes(SET_HEAD.pack(tensor, 0, offset), size)


def test_a_freed_buffer_is_gone(buffers: Buffers) -> None:
    buffers.free(SIZE.pack(HELD))
    assert len(buffers) == buffers.num_bytes == 0
    for asked in (lambda: buffers.free(SIZE.pack(HELD)), lambda: buffers.tensor(_tensor())):
        with pytest.raises(ValueError, match="."):
            asked()


@serving
def test_the_build_says_what_it_computes() -> None:
    """The last operation is where it is looked for, and functions by address are among them."""
    names = ggml.operation_names(library.shared_folder())
    assert names[0] == "NONE" and names[-1] == "GLU" and len(names) < 128
    operations = Operations(names)
    assert names.index("MUL_MAT") in operations.known
    for name in ("MAP_CUSTOM1", "MAP_CUSTOM2", "MAP_CUSTOM3", "CUSTOM", "OPT_STEP_SGD"):
        assert names.index(name) not in operations.known


@serving
def test_types_are_as_large_as_the_build_says() -> None:
    import ctypes

    path = ggml.library_file(library.shared_folder(), "ggml-base")
    base = ctypes.CDLL(str(path))
    base.ggml_blck_size.restype, base.ggml_type_size.restype = ctypes.c_int64, ctypes.c_size_t
    for type in TensorType:
        assert base.ggml_blck_size(type.type_id) == type.block_size, type
        assert base.ggml_type_size(type.type_id) == type.block_bytes, type


@serving
def test_a_worker_outlives_graphs_that_lie() -> None:
    """At a real worker, with the addresses of a buffer that it gave."""
    names = ggml.operation_names(library.shared_folder())
    with Worker(own_bytes() + 8 * MIB) as worker:
        cases = [("MAP_CUSTOM1", 0), ("CUSTOM", 0), ("ADD", MIB), ("ADD", -64), ("ADD", 2**40)]
        for name, offset in cases:
            wire = Wire(socket.create_connection(("127.0.0.1", worker.port), 20))
            wire.send(request(Command.HELLO, CAPABILITIES))
            wire.read(SIZE.size + HELLO_REPLY.size)
            wire.send(request(Command.ALLOC_BUFFER, ALLOC_REQUEST.pack(0, MIB)))
            handle, _ = ALLOC_REPLY.unpack(wire.read(SIZE.size + ALLOC_REPLY.size)[SIZE.size :])
            wire.send(request(Command.BUFFER_GET_BASE, SIZE.pack(handle)))
            base = SIZE.unpack(wire.read(2 * SIZE.size)[SIZE.size :])[0]
            bad = _tensor(operation=names.index(name), buffer=handle, data=(base + offset) % 2**64)
            wire.send(request(Command.GRAPH_COMPUTE, _graph([1], [bad])))
            with suppress(ConnectionError):
                wire.send(request(Command.GET_DEVICE_MEMORY, bytes(4)))
                with pytest.raises(ConnectionError):
                    wire.read(SIZE.size)
            wire.close()
            assert worker._process.poll() is None
    assert worker.said.count("dropped for what it asked") == 5
    assert "has ended" not in worker.said
