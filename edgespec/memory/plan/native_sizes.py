"""Bytes of everything the native backend allocates, by formula; a test holds it to them.

Its shapes are drawn in `backends/native`: weights in tiles of 16 rows
(`backends/native/kernels/matmul/tile.py`), KV in blocks of 256 positions (`memory/kv/arena.py`),
scratch allocated once (`backends/native/program.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from edgespec.errors import UnsupportedModelError
from edgespec.memory.plan.kv_sizes import SPAN, kv_shapes, num_spans
from edgespec.memory.plan.state_layout import recurrent_scratch_bytes, round_up, state_layout
from edgespec.models.layers import Attention, LatentAttention, Moe
from edgespec.models.spec import ModelSpec, TensorInfo, TensorType

TILE_ROWS = 16
"""Rows of a weight matrix that are interleaved; the last tile is padded with zeros."""
TILE_SIZES = (1, 2, 4, 8)
"""Rows that passes are padded up to, whatever the weights' type."""
ATTENTION_ROWS, THREAD_ROWS, SPLIT_NODES = 12, 48, 16
"""Query rows that are kept together, rows a thread takes on, nodes whose spans threads share."""
SCORE_FLOATS = 14 * (SPAN + 256 + 80)
"""Scores a thread keeps: of 12 rows, and the values' scales twice; of a span and all nodes."""
BLOCK, NUM_PLANES, ROW_GAP = 32, 7, 64
"""Columns that share an activation scale, 4-byte values kept for each such block, and bytes between
the int8 activations of one row and the next.
"""
READ_CHUNK_BYTES = 4 * 1024**2
"""Bytes of the file in memory at a time while weights are packed."""

PACKED: dict[TensorType, tuple[int, int]] = {
    TensorType.F32: (1, 4),
    TensorType.F16: (1, 2),
    TensorType.BF16: (1, 2),
    TensorType.Q8_0: (32, 34),
    TensorType.Q4_0: (32, 18),
    TensorType.Q4_1: (32, 20),
    TensorType.Q5_0: (32, 22),
    TensorType.Q5_1: (32, 24),
    TensorType.IQ4_NL: (32, 18),
    TensorType.Q4_K: (256, 148),
    TensorType.Q5_K: (256, 180),
    TensorType.Q6_K: (256, 210),
    TensorType.IQ4_XS: (256, 138),
    TensorType.MXFP4: (32, 17),
    TensorType.NVFP4: (64, 36),
    TensorType.Q3_K: (256, 114),
    TensorType.Q2_K: (256, 84),
    TensorType.IQ3_S: (256, 138),
    TensorType.IQ3_XXS: (256, 138),
    TensorType.IQ2_S: (256, 114),
    TensorType.IQ2_XS: (256, 114),
    TensorType.IQ2_XXS: (256, 106),
    TensorType.IQ1_M: (256, 114),
    TensorType.IQ1_S: (256, 106),
    TensorType.TQ2_0: (256, 66),
    TensorType.TQ1_0: (256, 66),
}
"""(elements, bytes) of a group once repacked: 6-bit scales and minima become bytes, weights of grid
types 4 bits (IQ3) or 3 (IQ2, IQ1), those of TQ1_0 2.
"""

_NOT_HELD = (
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
    "layer_output_scale.weight",
)
"""Ends of the names of tensors that are read once, and not kept as they are."""
_ONE_ROW = "ffn_gate_inp_shexp.weight"
"""The end of the name of matrices with a single row, which files hold as vectors."""


