"""Drafts from the target's own first layers.

"LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding", section 3.4: draft tokens
pass the first layers and the head; what the layers computed is kept, and verification goes on from
there. Where to leave follows "DEL: Context-Aware Dynamic Exit Layer for Efficient Self-Speculative
Decoding": what each exit would have said is compared with what came, and the exit and length are
taken that give most tokens a second. A probe lets one node go from exit to exit: no layer is
computed twice, only the heads come on top, and the last exit's word is the proposal. An exit whose
layer has an adapter (`edgespec adapt`) is one with it and one without, so whether it pays here is
measured like all else.

The head is a large part of a draft's price. Byte-level and sentence-piece vocabularies number
tokens by how often they were merged, so the first ones are the frequent ones, and drafts are drawn
from those alone ("FR-Spec: Accelerating Large-Vocabulary Language Models via Frequency-Ranked
Speculative Sampling").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.passes import Logits
from edgespec.backends.sequence import KvSequence
from edgespec.drafting.model.chains import MEAN, best_length, first_rates, learn_shadows
from edgespec.drafting.model.model_drafter import LONGEST, ModelDrafter, with_maxima
from edgespec.drafting.proposal import Proposal
from edgespec.drafting.rates import RATE, new_rates
from edgespec.drafting.tree import DraftTree, Path, StepOutcome

FIRST_PROBES, PROBE_OFTEN, PROBE_EVERY = 8, 3, 24
"""Probes at first, in one of three rounds; and later in one of so many."""
RECONSIDER_EVERY = 4
"""Rounds after which the exit is chosen anew: one that disappoints is left before a probe."""
_SHALLOW, _DEEPER = 0.35, 0.6
"""How often an exit is right until more is known: so often, and so much more after all layers."""
_BETTER = 0.97
"""Another exit is taken when a token takes at most this part of the time there."""


class Exit(NamedTuple):
    """Where drafts leave."""

    layer: int
    adapted: bool = False
    """Through the layer's adapter."""


class EarlyExitDrafter(ModelDrafter):
    """Proposes what the target thinks after its first layers."""

    name = "early-exit"
    follows = True

    def __init__(
        self,
        exits: Sequence[Exit],
        vocab_size: int,
        head_size: int,
        num_layers: int,
        *,
        source: int = 1,
    ) -> None:
        """`exits` of `num_layers` begins with the one to begin with; drafts are among the
        vocabulary's first `head_size` tokens.
        """
        super().__init__(vocab_size, source=source)
        self.exits = sorted(exits)
        self._exit = self.exits.index(exits[0])
        means = [_SHALLOW + _DEEPER * layer / num_layers for layer, _ in self.exits]
        self._tables = np.stack([new_rates(first_rates(mean)) for mean in means])
        self._steps_s = [0.0] * len(exits)
        """What a draft takes, by exit; 0 where none was timed."""
        self._shadows = np.full(len(exits), -1, np.int64)
        self._num_shadows = self._rounds = self._probes = self._seen = 0
        self._head_size = head_size
        self._sequence: KvSequence | None = None
        self._leave_at(self._exit)

    @property
    def layer(self) -> int:
        """After how many layers drafts leave now."""
        return self.exits[self._exit].layer

    def attach(self, sequence: KvSequence, prices: NDArray[np.float64]) -> None:
        super().attach(sequence, prices)
        self._sequence = sequence

    def propose_after(self, path: Path, max_nodes: int, scratch: Proposal) -> DraftTree:
        """What the first layers say after a path, which all goes through them in one pass: the pass
        that verifies it goes on from there.
        """
        del scratch
        return self._propose(path, max_nodes)

    def _leave_at(self, place: int) -> None:
        self._exit, self._rates = place, self._tables[place]

    def _draw_chain(self, longest: int) -> None:
        self._num_shadows, self._rounds = 0, self._rounds + 1
        every = PROBE_OFTEN if self._probes < FIRST_PROBES else PROBE_EVERY
        if len(self.exits) > 1 and longest and self._rounds >= every:
            self._probe()
        else:
            self._step_s = self._step_of(self._exit)
            super()._draw_chain(longest)
            self._steps_s[self._exit] = self._step_s

    def _probe(self) -> None:
        """Ask all exits for the next token; the last one's word is proposed."""
        self._rounds, self._probes = 0, self._probes + 1
        sequence = self._sequence
        assert sequence is not None
        for place, (layer, adapted) in enumerate(self.exits):
            if place == 0:
                row = self._leave(self.exits[0], self._last, 0)
            else:
                found = sequence.deepen(layer, vocab=self._head_size, adapted=adapted)
                row = with_maxima(found.logits, found.maxima)
            if not self._draw(0, *row):
                self._num_drafts = 0
                break
            self._shadows[place] = self._drafts[0, 0]
        self._num_shadows = len(self.exits) - 1
        self._rates = self._tables[-1]

    def _room(self) -> int:
        return 0 if self._sequence is None else self._sequence.early_room

    def _row(self, token: int, depth: int) -> tuple[Logits, Logits]:
        return self._leave(self.exits[self._exit], token, depth)

    def _leave(self, way_out: Exit, token: int, depth: int) -> tuple[Logits, Logits]:
        """What an exit says after the draft before number `depth`."""
        sequence = self._sequence
        assert sequence is not None  # there is no room without
        path = self._path.tokens
        tokens, place = ([token], len(path) + depth) if depth else ([token, *path], 0)
        found = sequence.forward_until(
            way_out.layer,
            tokens,
            range(place - 1, place - 1 + len(tokens)),
            vocab=self._head_size,
            adapted=way_out.adapted,
        )
        return with_maxima(found.logits, found.maxima)

    def observe(self, outcome: StepOutcome) -> None:
        """Learn how often drafts are right; after a probe or a few rounds, choose the exit anew."""
        super().observe(outcome)
        self._seen += 1
        if self._num_shadows:
            for token in self._after_path(outcome)[:1].tolist():
                learn_shadows(self._tables, self._shadows, self._num_shadows, token)
            self._num_shadows, self._seen = 0, RECONSIDER_EVERY
        if self._seen >= RECONSIDER_EVERY:
            self._seen = 0
            self._leave_at(self._best_exit())

    def _best_exit(self) -> int:
        """The exit where a token takes the least time, each at its best length."""
        if self._prices is None or not any(self._steps_s):
            return self._exit
        seconds = [
            float(
                best_length(
                    self._prices,
                    float(self._tables[place, MEAN, RATE]),
                    self._step_of(place),
                    LONGEST,
                )
            )
            for place in range(len(self.exits))
        ]
        best = seconds.index(min(seconds))
        return best if seconds[best] < _BETTER * seconds[self._exit] else self._exit

    def _step_of(self, place: int) -> float:
        """Seconds of a draft that leaves at an exit: measured, or from the nearest that was, by how
        many weights take part.
        """
        known = [other for other, step_s in enumerate(self._steps_s) if step_s]
        if not known:
            return 0.0
        near = min(known, key=lambda other: abs(other - place))
        return self._steps_s[near] * self._work(place) / self._work(near)

    def _work(self, place: int) -> int:
        """Weights that a draft goes through."""
        assert self._sequence is not None
        spec, (layer, adapted) = self._sequence.target.spec, self.exits[place]
        head = (self._head_size + adapted * spec.dim) * spec.dim
        return spec.layers_size(0, layer) + head

    @property
    def size_bytes(self) -> int:
        return super().size_bytes + self._tables.nbytes + self._shadows.nbytes
