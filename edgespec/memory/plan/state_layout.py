"""How the states of recurrent layers lie in memory: sizes in f32 numbers, offsets in bytes.

A sequence has one state: for each recurrent layer the last inputs of its convolution, twice (one is
read while the other is written), and the states of its heads. For nodes that may yet be rejected,
only what they would do to a state is kept, a row for each: their inputs of the convolution, and of
each head key, correction and decay.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from edgespec.models.layers import GatedDeltaNet, Mamba2, Recurrent
from edgespec.models.spec import ModelSpec
from edgespec.system.records import dataclass

LANES = 16
CONVOLUTIONS = (2, 3, 4)
"""Positions that a causal convolution may span."""
STATES_ITEM = "states"
CHECKPOINT_EVERY = 256
"""Positions between states that are set aside, so that a sequence can return to them."""
CHECKPOINTS = 4
"""States that are set aside for each sequence where a plan says nothing else."""
ROW_WORDS, PART_WORDS, INSTRUCTION_WORDS, STEP_WORDS, PASS_WORDS, WALK_WORDS = 3, 10, 4, 8, 4, 8
"""Words of what kernels are told about a node, a sequence, a step of the walk over a tree, a head's
step, and a pass; and what planning the walk takes for a node.
"""


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads with a state [key_dim, value_dim]; `key_heads` of keys are shared by them."""

    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    key_run: int
    """Neighbouring heads that share a key; then the next key, and from the last the first again."""
    norm_groups: int
    """Parts of the output that are normed by themselves."""

    @property
    def values(self) -> int:
        """Width of what a layer puts out."""
        return self.heads * self.value_dim

    @property
    def padded(self) -> int:
        return round_up(self.heads)

    @property
    def state(self) -> int:
        """Numbers of one head's state."""
        return self.key_dim * self.value_dim


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """Where one layer's part is, in a state and in a row of what is kept."""

    mixer: Recurrent
    heads: Heads | None
    tail_at: int
    states_at: int
    raw_at: int
    keys_at: int
    deltas_at: int
    decays_at: int

    @property
    def tail_bytes(self) -> int:
        """Of one of the two tails."""
        return 4 * (self.mixer.conv_width - 1) * self.mixer.channels


@dataclass(frozen=True, slots=True)
class StateLayout:
    """Of all recurrent layers of a model."""

    layers: Mapping[int, LayerLayout]
    """By the layers' numbers."""
    state_bytes: int
    """Of a sequence's state."""
    kept_bytes: int
    """Of what is kept of one node."""
    projected: int
    """Width of what the widest layer's projections give, and of the following."""
    mixed: int
    """Channels after the convolution, of layers with heads."""
    gates: int
    """Heads."""
    values: int
    """Width of what goes into the last product."""
    head_state: int
    """Numbers of the largest head's state."""

    @property
    def row_bytes(self) -> int:
        """Scratch of a row: projections, channels, decays and steps."""
        return 4 * (self.projected + self.mixed + 2 * self.gates)


