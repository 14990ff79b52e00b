"""Completions for an editor: exact ones, side by side.

"Superposed Decoding: Multiple Generations from a Single Autoregressive Inference Pass" blends the
next tokens of k drafts into one pass, which changes what the model says; here each is a sequence of
a batch, whose passes cost little more than those of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from edgespec.engine.batch import BatchStream
from edgespec.engine.voting import until
from edgespec.models.file import ModelFile
from edgespec.models.tokenizers.tokenizer import Tokenizer
from edgespec.system.records import dataclass


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One way to go on."""

    text: str
    token_ids: list[int]
    logprob: float
    """Of a token, on average."""
    finished: bool
    """Whether it ended by itself or at its length, neither at the deadline nor as hopeless."""


def likeliest_starts(stream: BatchStream, k: int, file: ModelFile) -> list[Suggestion]:
    """The likeliest first tokens of a reply of one, each a suggestion; those that end a text are
    none.
    """
    for _ in stream:
        pass
    found = stream.replies[0].logprobs or []
    ends = file.tokenizer.end_ids
    top = [(token, p) for token, p in found[0].top if token not in ends] if found else []
    return [Suggestion("", [token], logprob, False) for token, logprob in top[:k]]


def completions(
    stream: BatchStream,
    starts: list[Suggestion],
    tokenizer: Tokenizer,
    within: float | None,
    deadline_s: float | None,
) -> list[Suggestion]:
    """What replies that go on from these tokens said until the deadline, the likeliest first and
    those that were stopped as hopeless last.
    """
    try:
        for _ in until(deadline_s, stream):
            if within is not None:
                _stop_hopeless(stream, starts, within)
    finally:
        stream.close()
    sums = _sums(stream, starts)
    lengths = [len(one) for one in sums]
    if within is not None:
        lengths = hopeless_lengths(sums, _open(stream), within)
    found = []
    for start, one, length, reply in zip(starts, sums, lengths, stream.replies, strict=True):
        is_hopeless = length < len(one)
        ids = [*start.token_ids, *reply.token_ids][:length]
        ended = reply.finish_reason != "cancelled" and not is_hopeless
        mean = one[length - 1] / length
        found.append((is_hopeless, Suggestion(tokenizer.decode(ids), ids, mean, ended)))
    return [one for _, one in sorted(found, key=lambda pair: (pair[0], -pair[1].logprob))]


def _stop_hopeless(stream: BatchStream, starts: Sequence[Suggestion], within: float) -> None:
    sums, written = _sums(stream, starts), stream.generations
    for index, length in enumerate(hopeless_lengths(sums, _open(stream), within)):
        if length < len(sums[index]) and written[index].stats is None:
            stream.cancel(index)


def _sums(stream: BatchStream, starts: Sequence[Suggestion]) -> list[list[float]]:
    """Of each text the log-probability of its beginning, after each token."""
    return [
        list(accumulate((at.logprob for at in one.logprobs), initial=start.logprob))
        for start, one in zip(starts, stream.generations, strict=True)
    ]


def _open(stream: BatchStream) -> list[bool]:
    """Which texts have not come to their end."""
    return [one.finish_reason == "cancelled" for one in stream.generations]


def hopeless_lengths(
    sums: Sequence[Sequence[float]], is_open: Sequence[bool], within: float
) -> list[int]:
    """How many tokens to keep of each text: those to the first place where the log-probability of
    its beginning is more than `within` below the best there of those that go on.

    A place is judged once all that may come there have come, so no order of writing changes this.
    """
    kept = [len(one) for one in sums]
    alive = list(range(len(sums)))
    for place in range(max(kept, default=0)):
        if any(is_open[index] and len(sums[index]) <= place for index in alive):
            break
        alive = [index for index in alive if len(sums[index]) > place]
        best = max((sums[index][place] for index in alive), default=0.0)
        for index in [one for one in alive if sums[one][place] < best - within]:
            kept[index] = place + 1
            alive.remove(index)
    return kept
