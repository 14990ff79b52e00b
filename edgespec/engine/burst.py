"""Several steps of one reply in one compiled call, wherever nothing needs Python between them.

On a small model a pass takes a fifth of a millisecond, and what Python does around it a good part
of that. So the steps of a reply that is written alone, by a backend whose passes a kernel can call,
with drafters that are all compiled, are `compiled_steps.write`: the decode loop's own parts, called
in the same order, for as long as a reader does not notice. Text and counts are the loop's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Target
from edgespec.backends.passes import TILE, CompiledPass
from edgespec.control.controller import Controller
from edgespec.control.prospects import Prospects
from edgespec.drafting.market.market import MAX_SOURCES, Market
from edgespec.engine import compiled_steps as c
from edgespec.engine.generation import Generation
from edgespec.system.addresses import address_of
from edgespec.system.clock import Clock
from edgespec.system.precompiled import chosen
from edgespec.verification.match import Verifier
from edgespec.verification.noise import wrapping

LONGEST_S = 0.004
"""For how long steps of a burst may begin: what a reader may wait more than for one token."""
MOST_TOKENS = 128


class Written(NamedTuple):
    """What a burst came to."""

    tokens: list[int]
    num_tokens: int
    """With those past one that ended the reply."""
    steps: int
    drafted: int
    accepted: int
    plain_s: float
    """What the tokens would have taken in plain passes."""
    by_source: NDArray[np.int64]
    """[2, sources]: drafted and accepted."""
    status: int
    """Less than 0 where a row came that no token can be drawn from: the next step meets it."""


class Burst:
    """Writes steps of whatever reply is running alone; owns the buffers that they take."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._clock = Clock()
        self._state = np.zeros(c.NUM_STATE, np.int64)
        self._seconds = np.zeros(c.NUM_SECONDS)
        self._out = np.zeros(MOST_TOKENS + 1, np.int32)
        self._by_source = np.zeros((2, MAX_SOURCES + 1), np.int64)

    def write(self, generation: Generation) -> Written | None:
        """The next steps; None where they take Python, or there is no room for one of any size."""
        slot, controller = generation.slot, self._controller
        verifier, market = generation.plain_verifier, slot.market
        drafts = generation.request.speculation and market.has_free
        if verifier is None or (drafts and not market.is_compiled) or not controller.is_compiled:
            return None
        if not generation.counts.steps:
            return None  # the first token is waited for
        sequence, target = slot.sequence, slot.sequence.target
        nodes = min(controller.max_nodes, verifier.max_nodes, generation.request.max_nodes or 2**15)
        room = min(MOST_TOKENS, market.room if drafts else MOST_TOKENS)
        if room < nodes or not isinstance(target, Target):
            return None
        left = target.context_length - sequence.length
        passes = target.compiled_pass(sequence, min(room, left))
        if passes is None:
            return None
        state = self._state
        state[:] = 0
        state[c.LENGTH], state[c.CONTEXT] = sequence.length, target.context_length
        state[c.POSITION] = generation.position
        state[c.TOKENS_LEFT], state[c.ROOM] = generation.tokens_left, room
        state[c.MOST_NODES] = nodes
        core = market.compiled(nodes) if drafts else 0
        return self._written(generation, passes, core)

    def _written(self, generation: Generation, passes: CompiledPass, core: int) -> Written:
        slot, verifier = generation.slot, generation.plain_verifier
        assert verifier is not None
        state, seconds, out = self._state, self._seconds, self._out
        start, out[0] = slot.sequence.length, slot.ids[-1]
        self.call(passes, core, verifier, slot.prospects, generation.end_tokens)
        steps, plain_steps = state.item(c.NUM_STEPS), state.item(c.PLAIN_STEPS)
        plain_pass_s = seconds.item(c.PLAIN_PASS_S) / plain_steps if plain_steps else 0.0
        num_tokens = state.item(c.LENGTH) - start
        target = slot.sequence.target
        assert isinstance(target, Target)
        target.compiled_passes(slot.sequence, num_tokens, plain_pass_s)
        tokens: list[int] = out[1 : 1 + state.item(c.NUM_TOKENS)].tolist()
        if core:
            slot.market.wrote(len(tokens), steps, seconds.item(c.DRAFT_S))
        return Written(
            tokens,
            num_tokens,
            steps,
            state.item(c.DRAFTED),
            state.item(c.ACCEPTED),
            seconds.item(c.PLAIN_S),
            self._by_source,
            state.item(c.STATUS),
        )

    def call(
        self,
        passes: CompiledPass,
        core: int,
        verifier: Verifier,
        prospects: Prospects,
        end_tokens: NDArray[np.int32],
    ) -> None:
        """Run the kernel on what the state says."""
        self._seconds[:], self._by_source[:] = 0.0, 0
        self._seconds[c.MOST_S] = LONGEST_S
        with wrapping():
            c.write(
                (passes.table, passes.forward, passes.commit),
                core,
                (passes.logits, passes.logits.view(np.int32), passes.maxima.view(np.int32)),
                (passes.tokens, passes.parents, passes.path),
                *verifier.words,
                (self._controller.numbers, prospects.numbers),
                self._controller.curve.words,
                self._controller.choice.words(self._controller.max_nodes),
                (self._clock.words, self._clock.units),
                end_tokens,
                (self._state, self._seconds, self._out, self._by_source),
            )

    def warm_up(self, market: Market, verifier: Verifier) -> None:
        """Compile the kernel, or load it from the cache, on passes that compute nothing."""
        if chosen().source == "python" or not market.is_compiled:
            return
        self._state[:] = 0
        self._state[c.TOKENS_LEFT], self._state[c.CONTEXT] = 1, 2
        self._state[c.MOST_NODES] = self._state[c.ROOM] = 1
        nothing, logits = address_of(c.nothing), np.zeros((1, TILE), np.float32)
        tree = np.zeros(1, np.int32), np.zeros(1, np.int16), np.zeros(1, np.int32)
        passes = CompiledPass(0, nothing, nothing, *tree, logits, np.zeros((1, 1), np.float32))
        self.call(passes, market.compiled(1), verifier, Prospects(), np.zeros(0, np.int32))