def packed_bytes(tensor: TensorInfo) -> int:
    """Bytes of one tensor in memory.

    A vector or a bias is f32: 4 x (elements rounded up to 16). A matrix is 16-row tiles: (rows
    rounded up to 16) x (columns / group) x bytes of a packed group. Raises UnsupportedModelError
    for a type that is never packed.
    """
    *leading, columns = tensor.shape
    is_row = tensor.name.endswith(_ONE_ROW)
    if tensor.name.endswith(".bias") or not (leading or is_row):
        return 4 * round_up(math.prod(tensor.shape), TILE_ROWS)
    if tensor.type not in PACKED:
        raise UnsupportedModelError(
            f"tensor {tensor.name} has type {tensor.type.name}; the native backend computes "
            f"{', '.join(kind.name for kind in PACKED)}: requantise the model to one of these"
        )
    group, group_bytes = PACKED[tensor.type]
    return round_up(math.prod(leading), TILE_ROWS) * -(-columns // group) * group_bytes


def weights_bytes(tensors: Iterable[TensorInfo], spec: ModelSpec | None = None) -> int:
    """Bytes of all tensors packed; tied embeddings are one tensor in the file and counted once.

    With a model's description, what it does not use is left out, and what it does not multiply by
    is f32 whatever its shape: 4 x elements to 16. Norms without a gain are handed ones.
    """
    if spec is None:
        return sum(packed_bytes(each) for each in tensors if not each.name.endswith(_NOT_HELD))
    multiplied, unused = multiplied_tensors(spec), set(spec.unused)
    parts = ((each.query_norm, each.key_norm, each.value_norm) for each in spec.attentions)
    bare = {norm.width for three in parts for norm in three if norm and not norm.tensor}
    ones = sum(4 * round_up(width, TILE_ROWS) for width in bare | {spec.dim})
    turned = {own.key_up.tensor: own for own in turned_mixers(spec)}
    return ones + sum(
        _with_turned_bytes(tensor, turned[tensor.name])
        if tensor.name in turned
        else packed_bytes(tensor)
        if tensor.name in multiplied
        else 4 * round_up(math.prod(tensor.shape), TILE_ROWS)
        for tensor in tensors
        if tensor.name not in unused and not tensor.name.endswith(_NOT_HELD)
    )


def turned_mixers(spec: ModelSpec) -> tuple[LatentAttention, ...]:
    """Attention whose `key_up` must be turned, because the file has it for keys, not queries."""
    mixers = (layer.mixer for layer in spec.layers)
    return tuple(m for m in mixers if isinstance(m, LatentAttention) and not m.transposed)


def turned_type(kind: TensorType) -> TensorType:
    """What a turned matrix is kept in: its columns were no columns of blocks before."""
    return TensorType.F32 if kind == TensorType.F32 else TensorType.F16


def _with_turned_bytes(tensor: TensorInfo, own: LatentAttention) -> int:
    """A tensor of keys and values: those of values packed, those of keys turned."""
    shape = (own.heads * own.value_dim, own.latent_dim)
    values = packed_bytes(replace(tensor, shape=shape))
    keys = replace(
        tensor, shape=(own.heads * own.latent_dim, own.nope_dim), type=turned_type(tensor.type)
    )
    return values + packed_bytes(keys)


def multiplied_tensors(spec: ModelSpec) -> set[str]:
    """Tensors that are matrices to multiply by, or to look up in."""
    layers = {matrix.tensor for layer in spec.layers for matrix in layer.matrices}
    extra, joined = spec.per_layer_embedding, spec.head_input
    more = {extra.table.tensor, extra.projection.tensor} if extra else set()
    if joined is not None:
        more |= {part.tensor for part in joined.matrices}
    if spec.streams is not None:
        more |= {spec.streams.projection.tensor, spec.streams.unembedding.tensor}
    return layers | more | {spec.embedding, spec.head}


def adapter_bytes(tensors: Iterable[TensorInfo]) -> int:
    """Bytes of the matrices of early exits, packed."""
    return weights_bytes(tensors)


def has_branches(spec: ModelSpec) -> bool:
    """Whether some part's output is changed before it joins the residual stream."""
    return any(
        layer.mixer_post_norm or layer.ffn_post_norm or layer.residual_scale != 1.0
        or layer.output_scale or layer.per_layer or layer.laurel
        or (isinstance(layer.ffn, Moe) and layer.ffn.beside)
        for layer in spec.layers
    )  # fmt: skip


def dense_dim(spec: ModelSpec) -> int:
    """Width of the widest dense feed-forward part, other than those that are shared experts."""
    parts = (layer.ffn for layer in spec.layers)
    dense = (part.beside if isinstance(part, Moe) else part for part in parts)
    return max((part.width for part in dense if part), default=0)


def normed_width(spec: ModelSpec) -> int:
    """Width of what the parts of a layer read; of a draft head a token's and a state's."""
    part = spec.head_input
    return spec.dim if part is None or part.token_norm is None else 2 * spec.dim


def attended_width(spec: ModelSpec) -> int:
    """Width of what attention and states come to; of a draft head also of what it gathers, in
    whole blocks.
    """
    heads = max((each.heads * each.head_dim for each in spec.attentions), default=0)
    width = max(heads, state_layout(spec).values)
    gathered = None if spec.head_input is None else spec.head_input.gathered
    return width if gathered is None else round_up(max(width, gathered.columns), BLOCK)


def gated_dim(spec: ModelSpec) -> int:
    """Width of the rows that feed the last product of dense parts; or that of latent attention, or
    its queries; or hold residual streams beside the first.
    """
    latent = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, LatentAttention)]
    widths = [own.query_down.rows for own in latent if own.query_down]
    widths += [own.heads * own.value_dim for own in latent]
    widths += [(spec.streams.count - 1) * spec.dim] if spec.streams else []
    return round_up(max(dense_dim(spec), *widths), BLOCK) if widths else dense_dim(spec)


