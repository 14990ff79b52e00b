"""Random mixtures of experts: their weights, their results by loops, and their stages run alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.experts import Experts
from edgespec.backends.native.kernels import table, work_sharing
from edgespec.backends.native.kernels.codegen import isa
from edgespec.backends.native.kernels.matmul import tile
from edgespec.backends.native.kernels.moe import stages
from edgespec.backends.native.scratch import Rows
from edgespec.backends.native.weights import PackedMatrix
from edgespec.models.layers import Dense, Matrix, Moe
from edgespec.models.spec import TensorType
from edgespec.system.addresses import address_of
from edgespec.system.addresses import call as call_entry
from edgespec.system.jit import kernel
from tests.support.tiles import call, dequantised, raw_rows

Floats = NDArray[np.float32]
Wide = NDArray[np.float64]
DIM = 128


@kernel
def run_entry(entry, c, stage, thread):  # type: ignore[no-untyped-def]
    call_entry(entry, c, stage, thread)


STAGES = (stages.router, stages.route, stages.gate_up, stages.down)


@dataclass
class RandomWeights:
    """Packed matrices and vectors that are made when they are asked for, as `Weights` has them."""

    kind: TensorType
    """Of experts; the router is F32."""
    seed: int = 0
    _packed: dict[Matrix, PackedMatrix] = field(default_factory=dict)
    _rows: dict[Matrix, NDArray[np.int64]] = field(default_factory=dict)
    _values: dict[Matrix, Floats] = field(default_factory=dict)
    _vectors: dict[str, Floats] = field(default_factory=dict)

    def packed(self, matrix: Matrix) -> PackedMatrix:
        if matrix not in self._packed:
            is_small = matrix.tensor in ("router", "shared_gate")
            kind = TensorType.F32 if is_small else self.kind
            rows, seed = matrix.experts * matrix.rows, len(self._packed) + 100 * self.seed
            raw = raw_rows(kind, rows, matrix.columns, seed)
            if kind in (TensorType.F32, TensorType.F16):
                numbers = raw.view(np.float32 if kind is TensorType.F32 else np.float16)
                numbers *= numbers.dtype.type(matrix.columns**-0.5)
            packed = PackedMatrix.allocate(tile.FORMATS[kind], rows, matrix.columns)
            packed.pack_rows(0, raw)
            self._packed[matrix], self._rows[matrix] = packed, packed.describe()
            values = dequantised(kind, raw)
            self._values[matrix] = values.reshape(matrix.experts, matrix.rows, -1)
        return self._packed[matrix]

    def values(self, matrix: Matrix) -> Floats:
        """[experts, rows, columns]."""
        self.packed(matrix)
        return self._values[matrix]

    def place(self, matrix: Matrix | None) -> int:
        if matrix is None:
            return 0
        self.packed(matrix)
        return self._rows[matrix].ctypes.data

    def bias(self, matrix: Matrix | None) -> int:
        has_bias = matrix is not None and matrix.bias
        return self.biases(matrix).ctypes.data if matrix is not None and has_bias else 0

    def biases(self, matrix: Matrix) -> Floats:
        """[experts, rows]."""
        size = matrix.experts * matrix.rows
        return self.numbers(matrix.bias, size)[:size].reshape(matrix.experts, -1)

    def vector(self, name: str, width: int = 0) -> int:
        return self.numbers(name, width).ctypes.data

    def numbers(self, name: str, width: int) -> Floats:
        """A vector padded to whole tiles; scales are about 1."""
        if name not in self._vectors:
            rng = np.random.default_rng(sum(map(ord, name)) + self.seed)
            values = np.zeros(-(-max(width, 64) // 16) * 16, np.float32)
            values[:] = rng.standard_normal(len(values)) / 4 + (name == "expert_scale")
            self._vectors[name] = values
        return self._vectors[name]


def mixture(
    experts: int = 8,
    active: int = 3,
    width: int = 96,
    *,
    shared: int = 0,
    biased: bool = False,
    gated: bool = False,
    **more: Any,
) -> Moe:
    """A layer with such experts, a shared one so wide if that is not 0, perhaps with a gate."""

    def matrix(name: str, rows: int, columns: int, count: int = 1) -> Matrix:
        bias = f"{name}.bias" if biased else ""
        return Matrix(name, rows, columns, experts=count, bias=bias)

    more |= {"choice_bias": "choice_bias"} if more.pop("choice", False) else {}
    if shared:
        more["shared"] = Dense(
            shared,
            matrix("shared.gate", shared, DIM),
            matrix("shared.up", shared, DIM),
            Matrix("shared.down", DIM, shared),
            more.get("activation", "silu"),
        )
    return Moe(
        experts,
        active,
        width,
        router=matrix("router", experts, DIM),
        gate=matrix("gate", width, DIM, experts),
        up=matrix("up", width, DIM, experts),
        down=matrix("down", DIM, width, experts),
        shared_gate=Matrix("shared_gate", 1, DIM) if gated else None,
        **more,
    )


class Layer:
    """One layer's stages on buffers of their own."""

    def __init__(self, own: Moe, weights: RandomWeights, rows: int, threads: int = 1) -> None:
        self.own, self.weights, self.threads = own, weights, threads
        self.rows = tile.padded(rows)
        self.c = np.zeros(table.NUM_ENTRIES, np.int64)
        self.c[table.DIM] = DIM
        addresses = isa.row_addresses(isa.chosen(), False)
        self.c[table.OPS : table.OPS + table.NUM_OPS] = addresses
        self.input = Rows.allocate(self.rows, DIM)
        self.c[table.NORMED : table.NORMED + 8] = self.input.describe()
        self._team = np.zeros((work_sharing.MEMBERS + threads * work_sharing.LINE) // 8, np.int64)
        self.c[table.TEAM] = self._team.ctypes.data
        self._team[work_sharing.SIZE // 8] = threads
        shares = self._team[(work_sharing.MEMBERS + work_sharing.SHARE) // 8 :]
        shares[:: work_sharing.LINE // 8] = (1 << work_sharing.ONE) // threads
        self.output = np.zeros((self.rows, DIM), np.float32)
        self.experts = Experts({1: own}, weights, self.c, self.rows, threads, 3)
        self.poison()

    def poison(self) -> None:
        """Spoil all buffers: what was in them must not matter."""
        scratch = self.experts.scratch
        for rows in (scratch.inner, scratch.shared, scratch.gathered, self.input):
            rows.floats[:] = np.nan
            rows.quants[:] = 99
            rows.planes[:] = np.float32(np.nan).view(np.int32)
        scratch.room.view(np.float32)[:] = np.nan
        scratch.logits[:] = scratch.weights[:] = np.nan
        scratch.slots[:], scratch.lists[:], scratch.counts[:1] = 1 << 40, 1 << 40, 1 << 40

    def run(
        self, inputs: Floats, factor: float = 1.0, accumulate: bool = False, order: int = 1
    ) -> Floats:
        """The output's rows [n, DIM]; `order` -1 lets the last thread begin."""
        count = len(inputs)
        place = (self.output.ctypes.data, self.output.strides[0])
        m = self.experts.words(1, self.own, place, accumulate, factor)
        self.input.floats[:count] = inputs
        for row in range(count):
            call(
                int(self.c[table.OPS + table.QUANTISE]),
                self.input.floats[row].ctypes.data,
                self.input.quants[row].ctypes.data,
                self.input.planes[:, row].ctypes.data,
                self.input.planes.strides[0],
                DIM // tile.BLOCK,
                *[0] * 3,
            )
        self.c[table.NUM_ROWS], self.c[table.THREADS] = count, self.threads
        stage = np.zeros(table.STAGE_WORDS, np.int64)
        stage[stages.LAYER] = m
        work_sharing.share_out(self.c, self.threads)
        for entry in STAGES:
            for thread in range(self.threads)[::order]:
                run_entry(address_of(entry), self.c.ctypes.data, stage.ctypes.data, thread)
            self._team[work_sharing.COUNTER // 8] = 0
        return self.output[:count].copy()


def _sigmoid(values: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-values))


def _softmax(values: Wide) -> Wide:
    powers = np.exp(values - values.max())
    return powers / powers.sum()


def chosen_experts(own: Moe, logits: Wide, bias: Floats | None) -> tuple[list[int], list[float]]:
    """Experts in order of score and their weights, by sorting."""
    scores = {"softmax": _softmax, "sigmoid": _sigmoid}.get(own.scoring, lambda x: x)(logits)
    choice = scores + bias if bias is not None else scores.copy()
    if own.groups > 1:
        size = own.experts // own.groups
        sums = [sum(sorted(choice[g * size : (g + 1) * size])[-2:]) for g in range(own.groups)]
        best = sorted(range(own.groups), key=lambda g: (-sums[g], g))[: own.active_groups]
        allowed = [e for e in range(own.experts) if e // size in best]
    else:
        allowed = list(range(own.experts))
    chosen = sorted(allowed, key=lambda e: (-choice[e], e))[: own.active]
    weights = _softmax(scores[chosen]) if own.scoring == "softmax_of_chosen" else scores[chosen]
    if own.renormalise:
        weights = weights / max(weights.sum(), 6.103515625e-5)
    return chosen, [float(weight * own.scale) for weight in weights]


def _activated(kind: str, gate: Wide, up: Wide) -> Wide:
    if kind == "swiglu_oai":
        gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
        return gate * _sigmoid(1.702 * gate) * (up + 1)
    if kind == "gelu":
        return 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up
    return gate * _sigmoid(gate) * up


def naive(own: Moe, weights: RandomWeights, row: Floats) -> Wide:
    """What a layer gives for one row, by loops in f64."""

    def product(matrix: Matrix, values: Wide, expert: int = 0) -> Wide:
        result: Wide = weights.values(matrix)[expert].astype(np.float64) @ values
        return result + weights.biases(matrix)[expert] if matrix.bias else result

    def part(own: Dense | Moe, values: Wide, expert: int = 0) -> Wide:
        gate, up = product(own.gate, values, expert), product(own.up, values, expert)
        return _activated(own.activation, gate, up)

    values = row.astype(np.float64)
    bias = weights.numbers(own.choice_bias, own.experts)[: own.experts] if own.choice_bias else None
    total = np.zeros(DIM)
    logits = product(own.router, values)
    for expert, weight in zip(*chosen_experts(own, logits, bias), strict=True):
        inner = part(own, values * weight if own.weigh_input else values, expert)
        result = weights.values(own.down)[expert] @ inner
        if own.expert_scale:
            result = result * weights.numbers(own.expert_scale, own.experts)[expert]
        if own.down.bias:
            result = result + weights.biases(own.down)[expert]
        total += result if own.weigh_input else result * weight
    if own.shared is not None:
        shared = product(own.shared.down, part(own.shared, values))
        if own.shared_gate is not None:
            shared = shared * _sigmoid(product(own.shared_gate, values))
        total += shared
    return total