def round_up(value: int, multiple: int = LANES) -> int:
    return -(-value // multiple) * multiple


def heads_of(mixer: Recurrent) -> Heads | None:
    """The heads of a layer that has some."""
    if isinstance(mixer, GatedDeltaNet):
        own = (mixer.value_heads, mixer.key_heads, mixer.key_dim, mixer.value_dim)
        return Heads(*own, key_run=1, norm_groups=mixer.value_heads)
    if isinstance(mixer, Mamba2):
        own = (mixer.heads, mixer.groups, mixer.state_dim, mixer.head_dim)
        return Heads(*own, key_run=mixer.heads // mixer.groups, norm_groups=mixer.groups)
    return None


def projected_width(mixer: Recurrent) -> int:
    """Numbers that a layer's projections give for a row, each padded to whole tiles."""
    if isinstance(mixer, GatedDeltaNet):
        matrices = (mixer.qkv, mixer.z, mixer.alpha, mixer.beta)
        return sum(round_up(matrix.rows) for matrix in matrices)
    return round_up(mixer.projection.rows)


@cache
def state_layout(spec: ModelSpec) -> StateLayout:
    """Where everything of a model's recurrent layers is."""
    layers: dict[int, LayerLayout] = {}
    state = kept = 0
    for number, layer in enumerate(spec.layers):
        mixer = layer.mixer
        if not isinstance(mixer, Recurrent):
            continue
        own = heads_of(mixer)
        tail, raw = state, kept
        states = tail + 2 * (mixer.conv_width - 1) * mixer.channels
        keys = raw + mixer.channels
        state, deltas, decays, kept = states, keys, keys, keys
        if own is not None:
            state += own.heads * own.state
            deltas = keys + own.key_heads * own.key_dim
            decays = deltas + own.values
            kept = decays + own.padded
        places = (tail, states, raw, keys, deltas, decays)
        layers[number] = LayerLayout(mixer, own, *(4 * place for place in places))
    mixers = [layer.mixer for layer in layers.values()]
    heads = [layer.heads for layer in layers.values() if layer.heads is not None]
    return StateLayout(
        MappingProxyType(layers),
        state_bytes=4 * state,
        kept_bytes=4 * kept,
        projected=max(map(projected_width, mixers), default=0),
        mixed=max((own.mixer.channels for own in layers.values() if own.heads), default=0),
        gates=max((own.padded for own in heads), default=0),
        values=max((values_of(mixer) for mixer in mixers), default=0),
        head_state=max((own.state for own in heads), default=0),
    )


def values_of(mixer: Recurrent) -> int:
    """Width of what goes into a layer's last product."""
    own = heads_of(mixer)
    return mixer.channels if own is None else own.values


def has_states(spec: ModelSpec) -> bool:
    """Whether some layers are recurrent."""
    return any(isinstance(layer.mixer, Recurrent) for layer in spec.layers)


def most_checkpoints(context: int) -> int:
    """States to set aside for a sequence, so that it can return everywhere: one every 256
    positions, and one where its last prompt ended.
    """
    return (context - 1) // CHECKPOINT_EVERY + 1


def num_states(sequences: int, checkpoints: int = CHECKPOINTS) -> int:
    """States of all sequences, with those set aside."""
    return sequences * (1 + checkpoints)


def num_kept(max_nodes: int) -> int:
    """Rows for the nodes of a pass, and for those committed before whose steps are to be taken."""
    return max_nodes + min(max_nodes, LANES)


def num_buffers(max_nodes: int) -> int:
    """States a thread holds while it walks a tree of so many nodes: the deepest nesting of
    branches that go on, each of which takes twice the nodes of the one inside.
    """
    return max_nodes.bit_length()


def work_bytes(spec: ModelSpec, max_nodes: int) -> int:
    """Scratch of a thread: steps of all kept nodes and two, and states on the way down a tree."""
    steps = 8 * STEP_WORDS * (num_kept(max_nodes) + 2)
    return steps + num_buffers(max_nodes) * 4 * state_layout(spec).head_state


def states_bytes(spec: ModelSpec, sequences: int, checkpoints: int = CHECKPOINTS) -> int:
    """States: (1 + those set aside) x sequences x a state and 64 bytes."""
    size = state_layout(spec).state_bytes
    return num_states(sequences, checkpoints) * (size + 64) if size else 0


def recurrent_scratch_bytes(
    spec: ModelSpec, rows: int, max_nodes: int, threads: int, sequences: int
) -> int:
    """Rows of one pass, padded to a tile size, what is kept of nodes, threads' own scratch, and
    tables.
    """
    layout = state_layout(spec)
    if not layout.layers:
        return 0
    kept = num_kept(max_nodes) * layout.kept_bytes
    tables = ROW_WORDS * rows + PART_WORDS * sequences + INSTRUCTION_WORDS * (rows + sequences)
    tables += PASS_WORDS + num_kept(max_nodes) + WALK_WORDS * max_nodes
    return rows * layout.row_bytes + kept + threads * work_bytes(spec, max_nodes) + 8 * tables
