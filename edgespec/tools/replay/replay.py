"""Replaying a file: every line through every lane, one reply in memory at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from edgespec.drafting.text.store import Store
from edgespec.errors import OptionError, TranscriptError
from edgespec.memory.plan.settings import MOST_NODES
from edgespec.models.vocabulary_file import VocabularyFile
from edgespec.system.records import dataclass
from edgespec.tools.replay.lanes import choose_drafters, make_lanes
from edgespec.tools.replay.prices import Prices, own_prices, read_prices
from edgespec.tools.replay.report import ReplayReport
from edgespec.tools.replay.transcripts import Transcript, holds_logits, read_transcripts

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What is to be replayed and how, checked before anything is read."""

    path: str
    vocabulary: str | None
    max_nodes: int
    """Most tokens drafted in a step."""
    drafters: tuple[str, ...]
    left_out: tuple[str, ...]
    prices: Prices
    store: str | None = None
    """A datastore for the drafter hierarchy."""

    @classmethod
    def parse(
        cls,
        path: str,
        vocabulary: str | None,
        max_nodes: int,
        drafters: str,
        curve: str | None,
        store: str | None = None,
    ) -> Self:
        """From the words of a command line; raises OptionError."""
        if not 1 <= max_nodes < MOST_NODES:
            raise OptionError(f"--max-nodes takes 1 to {MOST_NODES - 1}, and got {max_nodes}")
        chosen, left_out = choose_drafters(drafters, store, logits=holds_logits(path))
        prices = own_prices(vocabulary) if curve is None else read_prices(curve)
        return cls(path, vocabulary, max_nodes, chosen, left_out, prices, store)


def replay(options: ReplayOptions, model: VocabularyFile, progress: Progress) -> ReplayReport:
    """Replay a file of replies; of the model only the tokenizer is read.

    Raises TranscriptError for a file that cannot be read or holds no reply.
    """
    progress("kernels", 0, 1)
    corpus = None if options.store is None else Store(options.store, model.tokenizer.fingerprint)
    _warm_up(options, model, corpus)
    progress("kernels", 1, 1)
    lanes = make_lanes(options.drafters, model.spec, options.max_nodes, options.prices, corpus)
    replies = prompt_tokens = output_tokens = 0
    for transcript in read_transcripts(
        options.path, model.tokenizer, lambda done, whole: progress("replay", done, whole)
    ):
        for lane in lanes:
            lane.replay(transcript)
        replies += 1
        prompt_tokens += len(transcript.prompt_ids)
        output_tokens += len(transcript.output_ids)
    if not output_tokens:
        raise TranscriptError(
            f"{options.path} holds no reply of two tokens or more; "
            'each line is an object like {"prompt": "...", "output": "..."}'
        )
    return ReplayReport(
        path=options.path,
        vocabulary=model.path.name,
        replies=replies,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        max_nodes=options.max_nodes,
        prices=options.prices,
        in_market=options.drafters,
        sources=tuple(lane.report() for lane in lanes),
        left_out=options.left_out,
    )


def _warm_up(options: ReplayOptions, model: VocabularyFile, corpus: Store | None) -> None:
    """Have everything compiled before anything is timed."""
    text = [1, 2, 1, 2, 1, 2, 3, 1, 2]
    lanes = make_lanes(options.drafters, model.spec, options.max_nodes, options.prices, corpus)
    for lane in lanes:
        lane.replay(Transcript(text, text))
