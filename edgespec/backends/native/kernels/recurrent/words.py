"""What the stages of recurrent layers are told: words of a layer, of the pass at hand, and of the
nodes and sequences in it. Offsets (`_AT`) and strides are bytes.
"""

from __future__ import annotations

from edgespec.memory.plan.state_layout import INSTRUCTION_WORDS as INSTRUCTION_WORDS
from edgespec.memory.plan.state_layout import PART_WORDS as PART_WORDS
from edgespec.memory.plan.state_layout import PASS_WORDS as PASS_WORDS
from edgespec.memory.plan.state_layout import ROW_WORDS as ROW_WORDS

# fmt: off
# A layer: where the words of the pass are; channels of the convolution, how they are divided among
# threads, how many blocks of them are queries, and then keys, to be normed; positions it spans.
(PASS, CHANNELS, BLOCK, NORMED_QUERIES, NORMED_KEYS, WIDTH,
# Heads: see `Heads` in `memory/plan/state_layout.py`.
 HEADS, KEY_HEADS, KEY_DIM, VALUE_DIM, KEY_RUN, GROUPS, GROUP_WIDTH, GAIN_STRIDE,
# Rows of what the projections gave: inputs of the convolution (for short convolutions those are yet
# to be multiplied by FACTOR_AT), gates, time steps, betas.
 PROJECTED, PROJECTED_STRIDE, RAW_AT, FACTOR_AT, GATE_AT, TIMES_AT, BETAS_AT,
# Rows of the channels after the convolution.
 MIXED, MIXED_STRIDE, QUERIES_AT, KEYS_AT, VALUES_AT,
# Rows of decays and betas (or time steps).
 DECAYS, BETAS, GATES_STRIDE,
# Small tensors: taps f32 [width, channels], biases, rates, skips (0: none), gains.
 TAPS, TAP_STRIDE, CONV_BIAS, TIME_BIAS, RATES, SKIPS, GAIN, EPSILON_BITS, SCALE_BITS,
# In a state, and in a row of what is kept of a node.
 TAIL_AT, TAIL_BYTES, STATES_AT, KEPT_RAW_AT, KEPT_KEYS_AT, KEPT_DELTAS_AT, KEPT_DECAYS_AT,
# Functions; and scratch of threads.
 CONVOLVE, L2_NORM, TIME_STEPS, SIGMOID, MULTIPLY, READ, ADVANCE, UPDATE, GATED_NORM,
 WORK, WORK_THREAD, BUFFERS_AT) = range(57)
LAYER_WORDS = 57

# The pass at hand.
NUM_PARTS, PARTS, ROWS, INSTRUCTIONS = range(PASS_WORDS)

# A node: its parent's row, or -1; its part; where what is kept of it goes, 0 for nowhere.
PARENT, PART, KEPT = range(ROW_WORDS)

# A sequence: its first row and how many; its state, and which of the two tails is read; addresses
# of the rows kept of nodes that are committed and not yet in the state, and how many; the first of
# its instructions and how many; 1 where all its nodes, a chain, go into the state.
(FIRST, COUNT, STATE, PARITY, PENDING, NUM_PENDING, FIRST_INSTRUCTION, NUM_INSTRUCTIONS, IS_CHAIN,
 _) = range(PART_WORDS)

# An instruction: apply the step of a row (or of all that are pending), from one state to another,
# then read what came of it for another row; NOTHING for a row that is none, COMMITTED for the
# sequence's own state, otherwise numbers of buffers.
APPLIED, SOURCE, TARGET, READER = range(INSTRUCTION_WORDS)
NOTHING, ALL_PENDING = -1, -2
COMMITTED = -1
# fmt: on
