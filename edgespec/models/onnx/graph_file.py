"""What an ONNX file says of itself: inputs, outputs, operators and where its weights lie.

Read from the wire format, because ONNX Runtime tells little of it before it has loaded everything,
and checked: external data is looked for only beside the file. Source: onnx.proto of ONNX 1.17.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import field
from itertools import islice
from pathlib import Path, PurePosixPath, PureWindowsPath

from edgespec.errors import ModelFileError
from edgespec.models.gguf.file_source import FileSource
from edgespec.models.onnx.protobuf import Buffer, Value, WireError, fields, signed, varints
from edgespec.system.lost_pages import guard, num_lost_pages
from edgespec.system.records import dataclass

BITS = {
    1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 16: 16,
    17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 25: 2, 26: 2,
}  # fmt: skip
"""Of an element, by ONNX's numbers of types."""
FLOAT, INT64, BOOL, FLOAT16, BFLOAT16 = 1, 7, 9, 10, 16
_MOST_DEPTH = 16
_MOST_PARTS = 1 << 18
"""Nodes, tensors, names and dimensions together: unfused graphs of large models have some 50,000.
"""
_MOST_DIMENSIONS = 32
_MOST_BYTES = 1 << 50
_MOST_TEXT = 1 << 20
_MOST_DIGITS = 18
_EXTERNAL = 1
_REPEATED_DATA = (4, 5, 7, 10, 11)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A constant: in the file, or at `offset` of `location` beside it."""

    name: str
    kind: int
    shape: tuple[int, ...]
    size_bytes: int
    location: str = ""
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output; a dimension that varies is a name, or ""."""

    name: str
    kind: int
    shape: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Node:
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    settings: dict[str, int]
    """Attributes that are whole numbers."""


@dataclass(slots=True)
class Graph:
    """One model's graph; those of its branches and functions count for `external` only."""

    inputs: dict[str, Port] = field(default_factory=dict)
    outputs: dict[str, Port] = field(default_factory=dict)
    constants: dict[str, Tensor] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)
    external: list[Tensor] = field(default_factory=list)
    """Every tensor outside the file."""
    _num_parts: int = 0

    def count(self, parts: int = 1) -> None:
        """So many parts more are read; raises WireError for more than a graph can have."""
        self._num_parts += parts
        if self._num_parts > _MOST_PARTS:
            raise WireError(f"it has more than {_MOST_PARTS} parts")


def read_graph(path: Path) -> Graph:
    """Parse an ONNX file and look for its external data; raises ModelFileError."""
    with FileSource(path) as source:
        if not source.size_bytes:
            raise _damaged(path, "it is empty")
        guard()
        before = num_lost_pages()
        with mmap.mmap(source.fileno, 0, access=mmap.ACCESS_READ) as mapped:
            why = ""
            try:
                graph = _model(mapped)
            except (WireError, UnicodeDecodeError) as error:
                why = str(error)  # the error itself holds views of the map, which cannot end then
    if num_lost_pages() != before:
        why = "it was cut while it was read"
    if why:
        raise _damaged(path, f"it is not an ONNX model ({why})")
    if not graph.nodes or not graph.outputs:
        raise _damaged(path, "it is not an ONNX model (no graph in it)")
    for tensor in graph.external:
        _check_external(path, tensor)
    return graph


def _damaged(path: Path, why: str) -> ModelFileError:
    return ModelFileError(
        f"cannot open {path}: {why}; download it again, or make one with "
        "`edgespec export MODEL.gguf --format onnx OUT`"
    )


def _check_external(path: Path, tensor: Tensor) -> None:
    place = PurePosixPath(tensor.location), PureWindowsPath(tensor.location)
    if any(kind.is_absolute() or ".." in kind.parts for kind in place) or place[1].drive:
        raise _damaged(
            path, f"its weights would be read from outside its folder: {tensor.location}"
        )
    file = path.parent / tensor.location
    # A hub's cache links the graph and its data into a folder of their own.
    inside = path.parent.resolve(), path.resolve().parent
    try:
        whole, is_file = file.resolve(), file.is_file()
    except (OSError, ValueError):  # too long, or with characters that no name has
        raise _damaged(path, f"{tensor.location[:80]!r} is no name of a file") from None
    if not any(whole.is_relative_to(folder) for folder in inside):
        raise _damaged(path, f"{tensor.location} is a link that leads outside its folder")
    if not is_file:
        raise ModelFileError(
            f"cannot open {path}: its weights are in {tensor.location}, which is not beside it; "
            "download that file too, into the same folder"
        )
    status = file.stat()
    if status.st_nlink > 1:
        raise _damaged(
            path,
            f"{tensor.location} is a hard link, which may be a file from outside its folder; copy "
            "it if it is what it should be",
        )
    size = status.st_size
    if tensor.offset < 0 or tensor.offset + tensor.size_bytes > size:
        raise _damaged(
            path,
            f"{tensor.name[:80]!r} ends at byte {tensor.offset + tensor.size_bytes} of "
            f"{tensor.location}, which has {size}",
        )


def _model(message: Buffer) -> Graph:
    graph = Graph()
    for number, value in _known(message, (7, 14, 25)):
        if number == 7:
            _graph(_bytes(value), graph, 0)
        elif number == 14:
            graph.count(4)
            entry = dict(_texts(_bytes(value)))
            graph.properties[entry.get(1, "")] = entry.get(2, "")
        else:
            _function(_bytes(value), graph, 0)
    return graph


