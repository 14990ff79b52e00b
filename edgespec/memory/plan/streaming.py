"""Models beyond the budget: what of their weights stays in memory, and what passes read from disk.

Of dense models, matrices of layers are read in every pass, through a ring of buffers; those that
stay are mixers' first, then feed-forward parts, of layers that are spread evenly. Of mixtures of
experts all stays but the experts, of which as many are held as fit. Embeddings that are only looked
up in are read row by row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

from edgespec.memory.plan.native_sizes import PACKED, TILE_ROWS, turned_mixers
from edgespec.memory.plan.state_layout import round_up
from edgespec.models.layers import Dense, LayerSpec, Matrix, Moe
from edgespec.models.spec import ModelSpec, TensorInfo
from edgespec.system.records import dataclass
from edgespec.system.size import MIB

STREAM_ITEM = "stream buffers"
READ_THREADS = 3
READ_BYTES = 2 * MIB
"""Of a file that a thread reads and packs at a time."""
PAGE = 4096
"""What disks read whole ones of."""
LINE = 64
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True)
class Streaming:
    """What a plan leaves on disk."""

    matrices: tuple[Matrix, ...]
    """Read in every pass."""
    expert_slots: int
    """Experts that are held at a time, of all layers together; 0 where none are on disk."""
    num_experts: int
    """Of all layers together."""
    active_part: float
    """Of a layer's experts, those that a node goes through; 0 where none are on disk."""
    embedding: bool
    """Whether its rows are read when they are looked up."""
    on_disk_bytes: int
    """Of packed weights."""
    buffer_bytes: int
    """The ring or the slots."""
    room_bytes: int
    """Of a thread that reads."""
    read_bytes: int
    """Of the file that a pass over one node reads, if experts are chosen evenly."""
    spare_bytes: int = 0
    """What it was given beyond the least that it takes."""
    disk_bytes_per_s: float = 0.0
    """As measured, or what earlier replies came to if experts were used evenly; 0 before that."""

    @property
    def size_bytes(self) -> int:
        """All that is allocated for it."""
        return self.buffer_bytes + READ_THREADS * self.room_bytes

    def left_out(self, spec: ModelSpec) -> set[Matrix]:
        """Matrices that are on disk, but for the embedding."""
        layers = (layer.ffn for layer in spec.layers) if self.expert_slots else ()
        mixtures = (own for own in layers if isinstance(own, Moe))
        return {*self.matrices, *(matrix for own in mixtures for matrix in experts_of(own))}

    def as_dict(self) -> dict[str, Any]:
        """As plain values; sizes are bytes."""
        values = asdict(self)
        return values | {"matrices": len(self.matrices), "size_bytes": self.size_bytes}

    @property
    def note(self) -> str:
        """What the buffers hold."""
        if self.matrices:
            return "a ring for matrices, threads that read"
        return f"{self.expert_slots} of {self.num_experts} experts, threads that read"

    @property
    def read_s(self) -> float:
        """Seconds of reading for a pass over one node."""
        return self.read_bytes / self.disk_bytes_per_s if self.disk_bytes_per_s else 0.0

    def curve(self, computing: Mapping[int, float]) -> dict[int, float]:
        """Seconds of passes by number of nodes, given what these take to compute: matrices are read
        meanwhile, experts before.
        """
        if not self.num_experts:
            return {size: max(self.read_s, seconds) for size, seconds in computing.items()}
        part = self.active_part
        distinct = {size: (1.0 - (1.0 - part) ** size) / part for size in computing}
        return {size: own + self.read_s * distinct[size] for size, own in computing.items()}


@dataclass(frozen=True, slots=True)
class _Part:
    """Matrices of a layer that are on disk together, or not."""

    matrices: tuple[Matrix, ...]
    packed_bytes: int
    file_bytes: int


