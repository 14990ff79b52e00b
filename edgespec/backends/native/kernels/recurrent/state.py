"""Sweeps over a head's state, emitted as LLVM text: vectors of 16 lanes, one order of operations.

A state S is f32 [key_dim, value_dim]. A step decays it and adds an outer product,

    S' = decay S + key delta^T,        output = S'^T query = decay S^T query + (key . query) delta

so what a step puts out is known before its state is: a step whose state nobody goes on from only
reads. In a gated delta net delta = beta (value - decay S^T key), the correction of what the state
says of the key; in Mamba-2 (key B, query C, value x) it is beta value, beta the time step, and
`skip` times the value is added to the output.

A step is eight words, below. Sweeps take (state, target, key_dim, vectors of value_dim, steps,
number of steps, read): the steps are applied to the state one after another, row by row, and what
comes out is stored in `target`, which may be the state; then the step `read` reads it and fills in
its delta and output. All elements of a state are computed alike, whichever sweep does it.

Sources: "Gated Delta Networks: Improving Mamba2 with Delta Rule", equation 10; "Transformers are
SSMs", section 7.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from edgespec.backends.native.kernels.codegen.emit import (
    F32,
    I64,
    LANES,
    V16F32,
    Emitter,
    Function,
    Value,
)
from edgespec.backends.native.kernels.codegen.vectors import sum_lanes
from edgespec.backends.native.kernels.recurrent.steps import (
    BETA,
    DECAY,
    DELTA,
    KEY,
    OUTPUT,
    QUERY,
    SKIP,
    STEP_BYTES,
    VALUE,
)
from edgespec.backends.native.kernels.row_ops import start

AHEAD = 8
"""Rows that are asked for before they are read, where a sweep takes several turns."""


def functions(lanes: int) -> dict[str, Callable[[], Function]]:
    """By name: apply steps and store ("update"), read a state that stays as it is ("read"), or
    both in one sweep ("advance"); of delta nets and of Mamba-2.

    `lanes` are those of the instruction set's tiles, which tell how many registers it has.
    """
    block = 8 if lanes == LANES else 2
    verbs = {"update": (True, False), "read": (False, True), "advance": (True, True)}
    return {
        name: partial(_sweep, name, block, updates, reads, corrects)
        for net, corrects in (("delta", True), ("mamba", False))
        for verb, (updates, reads) in verbs.items()
        for name in [f"{net}_{verb}"]
    }


def _sweep(name: str, block: int, updates: bool, reads: bool, corrects: bool) -> Function:
    """`block` columns, in vectors, are gone down at once: their sums and rows stay in registers."""
    emitter = start(name)
    builder = emitter.builder
    state, target, rows, vectors, steps, num_steps, step = emitter.arguments[:7]
    stride = builder.mul(vectors, emitter.integer(4 * LANES))
    product = _dot(emitter, step, rows) if reads else None

    def columns(width: int, first: Value) -> None:
        column = builder.mul(first, emitter.integer(4 * LANES))
        sums = emitter.running(width * (1 + corrects)) if reads else []
        with emitter.loop(rows) as row:
            place = emitter.address(column, (row, stride))
            source = emitter.address(state, place)
            if block < LANES // 2:
                # Columns of few vectors leave gaps that processors do not fetch ahead over.
                with builder.if_then(builder.icmp_signed("==", first, emitter.integer(0))):
                    ahead = emitter.address(state, (row, stride), (stride, AHEAD))
                    with emitter.loop(vectors) as line:
                        emitter.prefetch(emitter.address(ahead, (line, 64)), 64)
            values = emitter.running(width)
            for slot, vector in zip(values, _vectors(emitter, source, width), strict=True):
                builder.store(vector, slot)
            if updates:
                with emitter.loop(num_steps) as index:
                    which = emitter.address(steps, (index, STEP_BYTES))
                    decay = _splat(emitter, which, DECAY)
                    key = _splat(emitter, which, KEY, row)
                    deltas = emitter.address(_word(emitter, which, DELTA), column)
                    for slot, delta in zip(values, _vectors(emitter, deltas, width), strict=True):
                        decayed = builder.fmul(builder.load(slot), decay)
                        builder.store(emitter.fma(key, delta, decayed), slot)
                for i, slot in enumerate(values):
                    emitter.store(builder.load(slot), emitter.address(target, place, 64 * i))
            if reads:
                factors = [_splat(emitter, step, QUERY, row)]
                factors += [_splat(emitter, step, KEY, row)] * corrects
                for part, factor in enumerate(factors):
                    for slot, total in zip(values, sums[part * width :], strict=False):
                        more = emitter.fma(builder.load(slot), factor, builder.load(total))
                        builder.store(more, total)
        if reads:
            _finish(emitter, step, column, sums, width, product)

    emitter.in_steps(vectors, block, columns)
    return emitter.done()


def _finish(
    emitter: Emitter, step: Value, column: Value, sums: list[Value], width: int, product: Value
) -> None:
    """The delta and the output of a step, of some columns, from S^T query and S^T key."""
    builder = emitter.builder
    decay, beta = (_splat(emitter, step, word) for word in (DECAY, BETA))
    values, deltas, outputs = (
        emitter.address(_word(emitter, step, word), column) for word in (VALUE, DELTA, OUTPUT)
    )
    skip = _word(emitter, step, SKIP)
    for i, value in enumerate(_vectors(emitter, values, width)):
        wanted = value
        if len(sums) > width:
            known = builder.fmul(decay, builder.load(sums[width + i]))
            wanted = builder.fsub(value, known)
        delta = builder.fmul(wanted, beta)
        emitter.store(delta, emitter.address(deltas, 64 * i))
        output = builder.fmul(decay, builder.load(sums[i]))
        output = emitter.fma(product, delta, output)
        place = emitter.address(outputs, 64 * i)
        emitter.store(output, place)
        if len(sums) == width:
            with builder.if_then(builder.icmp_signed("!=", skip, emitter.integer(0))):
                emitter.store(emitter.fma(_splat(emitter, step, SKIP), value, output), place)


def _dot(emitter: Emitter, step: Value, rows: Value) -> Value:
    """key . query in all lanes."""
    builder = emitter.builder
    key, query = (_word(emitter, step, word) for word in (KEY, QUERY))
    (total,) = emitter.running(1)
    with emitter.loop(builder.udiv(rows, emitter.integer(LANES))) as index:
        left, right = (
            emitter.load(emitter.address(base, (index, 64)), V16F32, 4) for base in (key, query)
        )
        builder.store(emitter.fma(left, right, builder.load(total)), total)
    return emitter.splat(sum_lanes(emitter, builder.load(total)))


def _vectors(emitter: Emitter, address: Value, count: int) -> list[Value]:
    return [emitter.load(emitter.address(address, 64 * i), V16F32, 4) for i in range(count)]


def _word(emitter: Emitter, step: Value, word: int) -> Value:
    return emitter.load(emitter.address(step, 8 * word), I64, 8)


def _splat(emitter: Emitter, step: Value, word: int, index: Value | None = None) -> Value:
    """The number that a word points to, or one of the numbers there, in all lanes."""
    place = _word(emitter, step, word)
    if index is not None:
        place = emitter.address(place, (index, 4))
    return emitter.splat_load(place, F32)
