"""Attention over int8 and q4 keys and values: everything is multiplied as integers.

What is stored is 8 or 4 bits; what meets it, queries and softmax weights, is 16: two signed digits
of 8 bits, value = step * (256 * high + low), each multiplied by itself with the instruction set's
dot product. Integer sums are exact, so they are the same in any order, and such a cache costs the
accuracy of what it stores and no more.

Numbers are stored with an offset of 128 or 8. Sums therefore start at -offset * the sum of the
other side, unless the instruction set takes the 128 out itself. Halves of bytes become bytes in
registers.

    queries  [quads of dimensions, 2 digits, 12 rows, 4] int8, then f32 steps [12], then int32
             starts [blocks of 32 dimensions, 12]
    weights  [quads of slots, 2 digits, 4] int8, in place of a row's f32 scores
"""

from __future__ import annotations

from llvmlite import ir

from edgespec.backends.native.kernels.attention.spans import (
    NUM_LOOP_ARGUMENTS,
    ROW_BLOCK,
    SCORES_STRIDE,
    at_once,
)
from edgespec.backends.native.kernels.codegen.emit import (
    F32,
    I8,
    I32,
    V16F32,
    V16I32,
    Emitter,
    Function,
    Value,
)
from edgespec.backends.native.kernels.codegen.vectors import (
    largest_size,
    load_first,
    nearest,
    sum_lanes,
)
from edgespec.backends.native.kernels.kv.forms import Form
from edgespec.backends.native.kernels.matmul.integer_tile import Operations
from edgespec.backends.native.kernels.row_ops import start
from edgespec.memory.kv.arena import SCALED, TILE

DIGITS = 2
_MOST = 127 * 257
"""The largest number whose two digits fit: 256 * 127 + 127."""
_NOTHING = 1e-30
"""A row whose largest number is smaller than this is taken as zeros."""
_QUAD = 4 * ROW_BLOCK * DIGITS
"""Bytes of a quad of all rows' queries."""
_IN_BLOCK = SCALED // 4
"""Quads in a block of dimensions."""
_BLOCK_BYTES = _IN_BLOCK * _QUAD
_APART = (0, 4 * ROW_BLOCK)
"""Bytes from the first digits of a row's quad to its digits."""


def _inverse(emitter: Emitter, most: float, largest: Value) -> Value:
    """most / largest in all lanes; 0 for next to nothing."""
    builder = emitter.builder
    empty = builder.fcmp_unordered("<", largest, ir.Constant(F32, _NOTHING))
    inverse = builder.fdiv(ir.Constant(F32, most), largest)
    return emitter.splat(builder.select(empty, ir.Constant(F32, 0.0), inverse))


def _part(form: Form, emitter: Emitter, raw: Value, index: Value) -> Value:
    """The bytes of one of the quads, by its index, that lie in these."""
    if form.in_byte == 1:
        return raw
    builder = emitter.builder
    shift = emitter.splat(builder.trunc(builder.mul(index, emitter.integer(form.bits)), I32))
    return builder.and_(builder.lshr(raw, shift), emitter.constant(0x0F0F0F0F))


def _numbers(emitter: Emitter, values: Value, factor: Value) -> Value:
    """16 floats times a factor as int32 whose digits are -127 ... 127: no dot product takes -128.

    Each is the nearest, or one more where the low digit would be -128.
    """
    builder = emitter.builder
    numbers = nearest(emitter, builder.fmul(values, factor))
    low = builder.and_(numbers, emitter.constant(255))
    bad = builder.icmp_signed("==", low, emitter.constant(128))
    return builder.add(numbers, builder.zext(bad, V16I32))


def _digits(emitter: Emitter, numbers: Value) -> Value:
    """Both digits of 16 int32 as 8 x 4 bytes: the high ones of four numbers, their low ones, ..."""
    builder, octets = emitter.builder, ir.VectorType(I8, 64)
    rounded = builder.add(numbers, emitter.constant(128))  # so that the low digit is signed
    places = []
    for four in range(0, 16, 4):
        places += [4 * i + 1 for i in range(four, four + 4)]
        places += [64 + 4 * i for i in range(four, four + 4)]
    order = ir.Constant(ir.VectorType(I32, 32), [ir.Constant(I32, place) for place in places])
    both = builder.bitcast(rounded, octets), builder.bitcast(numbers, octets)
    return builder.bitcast(builder.shuffle_vector(*both, order), ir.VectorType(I32, 8))


