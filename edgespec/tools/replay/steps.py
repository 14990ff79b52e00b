"""Replaying a reply with a fixed budget of nodes: every step verifies all that is drafted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import field

import numpy as np

from edgespec.drafting.base import Drafter
from edgespec.drafting.market.market import Market
from edgespec.drafting.tree import DraftTree, StepOutcome, TopTokens
from edgespec.system.records import dataclass
from edgespec.tools.replay.transcripts import Transcript


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


def top_of(tree: DraftTree, path: Sequence[int], logged: TopTokens, place: int) -> TopTokens:
    """What the log says the likeliest tokens were after each node of a tree whose path goes on at
    this place of the output; of other nodes it says nothing, and those are all alike.
    """
    shape = len(tree), logged.tokens.shape[1]
    top = TopTokens(np.zeros(shape, np.int32), np.zeros(shape, np.float32))
    for depth, node in enumerate(path):
        top.tokens[node] = logged.tokens[place + depth]
        top.logits[node] = logged.logits[place + depth]
    return top


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
    for _ in steps_of(drafter, transcript, max_nodes, tally):
        pass


def steps_of(
    drafter: Drafter, transcript: Transcript, max_nodes: int, tally: Tally
) -> Iterator[None]:
    """The same a step at a time, for replies that are written beside each other."""
    clock = time.perf_counter
    output, place = transcript.output_ids, 0
    start = clock()
    drafter.begin(transcript.sampling)
    drafter.reset(transcript.prompt_ids)
    tally.reading_s += clock() - start
    while place < len(output):
        start = clock()
        tree = drafter.propose(min(max_nodes, len(output) - place - 1))
        drafted = clock()
        path = right_path(tree, output[place : place + max_nodes])
        new = output[place : place + len(path)]
        top = None if transcript.top is None else top_of(tree, path, transcript.top, place)
        outcome = StepOutcome(tree, path, new[-1], new, top)
        verified = clock()
        drafter.observe(outcome)
        drafter.extend(new)
        tally.drafting_s += clock() - verified + drafted - start
        if isinstance(drafter, Market):
            drafter.take_seconds()  # the bill of a step: what it cost decides who is asked again
        tally.count(outcome)
        place += len(path)
        yield