def _graph(message: Buffer, graph: Graph, depth: int) -> None:
    if depth > _MOST_DEPTH:
        raise WireError("branches within branches")
    for number, value in _known(message, (1, 5, 11, 12)):
        data = _bytes(value)
        if number == 1:
            graph.count()
            node = _node(data, graph, depth)
            if depth == 0:
                graph.nodes.append(node)
        elif number == 5:
            tensor = _tensor(data, graph)
            if depth == 0:
                graph.constants[tensor.name] = tensor
        elif depth == 0:
            port = _port(data)
            graph.count(1 + len(port.shape))
            (graph.inputs if number == 11 else graph.outputs)[port.name] = port


def _function(message: Buffer, graph: Graph, depth: int) -> None:
    for _, value in _known(message, (7,)):
        _node(_bytes(value), graph, depth)


def _node(message: Buffer, graph: Graph, depth: int) -> Node:
    inputs, outputs, operator = [], [], ""
    settings: dict[str, int] = {}
    for number, value in _known(message, (1, 2, 4, 5)):
        data = _bytes(value)
        graph.count()
        if number == 1:
            inputs.append(_text(data))
        elif number == 2:
            outputs.append(_text(data))
        elif number == 4:
            operator = _text(data)
        else:
            settings |= _attribute(data, graph, depth)
    return Node(operator, tuple(inputs), tuple(outputs), settings)


def _attribute(message: Buffer, graph: Graph, depth: int) -> dict[str, int]:
    name, found = "", {}
    for number, value in _known(message, (1, 3, 5, 6, 10, 11)):
        if number == 1:
            name = _text(_bytes(value))
        elif number == 3:
            found["i"] = signed(_whole(value))
        elif number in (5, 10):
            _tensor(_bytes(value), graph)
        else:
            _graph(_bytes(value), graph, depth + 1)
    return {name: found["i"]} if found else {}


def _tensor(message: Buffer, graph: Graph) -> Tensor:
    name, kind, held, place = "", 0, 0, 0
    dims: list[int] = []
    facts: dict[str, str] = {}
    graph.count(4)
    for number, value in _known(message, (1, 2, 8, 9, 13, 14, *_REPEATED_DATA)):
        if number == 1:
            dims += _packed(value, _MOST_DIMENSIONS - len(dims))
        elif number == 2:
            kind = _whole(value)
        elif number == 8:
            name = _text(_bytes(value))
        elif number == 13:
            entry = dict(_texts(_bytes(value)))
            facts[entry.get(1, "")] = entry.get(2, "")
        elif number == 14:
            place = _whole(value)
        elif not isinstance(value, int):
            held += len(value)
    if any(dim < 0 for dim in dims):
        raise WireError(f"{name[:80]!r} has a negative dimension")
    size = 1
    for dim in dims:
        size *= dim
        if size > _MOST_BYTES:
            raise WireError(f"{name[:80]!r} is larger than any file")
    size = -(-size * BITS.get(kind, 8) // 8)
    if place != _EXTERNAL:
        return Tensor(name, kind, tuple(dims), max(size, held))
    offset = _place(name, facts.get("offset", "0") or "0")
    length = _place(name, facts.get("length", "0") or str(size))
    tensor = Tensor(name, kind, tuple(dims), max(size, length), facts.get("location", ""), offset)
    graph.external.append(tensor)
    return tensor


def _place(name: str, digits: str) -> int:
    """Where external data begins, or how long it is."""
    if not digits.isdecimal() or not digits.isascii() or len(digits) > _MOST_DIGITS:
        raise WireError(f"{name[:80]!r} lies at no number")
    return int(digits)


def _port(message: Buffer) -> Port:
    name, kind, shape = "", 0, []
    for number, value in _known(message, (1, 2)):
        if number == 1:
            name = _text(_bytes(value))
            continue
        for _, tensor in _known(_bytes(value), (1,)):
            for part, inner in _known(_bytes(tensor), (1, 2)):
                if part == 1:
                    kind = _whole(inner)
                else:
                    dims = islice(_known(_bytes(inner), (1,)), _MOST_DIMENSIONS + 1)
                    shape = [_dim(_bytes(dim)) for _, dim in dims]
                    if len(shape) > _MOST_DIMENSIONS:
                        raise WireError(f"more than {_MOST_DIMENSIONS} dimensions")
    return Port(name, kind, tuple(shape))


def _dim(message: Buffer) -> int | str:
    found: int | str = ""
    for number, value in _known(message, (1, 2)):
        found = signed(_whole(value)) if number == 1 else _text(_bytes(value))
    return found


def _known(message: Buffer, numbers: tuple[int, ...]) -> Iterator[tuple[int, Value]]:
    return ((number, value) for number, _, value in fields(message) if number in numbers)


def _texts(message: Buffer) -> Iterator[tuple[int, str]]:
    return ((number, _text(_bytes(value))) for number, value in _known(message, (1, 2)))


def _packed(value: Value, most: int) -> list[int]:
    """Whole numbers, one or many in a field."""
    numbers = [value] if isinstance(value, int) else list(islice(varints(value), most + 1))
    if len(numbers) > most:
        raise WireError(f"more than {_MOST_DIMENSIONS} dimensions")
    return [signed(number) for number in numbers]


def _bytes(value: Value) -> memoryview:
    if isinstance(value, int):
        raise WireError("a number where a message should be")
    return value


def _whole(value: Value) -> int:
    if not isinstance(value, int):
        raise WireError("bytes where a number should be")
    return value


def _text(data: Buffer) -> str:
    if len(data) > _MOST_TEXT:
        raise WireError(f"a name of {len(data)} bytes")
    return bytes(data).decode("utf-8")
