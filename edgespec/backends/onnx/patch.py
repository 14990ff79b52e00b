"""Trees for graphs that were made for chains: masks and positions given to every attention.

GroupQueryAttention can take each row's position and a bias for each pair of row and position, but
no exporter wires them. A copy of the graph that does is made in memory; weights in files of their
own stay where they are.
"""

from __future__ import annotations

from edgespec.models.protobuf import BYTES, Buffer, field, fields, varint

BIAS = "edgespec.attention_bias"
POSITIONS = "position_ids"
ATTENTION = b"GroupQueryAttention"
_GRAPH, _NODE, _INPUT, _NODE_INPUT, _OPERATOR = 7, 1, 11, 1, 4
_POSITIONS_PLACE, _BIAS_PLACE = 9, 10
"""Of the inputs of GroupQueryAttention."""
_FLOAT, _INT64, _FLOAT16 = 1, 7, 10


def with_trees(model: Buffer, *, half: bool, rotates: bool, has_positions: bool) -> bytes:
    """A model whose attention takes `BIAS`, [1, 1, rows, positions], added to every head's scores,
    and where it `rotates` queries and keys itself, `POSITIONS` too.

    `half`: it computes with 16-bit floats; `has_positions`: the graph has that input already.
    """
    out = bytearray()
    for number, kind, value in fields(model):
        if number == _GRAPH and kind == BYTES and not isinstance(value, int):
            value = memoryview(_graph(value, half, rotates, rotates and not has_positions))
        out += _raw(number, kind, value)
    return bytes(out)


def _graph(graph: Buffer, half: bool, rotates: bool, add_positions: bool) -> bytes:
    out = bytearray()
    for number, kind, value in fields(graph):
        if number == _NODE and kind == BYTES and not isinstance(value, int):
            value = memoryview(_node(value, rotates))
        out += _raw(number, kind, value)
    if add_positions:
        out += field(_INPUT, _tensor(POSITIONS, _INT64, ["batch_size", "sequence_length"]))
    shape: list[int | str] = [1, 1, "sequence_length", "edgespec.positions"]
    return bytes(out + field(_INPUT, _tensor(BIAS, _FLOAT16 if half else _FLOAT, shape)))


def _node(node: Buffer, rotates: bool) -> bytes:
    parts = list(fields(node))
    texts = [(number, bytes(value)) for number, _, value in parts if not isinstance(value, int)]
    if (_OPERATOR, ATTENTION) not in texts:
        return bytes(node)
    names = [text for number, text in texts if number == _NODE_INPUT]
    names += [b""] * (_BIAS_PLACE + 1 - len(names))
    if rotates:
        names[_POSITIONS_PLACE] = POSITIONS.encode()
    names[_BIAS_PLACE] = BIAS.encode()
    rest = b"".join(_raw(*part) for part in parts if part[0] != _NODE_INPUT)
    return b"".join(field(_NODE_INPUT, name) for name in names) + rest


def _tensor(name: str, kind: int, shape: list[int | str]) -> bytes:
    """A ValueInfoProto."""
    dims = b"".join(
        field(1, field(1, dim) if isinstance(dim, int) else field(2, dim.encode())) for dim in shape
    )
    return field(1, name.encode()) + field(2, field(1, field(1, kind) + field(2, dims)))


def _raw(number: int, kind: int, value: int | Buffer) -> bytes:
    """A field as it was read."""
    if isinstance(value, int) or kind == BYTES:
        return field(number, value)
    return varint(number << 3 | kind) + bytes(value)