class StreamableWeights:
    """What of a model's weights can be on disk, and what it brings to hold some of it."""

    def __init__(self, spec: ModelSpec, tensors: Iterable[TensorInfo]) -> None:
        self._spec = spec
        self._tensors = {each.name: each for each in tensors}

    def least(self) -> Streaming | None:
        """As little in memory as can be; None where nothing can be on disk."""
        if self._mixtures:
            return self._experts(max(own.experts for own in self._mixtures))
        return self._matrices(self._parts) if self._parts else None

    def within(self, spare_bytes: int) -> Streaming | None:
        """With so many bytes for more than the least."""
        least = self.least()
        if least is None:
            return None
        if not self._mixtures:
            found = self._matrices(self._left_out(spare_bytes))
        else:
            more = spare_bytes // self._slot_bytes
            found = self._experts(min(least.expert_slots + more, least.num_experts))
        return replace(found, spare_bytes=spare_bytes)

    def _experts(self, slots: int) -> Streaming:
        total = sum(own.experts for own in self._mixtures)
        sizes = [self._expert_bytes(own) for own in self._mixtures]
        packed = sum(own.experts * size for own, size in zip(self._mixtures, sizes, strict=True))
        file = sum(
            own.active * self._file_bytes(matrix) // own.experts
            for own in self._mixtures
            for matrix in experts_of(own)
        )
        return self._streaming(
            matrices=(),
            expert_slots=slots,
            num_experts=total,
            active_part=max(own.active / own.experts for own in self._mixtures),
            on_disk_bytes=packed,
            buffer_bytes=slots * self._slot_bytes + LINE,
            read_bytes=file * max(0, total - slots) // total,
        )

    def _matrices(self, parts: Iterable[_Part]) -> Streaming:
        out = {matrix for part in parts for matrix in part.matrices}
        ordered = tuple(m for layer in self._spec.layers for m in layer.matrices if m in out)
        largest = max(map(self._packed_bytes, self._streamable), default=0)
        return self._streaming(
            matrices=ordered,
            expert_slots=0,
            num_experts=0,
            active_part=0.0,
            on_disk_bytes=sum(map(self._packed_bytes, ordered)),
            buffer_bytes=max(part.packed_bytes for part in self._parts)
            + LINE * max(len(part.matrices) for part in self._parts)
            + round_up(largest, LINE)
            + LINE,
            read_bytes=sum(map(self._file_bytes, ordered)),
        )

    def _streaming(self, on_disk_bytes: int, **values: object) -> Streaming:
        spec, embedding = self._spec, not self._spec.tied_embeddings
        if embedding:
            shape = Matrix(spec.embedding, spec.num_readable, spec.dim)
            on_disk_bytes += self._packed_bytes(shape)
        widest = max(
            self._tensors[matrix.tensor].type.row_bytes(matrix.columns)
            for matrix in self._streamable
        )
        room = round_up(max(READ_BYTES, TILE_ROWS * widest), PAGE) + 3 * PAGE
        return Streaming(
            embedding=embedding,
            on_disk_bytes=on_disk_bytes,
            room_bytes=room,
            **values,  # type: ignore[arg-type]
        )

    def _left_out(self, spare_bytes: int) -> Iterator[_Part]:
        """The parts for which so many bytes are not enough."""
        for part in self._parts:
            if part.packed_bytes <= spare_bytes:
                spare_bytes -= part.packed_bytes
            else:
                yield part

    @cached_property
    def _parts(self) -> tuple[_Part, ...]:
        """What dense layers have, in the order in which it is brought to stay."""
        layers = self._spec.layers
        spread = sorted(range(len(layers)), key=lambda number: number * _GOLDEN % 1.0)
        mixers = (self._part(layers[number].mixer.matrices) for number in spread)
        fed = (self._part(_dense(layers[number])) for number in spread)
        return tuple(part for parts in (mixers, fed) for part in parts if part.matrices)

    def _part(self, matrices: Iterable[Matrix]) -> _Part:
        mine = tuple(matrix for matrix in matrices if matrix in self._streamable)
        packed, file = map(self._packed_bytes, mine), map(self._file_bytes, mine)
        return _Part(mine, sum(packed), sum(file))

    @cached_property
    def _streamable(self) -> frozenset[Matrix]:
        """Matrices that one layer alone has, and that are packed as they are."""
        if self._mixtures:
            return frozenset(matrix for own in self._mixtures for matrix in experts_of(own))
        turned = {own.key_up for own in turned_mixers(self._spec)}
        counts = Counter(
            matrix
            for layer in self._spec.layers
            for matrix in {*layer.mixer.matrices, *_dense(layer)}
        )
        return frozenset(each for each, count in counts.items() if count == 1) - turned

    @cached_property
    def _mixtures(self) -> tuple[Moe, ...]:
        return tuple(layer.ffn for layer in self._spec.layers if isinstance(layer.ffn, Moe))

    @cached_property
    def _slot_bytes(self) -> int:
        return slot_bytes(self._expert_bytes(own) for own in self._mixtures)

    def _expert_bytes(self, own: Moe) -> int:
        return sum(self._packed_bytes(matrix) for matrix in experts_of(own)) // own.experts

    def _packed_bytes(self, matrix: Matrix) -> int:
        group, group_bytes = PACKED[self._tensors[matrix.tensor].type]
        rows = round_up(matrix.experts * matrix.rows, TILE_ROWS)
        return rows * -(-matrix.columns // group) * group_bytes

    def _file_bytes(self, matrix: Matrix) -> int:
        kind = self._tensors[matrix.tensor].type
        return matrix.experts * matrix.rows * kind.row_bytes(matrix.columns)


def slot_bytes(experts: Iterable[int]) -> int:
    """Of a slot for any expert, given what those of each layer take."""
    return round_up(max(experts), LINE)


def experts_of(own: Moe) -> tuple[Matrix, Matrix, Matrix]:
    """The matrices that hold a layer's experts."""
    return own.gate, own.up, own.down


def _dense(layer: LayerSpec) -> tuple[Matrix, ...]:
    return layer.ffn.matrices if isinstance(layer.ffn, Dense) else ()
