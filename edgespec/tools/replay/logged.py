"""A target that says what a log says, and whose passes take what a cost curve says."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edgespec.backends.base import Part, Target
from edgespec.backends.passes import TILE, Capabilities, Pass, Rows
from edgespec.backends.sequence import KvSequence
from edgespec.control.cost_curve import CostCurve
from edgespec.drafting.tree import TopTokens
from edgespec.models.spec import ModelSpec
from edgespec.tools.replay.transcripts import Transcript

_HIGHEST, _LEAST_GAP = 100.0, 1e-3
"""What the log's next token gets, and how far any other is below it at least."""


class LoggedTarget(Target):
    """Computes nothing: at each node that the log agrees with, the log's next token is likeliest,
    and others are as likely as it says.

    What a model would say elsewhere no log tells; there all tokens are equally likely. `clock` runs
    as if passes took what the curve says.
    """

    capabilities = Capabilities(name="log", bit_exact_rows=True, trees=True, sequences=False)

    def __init__(
        self,
        spec: ModelSpec,
        max_nodes: int,
        prices: CostCurve,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(spec, 0, max_nodes)
        self._prices = prices
        self._real_clock = clock
        self._text: list[int] = []
        self._num_prompt = 0
        self._top: TopTokens | None = None
        self._ahead_s = 0.0
        self._logits = np.zeros((max_nodes, spec.vocab_size), np.float32)
        self._maxima = np.zeros((max_nodes, -(-spec.vocab_size // TILE)), np.float32)
        self._raised: list[tuple[int, int]] = []

    def open_log(self, transcript: Transcript) -> None:
        """Stand before the last token of this prompt."""
        self._text = transcript.prompt_ids + transcript.output_ids
        self._num_prompt, self._top = len(transcript.prompt_ids), transcript.top
        self.own.length = len(transcript.prompt_ids) - 1
        self.context_length = len(self._text) + self.max_nodes

    def clock(self) -> float:
        """Seconds, the passes' included."""
        return self._real_clock() + self._ahead_s

    def _forward(self, parts: Sequence[Part], rows: Rows) -> Pass:
        ((sequence, tree),) = parts
        start = self._real_clock()
        for row, token in self._raised:
            self._logits[row, token] = self._maxima[row, token // TILE] = 0.0
        self._raised.clear()
        node = 0
        tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
        coming = self._text[sequence.length + 1 : sequence.length + 1 + len(tree)]
        for place, token in enumerate(coming, sequence.length + 1 - self._num_prompt):
            if self._top is not None:
                self._raise_all(node, self._top, place)
            self._raise(node, token, _HIGHEST)
            below = (n for n in range(node + 1, len(tree)) if parents[n] == node)
            node = next((n for n in below if tokens[n] == token), -1)
            if node < 0:
                break
        self._ahead_s += self._prices.seconds(len(tree)) - (self._real_clock() - start)
        return Pass(self._logits[: len(tree)], self._maxima[: len(tree)])

    def _raise(self, node: int, token: int, logit: float) -> None:
        self._logits[node, token] = logit
        tile = token // TILE
        self._maxima[node, tile] = max(self._maxima[node, tile], logit)
        self._raised.append((node, token))

    def _raise_all(self, node: int, top: TopTokens, place: int) -> None:
        """Let the likeliest tokens at a place of the output be so; the best of them is as likely as
        what came.
        """
        tokens, logits = top.tokens[place].tolist(), top.logits[place].tolist()
        for token, logit in zip(tokens, logits, strict=True):
            self._raise(node, token, max(_HIGHEST - _LEAST_GAP + min(logit - logits[0], 0.0), 1.0))

    def _snapshot(self, sequence: KvSequence) -> int:
        return sequence.length

    def _restore(self, sequence: KvSequence, snapshot: Any) -> int:
        del sequence
        return int(snapshot)

    def _commit(self, sequence: KvSequence, path: Sequence[int]) -> None:
        del sequence, path

    def _truncate(self, sequence: KvSequence, length: int) -> None:
        del sequence, length
