"""What a worker's client holds, and whether what it asks for stays inside that.

ggml's server takes addresses from its clients. It checks most of them itself; here all are, before
it sees a request: a tensor lies in a buffer that this client was given, a graph's tensors know one
another, and no node's operation is a function that the client names by address.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

from edgespec.backends.llamacpp.remote.protocol import (
    GET_REQUEST,
    SET_HEAD,
    SIZE,
    TENSOR_BYTES,
    Command,
)
from edgespec.models.spec import TensorType
from edgespec.system.records import dataclass

MOST_BUFFERS = 4096
_TENSOR = struct.Struct("<QIQ4I4II64si10Q3Q64si")
assert _TENSOR.size == TENSOR_BYTES
_MEMSET = struct.Struct(f"<{TENSOR_BYTES}sQQB")
_COUNT = struct.Struct("<I")
_MOST_BYTES = 1 << 50
_VIEWS = ("NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE")
_REFUSED = ("MAP_CUSTOM", "CUSTOM", "OPT_STEP", "CROSS_ENTROPY")
"""Beginnings of names: functions by their address, and training."""


_BLOCKS = {type.type_id: (type.block_size, type.block_bytes) for type in TensorType}


class Operations:
    """Which operations of ggml's clients may ask for, by number."""

    def __init__(self, names: Sequence[str]) -> None:
        """`names` in the order of their numbers."""
        numbers = dict(enumerate(names))
        self.known = {i for i, name in numbers.items() if not name.startswith(_REFUSED)}
        self.views = {i for i, name in numbers.items() if name in _VIEWS}
        """Those that compute nothing, so that a tensor needs no memory for them."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as a client describes it."""

    id: int
    operation: int
    sources: tuple[int, ...]
    """Ids, the one it is a view of included."""
    buffer: int
    """0 for a tensor without memory."""
    data: int
    num_bytes: int