def put_query(form: Form) -> Function:
    """(query f32, target, head_dim): one row of the queries; the target is its first digits."""
    emitter = start(f"put_query_{form.name}")
    builder = emitter.builder
    source, target, head_dim = emitter.arguments[:3]
    largest = largest_size(emitter, source, head_dim)
    factor = _inverse(emitter, _MOST, largest)
    blocks = emitter.groups(head_dim, SCALED)
    facts = emitter.address(target, (blocks, _BLOCK_BYTES))
    emitter.store(builder.fmul(largest, ir.Constant(F32, 1.0 / _MOST)), facts)
    with emitter.loop(blocks) as block:
        total = emitter.constant(0)
        for half in range(2):
            place = emitter.address(source, (block, 4 * SCALED), 64 * half)
            left = emitter.address(head_dim, (block, -SCALED), -16 * half)
            value = load_first(emitter, place, left)
            numbers = _numbers(emitter, value, factor)
            total = builder.add(total, numbers)
            place = emitter.address(target, (block, _BLOCK_BYTES), half * _BLOCK_BYTES // 2)
            digits = _digits(emitter, numbers)
            for i in range(4 * DIGITS):
                four = builder.extract_element(digits, ir.Constant(I32, i))
                emitter.store(four, emitter.address(place, i * 4 * ROW_BLOCK))
        first = builder.mul(sum_lanes(emitter, total), ir.Constant(I32, -form.offset))
        emitter.store(first, emitter.address(facts, (block, 4 * ROW_BLOCK), 4 * ROW_BLOCK))
    return emitter.done()


def scores(form: Form, num_rows: int, operations: Operations) -> Function:
    """(queries, keys, bytes of a tile, tiles, quads of dimensions, keys' scales, scores, ahead,
    share): each row's dot products with the 16 keys of each tile, block after block.
    """
    lanes = operations.lanes
    emitter = Emitter(f"scores_{form.name}_{num_rows}", NUM_LOOP_ARGUMENTS, lanes)
    queries, keys, tile_bytes, tiles, quads, scales, target, ahead, share = emitter.arguments[:9]
    builder, width = emitter.builder, at_once(num_rows, lanes, DIGITS)
    blocks = emitter.groups(quads, _IN_BLOCK)
    vectors = quads
    if form.in_byte > 1:  # these fill their blocks
        vectors = builder.mul(blocks, emitter.integer(_IN_BLOCK // form.in_byte))
    facts = emitter.address(queries, (blocks, _BLOCK_BYTES))
    with emitter.loop(emitter.groups(tiles, width)) as group:
        tile = [emitter.address(emitter.integer(i), (group, width)) for i in range(width)]
        for first in range(0, TILE, lanes):
            totals = [emitter.running(width) for _ in range(num_rows)]
            with emitter.loop(blocks) as block:
                sums = [
                    [emitter.running(DIGITS, emitter.constant(0)) for _ in range(width)]
                    for _ in range(num_rows)
                ]
                most = _IN_BLOCK // form.in_byte
                done = builder.mul(block, emitter.integer(most))
                left = builder.sub(vectors, done)
                few = builder.icmp_signed("<", left, emitter.integer(most))
                with emitter.loop(builder.select(few, left, emitter.integer(most))) as index:
                    vector = builder.add(done, index)
                    raw = [
                        emitter.load(
                            emitter.address(keys, (one, tile_bytes), (vector, 64), 4 * first),
                            emitter.i32,
                        )
                        for one in tile
                    ]
                    for part in range(form.in_byte):
                        columns = [
                            _part(form, emitter, each, emitter.integer(part)) for each in raw
                        ]
                        quad = emitter.address(index, (block, _IN_BLOCK), most * part)
                        for row, slots in enumerate(sums):
                            place = emitter.address(queries, (quad, _QUAD), 4 * row)
                            digits = [builder.add(place, emitter.integer(at)) for at in _APART]
                            _multiply(emitter, form, operations, columns, digits, slots)
                    if first == 0:
                        step = emitter.address(vector, (group, vectors))
                        emitter.prefetch_share(ahead, step, 64 * width, share)
                steps = [
                    emitter.half_vector(
                        emitter.address(
                            scales,
                            (builder.add(builder.mul(one, blocks), block), 2 * TILE),
                            2 * first,
                        )
                    )
                    for one in tile
                ]
                for row, slots in enumerate(sums):
                    place = emitter.address(facts, (block, 4 * ROW_BLOCK), 4 * ROW_BLOCK + 4 * row)
                    begin = emitter.splat_load(place, I32) if form.starts(operations) else None
                    for i, pair in enumerate(slots):
                        whole = _join(emitter, pair, begin)
                        value = builder.sitofp(whole, emitter.f32)
                        before = builder.load(totals[row][i])
                        builder.store(emitter.fma(value, steps[i], before), totals[row][i])
            for row, slots in enumerate(totals):
                step = emitter.splat_load(emitter.address(facts, 4 * row), F32)
                place = emitter.address(
                    target, (group, 4 * TILE * width), row * SCORES_STRIDE + 4 * first
                )
                for i, slot in enumerate(slots):
                    value = builder.fmul(builder.load(slot), step)
                    emitter.store(value, emitter.address(place, 4 * TILE * i))
    return emitter.done()


def _multiply(
    emitter: Emitter,
    form: Form,
    operations: Operations,
    columns: list[Value],
    digits: list[Value],
    slots: list[list[Value]],
) -> None:
    """Add the products of one quad of a row, at both digits' addresses, with the same quad of each
    column.
    """
    builder = emitter.builder
    for digit, place in enumerate(digits):
        for column, pair in zip(columns, slots, strict=True):
            before = [builder.load(pair[digit])]
            (value,) = operations.dot(emitter, before, [column], [place], form.largest)
            builder.store(value, pair[digit])


def _join(emitter: Emitter, pair: list[Value], begin: Value | None) -> Value:
    """256 * high + low, from where it begins."""
    builder = emitter.builder
    high, low = (builder.load(slot) for slot in pair)
    whole = builder.add(builder.shl(high, emitter.constant(8)), low)
    return whole if begin is None else builder.add(whole, begin)


def spread(form: Form) -> Function:
    """(f16, output f32, vectors): the values' scales as f32."""
    emitter = start(f"spread_{form.name}")
    source, target, count = emitter.arguments[:3]
    with emitter.loop(count) as index:
        value = emitter.half_vector(emitter.address(source, (index, 32)))
        emitter.store(value, emitter.address(target, (index, 64)))
    return emitter.done()


def weigh(form: Form, operations: Operations) -> Function:
    """(weights f32, vectors, largest weight and then step f32, mixed int32, vectors of that):
    weights become digits, in place; tells their step where it found the largest, and fills `mixed`
    with where its sums begin.
    """
    emitter = start(f"weigh_{form.name}")
    builder = emitter.builder
    weights, count, step, mixed, wide = emitter.arguments[:5]
    (total,) = emitter.running(1, emitter.constant(0))
    largest = emitter.load(step, F32, 4)
    factor = _inverse(emitter, _MOST, largest)
    with emitter.loop(count) as index:
        value = emitter.load(emitter.address(weights, (index, 64)), V16F32, 4)
        numbers = _numbers(emitter, value, factor)
        builder.store(builder.add(numbers, builder.load(total)), total)
        emitter.store(_digits(emitter, numbers), emitter.address(weights, (index, 32)))
    emitter.store(builder.fmul(largest, ir.Constant(F32, 1.0 / _MOST)), step)
    if form.starts(operations):
        whole = sum_lanes(emitter, builder.load(total))
        begin = emitter.splat(builder.mul(whole, ir.Constant(I32, -form.offset)))
    else:
        begin = emitter.constant(0)
    with emitter.loop(wide) as index:
        emitter.store(begin, emitter.address(mixed, (index, 64)))
    return emitter.done()


def mix(form: Form, num_rows: int, operations: Operations) -> Function:
    """(weights, values, bytes of a quad of values, slots, output int32, output stride, vectors of
    16 in a row, ahead, share): add weight[row, slot] * value[slot] to the output.
    """
    lanes = operations.lanes
    emitter = Emitter(f"mix_{form.name}_{num_rows}", NUM_LOOP_ARGUMENTS, lanes)
    weights, values, quad_bytes, slots = emitter.arguments[:4]
    output, stride, vectors, ahead, share = emitter.arguments[4:9]
    builder = emitter.builder
    quads = emitter.groups(slots, 4)
    thin = builder.add(share, emitter.integer(form.in_byte - 1))  # parts of bytes are read twice

    def vector(index: Value) -> tuple[Value, Value]:
        """Where a vector of a quad's values is, and which part of these bytes."""
        first = builder.mul(index, emitter.integer(lanes))
        if form.in_byte == 1:
            return builder.mul(first, emitter.integer(4)), emitter.integer(0)
        block, part = (
            builder.lshr(first, emitter.integer(5)),
            builder.lshr(first, emitter.integer(4)),
        )
        within = builder.and_(first, emitter.integer(15))
        place = emitter.address(0, (block, 2 * SCALED), (within, 4))
        return place, builder.and_(part, emitter.integer(1))

    def some(width: int, first: Value) -> None:
        """`width` vectors of each row, from vector `first` on."""
        sums = [
            [emitter.running(DIGITS, emitter.constant(0)) for _ in range(width)]
            for _ in range(num_rows)
        ]
        offset = builder.mul(first, emitter.integer(4 * lanes))
        begin = emitter.address(ahead, builder.lshr(builder.mul(offset, quads), thin))
        places = [vector(builder.add(first, emitter.integer(i))) for i in range(width)]
        with emitter.loop(quads) as quad:
            value = emitter.address(values, (quad, quad_bytes))
            columns = [
                _part(form, emitter, emitter.load(emitter.address(value, at), emitter.i32), part)
                for at, part in places
            ]
            for row, pairs in enumerate(sums):
                place = emitter.address(weights, (quad, 4 * DIGITS), row * SCORES_STRIDE)
                digits = [place, builder.add(place, emitter.integer(4))]
                _multiply(emitter, form, operations, columns, digits, pairs)
            emitter.prefetch_share(begin, quad, 4 * lanes * width, thin)
        for row, pairs in enumerate(sums):
            for i, pair in enumerate(pairs):
                place = emitter.address(output, (row, stride), offset, 4 * lanes * i)
                before = emitter.load(place, emitter.i32, 4)
                emitter.store(_join(emitter, pair, before), place)

    emitter.in_steps(emitter.address(emitter.integer(0), (vectors, 16 // lanes)),
                     at_once(num_rows, lanes, DIGITS), some)  # fmt: skip
    return emitter.done()
