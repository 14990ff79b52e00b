"""What exporters leave out of a graph, given to a copy of it that is made in memory.

GroupQueryAttention can take each row's position and a bias for each pair of row and position, which
trees need, and no exporter wires them. A graph without `num_logits_to_keep` multiplies every row
with its output head, in a prompt too, where nobody wants to know. Weights in files of their own
stay where they are.
"""

from __future__ import annotations

from edgespec.models.onnx.protobuf import BYTES, Buffer, field, fields, varint
from edgespec.system.records import dataclass

BIAS = "edgespec.attention_bias"
POSITIONS = "position_ids"
PICKED = "edgespec.picked_rows"
ATTENTION = b"GroupQueryAttention"
_GRAPH, _NODE, _INPUT, _OUTPUT = 7, 1, 11, 12
_NODE_INPUT, _NODE_OUTPUT, _OPERATOR, _ATTRIBUTE = 1, 2, 4, 5
_POSITIONS_PLACE, _BIAS_PLACE = 9, 10
"""Of the inputs of GroupQueryAttention."""
_FLOAT, _INT64, _FLOAT16 = 1, 7, 10
_AXIS_1 = field(1, b"axis") + field(3, 1) + field(20, 2)


@dataclass(frozen=True, slots=True)
class Head:
    """The product that makes the logits: what it takes, and its own output."""

    takes: str
    makes: str
    vocab_size: int
    half: bool
    """Logits are 16-bit floats."""


@dataclass(frozen=True, slots=True)
class Patch:
    """What to do to a graph."""

    trees: bool = False
    """Its attention takes `BIAS`, [1, 1, rows, positions], added to every head's scores, and where
    it `rotates` queries and keys itself, `POSITIONS` too.
    """
    half: bool = False
    """Attention computes with 16-bit floats."""
    rotates: bool = False
    has_positions: bool = False
    """The graph has that input already."""
    head: Head | None = None
    """It gets only rows `PICKED`, [picked] int64."""

    def apply(self, model: Buffer) -> bytes:
        """A patched copy of a ModelProto."""
        out = bytearray()
        for number, kind, value in fields(model):
            if number == _GRAPH and kind == BYTES and not isinstance(value, int):
                value = memoryview(self._graph(value))
            out += _raw(number, kind, value)
        return bytes(out)

    def _graph(self, graph: Buffer) -> bytes:
        out = bytearray()
        for number, kind, value in fields(graph):
            if isinstance(value, int):
                out += _raw(number, kind, value)
            elif number == _NODE:
                out += self._nodes(value)
            elif number == _OUTPUT and self.head and _name(value) == b"logits":
                of = _FLOAT16 if self.head.half else _FLOAT
                shape: list[int | str] = ["batch_size", "edgespec.picked", self.head.vocab_size]
                out += field(_OUTPUT, _tensor("logits", of, shape))
            else:
                out += _raw(number, kind, value)
        if self.trees and self.rotates and not self.has_positions:
            out += field(_INPUT, _tensor(POSITIONS, _INT64, ["batch_size", "sequence_length"]))
        if self.trees:
            shape = [1, 1, "sequence_length", "edgespec.positions"]
            out += field(_INPUT, _tensor(BIAS, _FLOAT16 if self.half else _FLOAT, shape))
        if self.head:
            out += field(_INPUT, _tensor(PICKED, _INT64, ["edgespec.picked"]))
        return bytes(out)

    def _nodes(self, node: Buffer) -> bytes:
        """A node as it was, or patched, with what comes before it."""
        texts = [
            (number, bytes(value))
            for number, _, value in fields(node)
            if not isinstance(value, int)
        ]
        if self.head and (_NODE_OUTPUT, self.head.makes.encode()) in texts:
            rows = field(_NODE_INPUT, self.head.takes.encode()) + field(
                _NODE_INPUT, PICKED.encode()
            )
            kept = b"edgespec.kept_rows"
            gather = rows + field(_NODE_OUTPUT, kept) + field(_OPERATOR, b"Gather")
            names = [text for number, text in texts if number == _NODE_INPUT]
            patched = _with_inputs(node, [kept, *names[1:]])
            return field(_NODE, gather + field(_ATTRIBUTE, _AXIS_1)) + field(_NODE, patched)
        if not self.trees or (_OPERATOR, ATTENTION) not in texts:
            return field(_NODE, bytes(node))
        names = [text for number, text in texts if number == _NODE_INPUT]
        names += [b""] * (_BIAS_PLACE + 1 - len(names))
        if self.rotates:
            names[_POSITIONS_PLACE] = POSITIONS.encode()
        names[_BIAS_PLACE] = BIAS.encode()
        return field(_NODE, _with_inputs(node, names))


def _with_inputs(node: Buffer, names: list[bytes]) -> bytes:
    rest = b"".join(_raw(*part) for part in fields(node) if part[0] != _NODE_INPUT)
    return b"".join(field(_NODE_INPUT, name) for name in names) + rest


def _name(port: Buffer) -> bytes:
    return next((bytes(v) for n, _, v in fields(port) if n == 1 and not isinstance(v, int)), b"")


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