def up_dim(spec: ModelSpec) -> int:
    """Width of the rows of a dense part's other half, which also hold what is rotated of queries,
    what an adapter makes of the stream, and what further streams come to in the end.
    """
    mixers = (layer.mixer for layer in spec.layers)
    turned = (m.heads * m.rope.dim for m in mixers if isinstance(m, LatentAttention))
    further = (spec.streams.count - 1) * spec.dim if spec.streams else 0
    return max(dense_dim(spec), spec.dim, further, *turned)


def modes_width(count: int) -> int:
    """Width of the rows that mix so many residual streams: modes, then coefficients."""
    return TILE_ROWS + round_up(count * count, TILE_ROWS)


def logits_bytes(spec: ModelSpec, max_nodes: int) -> int:
    """Rows of f32 logits and of their maxima: (max_nodes to a tile size) x (vocabulary to 16) x
    (4 + 4 / 16) bytes.
    """
    rows = padded_rows(max_nodes)
    tiles = -(-spec.vocab_size // TILE_ROWS)
    return rows * tiles * (TILE_ROWS + 1) * 4


def padded_rows(num_nodes: int) -> int:
    """Nodes to a tile size, or to whole tiles of the largest."""
    fitting = (size for size in TILE_SIZES if size >= num_nodes)
    return next(fitting, round_up(num_nodes, TILE_SIZES[-1]))


def activation_bytes(spec: ModelSpec, rows: int, kv_type: str = "f16", sequences: int = 1) -> int:
    """Streams and matmul inputs of one pass, shared by all layers: rows x row bytes + queries.

    Rows, the most of max_nodes and prefill_chunk, are rounded up to a tile size.
    """
    padded = padded_rows(rows)
    return padded * _row_bytes(spec) + _query_bytes(spec, padded, kv_type, sequences)


_WHOLE_PASS_BYTES = 8 * (49 + 2 * 26 * 9)
"""Words of a table, and two for each type of weights and number of nodes up to 9."""


def scratch_bytes(
    spec: ModelSpec,
    context_length: int,
    max_nodes: int,
    prefill_chunk: int,
    threads: int,
    sequences: int = 1,
) -> int:
    """What attention keeps between spans, and the tables that describe trees.

    Tables are five 4-byte numbers for each node, max_nodes squared, and five 8-byte numbers for
    each text (and shape of attention), with one more of each; and a 4-byte number for each node.
    Nodes that leave a pass early keep their streams: max_nodes x dim x 4 bytes. Kernels that
    compute whole passes read a tree of max_nodes x 10 bytes and words of their own.
    """
    rows = max(max_nodes, prefill_chunk)
    kept = _attention_bytes(spec, context_length, max_nodes, threads, sequences)
    kept += _experts_bytes(spec, padded_rows(rows), threads)
    shapes = max(1, len(kv_shapes(spec)))
    tables = 20 * (rows + 1) + 4 * max_nodes**2 + 40 * (sequences + 1) * shapes + 4 * rows
    early = 4 * max_nodes * spec.dim
    padded = padded_rows(rows)
    kept += recurrent_scratch_bytes(spec, padded, max_nodes, threads, sequences)
    return kept + tables + early + 10 * max_nodes + _WHOLE_PASS_BYTES


def _experts_bytes(spec: ModelSpec, rows: int, threads: int) -> int:
    """What mixtures of experts keep in a pass.

    A slot is a row and one of its experts: three 8-byte numbers, a 4-byte weight, and a matmul
    input as wide as an expert, with 8 more of these. A row has a logit for each expert to 16 and 16
    more, and a matmul input as wide as the shared expert. A thread has inputs of all rows, and 256
    bytes for each slot, each row and 9 more, or 24 for each expert if that is more.
    """
    mixtures = [layer.ffn for layer in spec.layers if isinstance(layer.ffn, Moe)]
    if not mixtures:
        return 0
    slots, experts = rows * max(own.active for own in mixtures), spec.num_experts
    width = max(own.width for own in mixtures)
    shared = max(own.shared.width if own.shared else 0 for own in mixtures)
    to_16 = round_up(experts, 16)
    lists = 4 * rows * (to_16 + 16) + 28 * slots + 4 * rows + 16 * (experts + 1) + 128
    inner = (slots + 8) * _input_bytes(width) + rows * _input_bytes(shared)
    room = max(256 * (slots + 8 + rows + 1), 24 * to_16)
    return lists + inner + threads * (rows * _input_bytes(spec.dim) + 64 + room)


def _block_rows(num_rows: int, sequences: int) -> int:
    """Query rows with those that are left empty because each text's begin a block of 12."""
    return round_up(num_rows + (sequences - 1) * (ATTENTION_ROWS - 1), ATTENTION_ROWS)


def _attention_bytes(
    spec: ModelSpec, context_length: int, max_nodes: int, threads: int, sequences: int
) -> int:
    """Scores of all threads, and for each query row and span its values and three facts.

    Query rows are those of all key heads for up to 16 nodes, or 48 for each thread if that is more.
    """
    spans = num_spans(spec, context_length)
    nodes = min(SPLIT_NODES, max_nodes)

    def rows(own: Attention) -> int:
        head_rows = _block_rows(nodes * (own.heads // own.kv_heads), min(sequences, nodes))
        return max(own.kv_heads * head_rows, threads * THREAD_ROWS)

    most = max(map(rows, spec.attentions), default=0)
    results = most * (spans * round_up(spec.head_dim, 16) + 3 * round_up(spans, 16))
    return 4 * (threads * SCORE_FLOATS + results)


def _query_bytes(spec: ModelSpec, rows: int, kv_type: str, sequences: int) -> int:
    """Rotated queries of all nodes, 12 rows of a key head together: f32 in head_dim to 16, or with
    int8 and q4 KV two bytes for each dimension to 32, a step and a start for each 32. Of the shape
    that takes most.
    """

    def size(own: Attention) -> int:
        query_rows = _block_rows(rows * (own.heads // own.kv_heads), sequences)
        row_bytes = 4 * round_up(own.head_dim, 16)
        if kv_type != "f16":
            row_bytes = 4 + -(-own.head_dim // BLOCK) * (2 * BLOCK + 4)
        return own.kv_heads * query_rows * row_bytes

    return max(map(size, spec.attentions), default=0)


def _row_bytes(spec: ModelSpec) -> int:
    """One node's f32 stream, branch, q, k, v, up, gates and angles, and its three matmul inputs.

    A matmul input is kept as f32 and, when it has whole blocks of 32, as int8 in 64 bytes more than
    it needs, with seven 4-byte values per block.
    """
    q_dim = max((each.heads * each.head_dim for each in spec.attentions), default=0)
    gates = max((each.heads * each.head_dim for each in spec.attentions if each.gate), default=0)
    widths = (q_dim, spec.kv_dim, spec.kv_dim, up_dim(spec), gates)
    floats = spec.dim + sum(round_up(width, 16) for width in widths)
    floats += spec.dim if has_branches(spec) else 0
    if spec.per_layer_embedding is not None:
        floats += 2 * spec.per_layer_embedding.table.columns
    if spec.streams is not None:
        count = spec.streams.count
        floats += (2 * count - 1) * spec.dim + modes_width(count)
    floats += sum(shape.rope.dim // 2 * 2 for shape in kv_shapes(spec) if shape.rope)
    fed = (normed_width(spec), attended_width(spec), gated_dim(spec))
    inputs = sum(map(_input_bytes, fed))
    return 4 * floats + inputs


def _input_bytes(width: int) -> int:
    """A row of a matmul's input."""
    blocks = width // BLOCK if width % BLOCK == 0 else 0
    quants = blocks * (BLOCK + 4 * NUM_PLANES) + (ROW_GAP if blocks else 0)
    return 4 * round_up(width, 16) + quants


def loading_bytes(tensors: Iterable[TensorInfo]) -> int:
    """Rows of the file that are held while they are repacked: at most 4 MiB at a time."""
    return min(READ_CHUNK_BYTES, max((tensor.size_bytes for tensor in tensors), default=0))
