"""Completions for an editor: exact ones, side by side.

"Superposed Decoding: Multiple Generations from a Single Autoregressive Inference Pass" blends the
next tokens of k drafts into one pass, which changes what the model says; here each is a sequence of
a batch, whose passes cost little more than those of one.
"""

from __future__ import annotations

import math

from edgespec.engine.batch import BatchStream
from edgespec.engine.voting import until
from edgespec.models.file import ModelFile
from edgespec.models.tokenizers.tokenizer import Tokenizer
from edgespec.system.records import dataclass
from edgespec.verification.constraint import Constraint


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One way to go on."""

    text: str
    token_ids: list[int]
    logprob: float
    """Of a token, on average."""
    finished: bool
    """Whether it ended by itself or at its length, and not at the deadline."""


def likeliest_starts(
    stream: BatchStream, k: int, file: ModelFile, constraint: Constraint | None
) -> list[Suggestion]:
    """The likeliest first tokens of a reply of one, each a suggestion; those that end a text are
    none, nor those that a constraint forbids.
    """
    for _ in stream:
        pass
    found = stream.replies[0].logprobs or []
    ends = file.tokenizer.end_ids
    top = [(token, p) for token, p in found[0].top if token not in ends] if found else []
    if constraint is not None:
        top = [(token, p) for token, p in top if constraint.allows(token)]
    return [Suggestion("", [token], logprob, False) for token, logprob in top[:k]]


def completions(
    stream: BatchStream,
    starts: list[Suggestion],
    tokenizer: Tokenizer,
    deadline_s: float | None,
) -> list[Suggestion]:
    """What replies that go on from these tokens said until the deadline, the likeliest first."""
    try:
        for _ in until(deadline_s, stream):
            pass
    finally:
        stream.close()
    found = []
    for start, reply in zip(starts, stream.replies, strict=True):
        logprobs = [start.logprob, *(one.logprob for one in reply.logprobs or [])]
        ids = [*start.token_ids, *reply.token_ids]
        mean = math.fsum(logprobs) / len(logprobs)
        ended = reply.finish_reason != "cancelled"
        found.append(Suggestion(tokenizer.decode(ids), ids, mean, ended))
    return sorted(found, key=lambda one: -one.logprob)
