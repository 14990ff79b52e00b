"""Replaying a reply with a fixed budget of nodes: every step verifies all that is drafted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import field

from edgespec.drafting.base import Drafter
from edgespec.drafting.market.market import Market
from edgespec.drafting.tree import DraftTree, StepOutcome
from edgespec.system.records import dataclass
from edgespec.tools.replay.transcripts import Transcript
from edgespec.verification.sampling import SamplingParams

LIKELIEST = SamplingParams(temperature=0.0, seed=0)
"""A log says which token came and not how it was drawn, so it counts as the likeliest."""


def right_path(tree: DraftTree, coming: Sequence[int]) -> list[int]:
    """The nodes of a tree that are the tokens `coming` after its root, the root first."""
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    path = [0]
    for node in range(1, len(tokens)):
        if len(path) > len(coming):
            break
        if parents[node] == path[-1] and tokens[node] == coming[len(path) - 1]:
            path.append(node)
    return path


@dataclass(slots=True)
class Tally:
    """What one drafter did over all replies."""

    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    drafting_s: float = 0.0
    """Of all steps: proposing, learning from the outcome, reading the new tokens."""
    reading_s: float = 0.0
    """Of all prompts."""
    passes: Counter[int] = field(default_factory=Counter)
    """How many steps verified trees of so many nodes, the root included."""
    drafted_by: Counter[int] = field(default_factory=Counter)
    """Nodes by the source that trees carry."""
    accepted_by: Counter[int] = field(default_factory=Counter)

    def count(self, outcome: StepOutcome) -> None:
        sources = outcome.tree.sources.tolist()
        self.steps += 1
        self.tokens += len(outcome.path)
        self.drafted += len(sources) - 1
        self.accepted += len(outcome.path) - 1
        self.passes[len(sources)] += 1
        self.drafted_by.update(sources[1:])
        self.accepted_by.update(sources[node] for node in outcome.path[1:])


def replay_steps(drafter: Drafter, transcript: Transcript, max_nodes: int, tally: Tally) -> None:
    """Replay one reply: each step drafts at most `max_nodes` tokens and verifies all of them."""
    clock = time.perf_counter
    output, place = transcript.output_ids, 0
    start = clock()
    drafter.begin(LIKELIEST)
    drafter.reset(transcript.prompt_ids)
    tally.reading_s += clock() - start
    while place < len(output):
        start = clock()
        tree = drafter.propose(min(max_nodes, len(output) - place - 1))
        drafted = clock()
        path = right_path(tree, output[place : place + max_nodes])
        new = output[place : place + len(path)]
        outcome = StepOutcome(tree, path, new[-1], new)
        verified = clock()
        drafter.observe(outcome)
        drafter.extend(new)
        tally.drafting_s += clock() - verified + drafted - start
        if isinstance(drafter, Market):
            drafter.take_seconds()  # the bill of a step: what it cost decides who is asked again
        tally.count(outcome)
        place += len(path)