class Buffers:
    """Buffers of one client by their handle; methods raise ValueError for what is not inside."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._held: dict[int, tuple[int, int]] = {}
        """Base address and bytes."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def num_bytes(self) -> int:
        return sum(size for _, size in self._held.values())

    def add(self, handle: int, base: int, size: int) -> None:
        self._held[handle] = (base, size)

    def clear(self) -> None:
        self._held.clear()

    def check(self, command: Command, payload: bytes) -> None:
        """Whether a request is one to pass on; of a tensor's bytes only the head is looked at."""
        look = self._LOOKS.get(command)
        if look is not None:
            try:
                look(self, payload)
            except struct.error:
                raise ValueError(f"{command.name} ends early") from None

    def free(self, payload: bytes) -> None:
        """A request to free a buffer, which is then gone."""
        del self._held[self._handle(payload)]

    def _handle(self, payload: bytes) -> int:
        handle = int(SIZE.unpack_from(payload)[0])
        if handle not in self._held:
            raise ValueError(f"{handle:#x} is no buffer of this client")
        return handle

    def tensor(self, payload: bytes, start: int = 0) -> Tensor:
        """One tensor, whose memory, if it has any, is inside its buffer."""
        values = _TENSOR.unpack_from(payload, start)
        counts, strides, operation = values[3:7], values[7:11], values[11]
        if operation not in self._operations.known:
            raise ValueError(f"operation {operation} is none for clients")
        made = Tensor(
            values[0],
            operation,
            tuple(filter(None, values[14:25])),
            values[2],
            values[26],
            self._num_bytes(values[1], counts, strides),
        )
        if made.buffer:
            self._check_range(made, made.data, made.num_bytes)
        elif made.data:
            raise ValueError("a tensor has an address and no buffer")
        return made

    def _num_bytes(self, kind: int, counts: tuple[int, ...], strides: tuple[int, ...]) -> int:
        block, size = _BLOCKS.get(kind, (0, 0))
        if not block or counts[0] % block:
            raise ValueError(f"no tensor of type {kind} has {counts[0]} columns")
        if not all(counts):
            return 0
        if block == 1:
            first = size + (counts[0] - 1) * strides[0]
        else:
            first = counts[0] * strides[0] // block
        rest = sum((n - 1) * step for n, step in zip(counts[1:], strides[1:], strict=True))
        if first + rest > _MOST_BYTES:
            raise ValueError("a tensor is larger than any memory")
        return first + rest

    def _check_range(self, tensor: Tensor, start: int, size: int) -> None:
        """Whether so many bytes from an address on are in the tensor's buffer."""
        base, room = self._held.get(tensor.buffer, (0, 0))
        if not (base and base <= start and start + size <= base + room):
            raise ValueError("a tensor lies outside its buffer")

    def set_bytes(self, head: bytes, size: int) -> None:
        """The head of a request that writes so many bytes."""
        _, _, offset = SET_HEAD.unpack(head)
        self._check_part(head, offset, size)

    def _check_part(self, payload: bytes, offset: int, size: int) -> Tensor:
        tensor = self.tensor(payload)
        self._check_range(tensor, tensor.data + offset, size)
        return tensor

    def _get(self, payload: bytes) -> None:
        _, offset, size = GET_REQUEST.unpack(payload)
        self._check_part(payload, offset, size)

    def _memset(self, payload: bytes) -> None:
        _, offset, size, _ = _MEMSET.unpack(payload)
        tensor = self._check_part(payload, offset, size)
        if offset + size > tensor.num_bytes:
            raise ValueError("more is written than the tensor has")

    def _copy(self, payload: bytes) -> None:
        source = self._check_part(payload, 0, 0)
        self._check_part(payload[TENSOR_BYTES:], 0, source.num_bytes)

    def _one(self, payload: bytes) -> None:
        self._check_part(payload, 0, 0)

    def _alloc_size(self, payload: bytes) -> None:
        for start in range(_COUNT.size, len(payload), TENSOR_BYTES):
            self.tensor(payload, start)

    def _device(self, payload: bytes) -> None:
        if _COUNT.unpack_from(payload)[0]:
            raise ValueError("a worker has one device")

    def _graph(self, payload: bytes) -> None:
        """A graph: tensors come after those that they are made from, nodes are among them, each
        once, and whatever is computed has memory, and is computed from what has.
        """
        self._device(payload)
        nodes, tensors = self._parts(payload)
        known: dict[int, Tensor] = {}
        for tensor in tensors:
            if not tensor.id or tensor.id in known:
                raise ValueError("two tensors of a graph have the same name")
            if any(source not in known for source in tensor.sources):
                raise ValueError("a tensor is made from one that is not there")
            known[tensor.id] = tensor
        if len(set(nodes)) < len(nodes):
            raise ValueError("a node is computed twice")
        for node in nodes:
            if node not in known:
                raise ValueError("a node is not there")
            made = known[node]
            if made.operation in self._operations.views:
                continue
            for used in (made, *(known[source] for source in made.sources)):
                if not used.buffer and used.num_bytes:
                    raise ValueError("a node is computed without memory")

    def _parts(self, payload: bytes) -> tuple[tuple[int, ...], Iterator[Tensor]]:
        """Nodes' ids and the tensors of a graph, whose parts are as long as it says."""
        num_nodes = _COUNT.unpack_from(payload, 4)[0]
        start = 8 + num_nodes * SIZE.size
        num_tensors = _COUNT.unpack_from(payload, start)[0]
        first = start + _COUNT.size
        if len(payload) != first + num_tensors * TENSOR_BYTES:
            raise ValueError("a graph has another length than it says")
        nodes = struct.unpack_from(f"<{num_nodes}Q", payload, 8)
        places = range(first, len(payload), TENSOR_BYTES)
        return nodes, (self.tensor(payload, place) for place in places)

    def _known_handle(self, payload: bytes) -> None:
        self._handle(payload)

    _LOOKS: dict[Command, Callable[[Buffers, bytes], None]] = {
        Command.ALLOC_BUFFER: _device,
        Command.GET_ALIGNMENT: _device,
        Command.GET_MAX_SIZE: _device,
        Command.GET_DEVICE_MEMORY: _device,
        Command.GRAPH_RECOMPUTE: _device,
        Command.BUFFER_GET_BASE: _known_handle,
        Command.BUFFER_CLEAR: _known_handle,
        Command.SET_TENSOR_HASH: _one,
        Command.GET_TENSOR: _get,
        Command.MEMSET_TENSOR: _memset,
        Command.COPY_TENSOR: _copy,
        Command.INIT_TENSOR: _one,
        Command.GET_ALLOC_SIZE: _alloc_size,
        Command.GRAPH_COMPUTE: _graph,
    }
