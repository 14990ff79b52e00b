"""One reply, from its request to its text and numbers."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.passes import Logits, Progress
from edgespec.control.statistics import ReplyStats
from edgespec.drafting.tree import DraftTree, StepOutcome
from edgespec.engine.context import Overflow, Stop
from edgespec.engine.idle_sequences import KvTraffic
from edgespec.engine.reply import FinishReason, Reply, Stats
from edgespec.engine.request import Request
from edgespec.engine.slot import CachedSequence, Slot
from edgespec.errors import ContextOverflowError, EdgeSpecError, OptionError
from edgespec.memory.plan.plan import Plan
from edgespec.models.file import ModelFile
from edgespec.models.reasoning import Parser, Piece, joined
from edgespec.models.tokenizers.stream import StreamDecoder
from edgespec.system.resident_memory import peak_resident_bytes
from edgespec.verification.match import Verifier


@dataclass(slots=True, eq=False)
class Generation:
    """A reply while it is written; afterwards `reply` is the whole.

    Waiting, it has a request; `begin` gives it a slot, steps `commit` tokens to it, and `end` fills
    its numbers. A reader's handle is a `Stream`: this knows nothing of who reads.
    """

    request: Request
    overflow: Overflow = field(default_factory=Stop)
    """What becomes of a sequence that outgrows the context."""
    owner: Hashable = None
    """Whose sequence this goes on with: a conversation's, or nobody's."""
    text: str = ""
    reasoning: str = ""
    token_ids: list[int] = field(default_factory=list)
    """What was written, without the token that ended it."""
    seen_ids: list[int] = field(default_factory=list)
    """What the model has before it: prompt and reply, less what was dropped."""
    finish_reason: FinishReason = "cancelled"
    stats: Stats | None = None
    counts: ReplyStats = field(default_factory=ReplyStats)
    slot: Slot = field(init=False)
    """Where it is written, from `begin` to `end`."""
    end_tokens: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """Those that end the reply, for kernels."""
    _verifier: Verifier | None = None
    _pieces: StreamDecoder | None = None
    _thoughts: Parser | None = None
    """What tells reasoning from the answer, where there may be any."""
    _marks: Mapping[int, str] = field(default_factory=dict)
    _end_ids: frozenset[int] = frozenset()
    _progress: Progress | None = None
    _shift: int = 0
    """Tokens dropped since the prompt: noise goes on where it was, and never repeats."""
    _cached: int = 0
    _num_prompt: int = 0
    _start: float = 0.0
    _first_s: float = 0.0
    _prefill_s: float = 0.0

    def __post_init__(self) -> None:
        self.seen_ids = list(self.request.prompt_ids)

    def fit(self, plan: Plan, most: int) -> None:
        """Let the policy shorten a prompt that does not fit; raises as `check_prompt` does when it
        may not.
        """
        room = plan.context_length - 1
        if len(self.seen_ids) > room:
            kept = self.overflow.shorten(self.seen_ids, [], room)
            if kept is not None:
                self.seen_ids = kept
                return
        check_prompt(len(self.seen_ids), plan, most)

    def begin(
        self,
        slot: Slot,
        file: ModelFile,
        max_nodes: int,
        others: Iterable[CachedSequence] = (),
        progress: Progress | None = None,
    ) -> None:
        """Prefill the prompt in a slot, as far as neither this one nor the others have it."""
        begun = time.perf_counter()
        self._start, self._progress = self._start or begun, progress
        self._num_prompt = len(self.seen_ids)
        self._cached = slot.begin(self.seen_ids, others, progress)
        self._prefill_s = time.perf_counter() - begun
        end_ids = frozenset[int]() if self.request.ignore_eos else file.tokenizer.end_ids
        self.take(slot, verifier_for(self.request, file.spec.vocab_size, max_nodes), end_ids)
        if self.request.in_template and file.reasoning is not None:
            self._thoughts = file.reasoning.parser(self.seen_ids)
            self._marks = file.reasoning.marks
        self._pieces = file.tokenizer.stream()  # last: from here on it has begun

    def take(self, slot: Slot, verifier: Verifier, end_ids: frozenset[int] = frozenset()) -> None:
        """Go on from what a slot holds, which is the prompt."""
        self.slot, self._verifier, self._end_ids = slot, verifier, end_ids
        self.end_tokens = np.array(sorted(end_ids), np.int32)
        self.counts = ReplyStats(slot.market.names)
        if self.request.speculation:
            slot.prospects.begin()
            slot.market.begin(self.request.sampling)
            slot.market.reset(slot.ids)

    def arrive(self) -> None:
        """It is its turn now: from here on the time to its first token counts."""
        self._start = time.perf_counter()

    @property
    def began(self) -> bool:
        """Whether its prompt was accepted and prefilled."""
        return self._pieces is not None

    @property
    def is_over(self) -> bool:
        """Whether the reply has ended, or stands before a full context."""
        return self.finish_reason != "cancelled"

    @property
    def position(self) -> int:
        """The last token's, for its noise."""
        return self._shift + len(self.slot.ids) - 1

    @property
    def tokens_left(self) -> int:
        """Tokens that may still be written."""
        return self.request.max_tokens - self.counts.output_tokens

    @property
    def plain_verifier(self) -> Verifier | None:
        """What draws its tokens, if that takes the rows and nothing of the text."""
        verifier = self._verifier
        is_plain = type(verifier) is Verifier and verifier.params.repetition_penalty == 1.0
        return verifier if is_plain else None

    @property
    def most_drafts(self) -> int:
        """Most nodes besides the root that may be drafted now."""
        sequence = self.slot.sequence
        room = sequence.target.context_length - sequence.length
        room = min(room, self.tokens_left)
        return min(room, self.request.max_nodes or room) - 1

    def commit(
        self, tree: DraftTree, logits: Logits, maxima: Logits | None
    ) -> tuple[StepOutcome, list[int]]:
        """Verify a tree by its logits, commit what the model agrees with, and let the sequence
        grow; returns the outcome and the new tokens, up to one that ends the reply.
        """
        slot, verifier = self.slot, self._verifier
        assert verifier is not None
        ids, sampling = slot.ids, self.request.sampling
        recent = ids[-sampling.repetition_window :]
        verdict = verifier.verify(logits, tree.tokens, tree.parents, recent, self.position, maxima)
        slot.sequence.commit(verdict.path)
        drafts = verdict.path[1:]
        tokens = [*tree.tokens[drafts].tolist(), verdict.bonus] if drafts else [verdict.bonus]
        new = _until_end(tokens, self._end_ids)
        self.grow(new, len(tokens))
        return StepOutcome(tree, verdict.path, verdict.bonus, tokens), new

    def grow(self, new: list[int], num_tokens: int) -> None:
        """Steps have brought these tokens, and committed `num_tokens`."""
        self.slot.ids.extend(new)
        self._judge(new, num_tokens)

    def _judge(self, new: Sequence[int] = (), num_tokens: int = 0) -> None:
        """Find out whether the reply has ended, now that a step brought so many tokens."""
        sequence = self.slot.sequence
        self.finish_reason = (
            "stop"
            if new and new[-1] in self._end_ids
            else "length"
            if self.counts.output_tokens + num_tokens >= self.request.max_tokens
            else "context"
            if sequence.length >= sequence.target.context_length
            else "cancelled"
        )

    @property
    def untouched(self) -> bool:
        """Whether the text is all that the tokens say."""
        return self._thoughts is None or self._thoughts.untouched

    def push(self, new: list[int]) -> list[Piece]:
        """Make text of a step's tokens; returns what they complete, in at most a piece for each
        change between reasoning and answer.
        """
        assert self._pieces is not None
        self._first_s = self._first_s or time.perf_counter() - self._start
        kept = new[:-1] if self.finish_reason == "stop" else new
        self.token_ids += kept
        self.seen_ids += kept
        pieces = self._made(kept)
        if self.is_over and not self._make_room():
            pieces += self._flush()
        return self._keep(pieces)

    def _made(self, kept: list[int]) -> list[Piece]:
        decoder, parser = self._pieces, self._thoughts
        assert decoder is not None
        if parser is None:
            return [Piece("".join(map(decoder.push, kept)))]
        made: list[Piece] = []
        for token in kept:
            mark = self._marks.get(token)
            made += parser.push(decoder.push(token)) if mark is None else parser.mark(mark)
        return made

    def _flush(self) -> list[Piece]:
        """What is left at the end, once."""
        decoder, parser = self._pieces, self._thoughts
        if decoder is None:
            return []
        if parser is None:
            return [Piece(decoder.flush())]
        return [*parser.push(decoder.flush()), *parser.flush()]

    def _keep(self, pieces: list[Piece]) -> list[Piece]:
        pieces = joined(pieces)
        for piece in pieces:
            if piece.reasoning:
                self.reasoning += piece
            else:
                self.text += piece
        return pieces

    def _make_room(self) -> bool:
        """Where the context is full, let the policy drop something and prefill what is left; False
        when the reply has ended for good.
        """
        if self.finish_reason != "context":
            return False
        slot = self.slot
        num_seen = len(slot.ids)
        prompt = max(num_seen - len(self.token_ids), 0)
        room = slot.sequence.target.context_length - 1
        kept = self.overflow.shorten(slot.ids[:prompt], slot.ids[prompt:], room)
        if kept is None:
            return False
        self.seen_ids = kept
        slot.settle()
        slot.begin(kept, progress=self._progress)
        self._shift += num_seen - len(kept)
        if self.request.speculation:
            slot.market.reset(kept)
        self._judge()
        return True

    def end(self, plan: Plan, traffic: KvTraffic) -> None:
        """Fill in the numbers; the slot is free. One that never began has none to speak of."""
        if self._thoughts is not None and not self.is_over:  # cut short: what was held back
            self._keep(self._thoughts.flush())
        market = self.slot.market if self.began and self.request.speculation else None
        computed = max(self._num_prompt - 1 - self._cached, 0)
        self.stats = Stats(
            prompt_tokens=self._num_prompt or len(self.request.prompt_ids),
            cached_tokens=self._cached,
            prefill_tokens_per_second=computed / self._prefill_s
            if self._prefill_s and computed > 0
            else 0.0,
            time_to_first_token_s=self._first_s,
            peak_memory_bytes=peak_resident_bytes(),
            planned_memory_bytes=plan.planned_bytes,
            backend=plan.backend,
            seed=self.request.sampling.seed,
            dropped_turns=self.overflow.dropped_turns,
            dropped_tokens=self.overflow.dropped_tokens,
            lossy=self.request.lossy,
            restored_tokens=traffic.restored_tokens,
            spilled_tokens=traffic.spilled_tokens,
            forgotten_tokens=traffic.forgotten_tokens,
            notes=(*traffic.notes, *(market.notes if market else ())),
            overlap=market.overlap if market else "",
            **self.counts.as_dict(),
        )
        if self.began:
            del self.slot

    @property
    def reply(self) -> Reply:
        """The reply; raises EdgeSpecError while it is still being written."""
        if self.stats is None:
            raise EdgeSpecError("the reply is not finished; read the stream to its end or close it")
        return Reply(self.text, self.token_ids, self.finish_reason, self.stats, self.reasoning)


def verifier_for(request: Request, vocab_size: int, max_nodes: int) -> Verifier:
    """What compares a request's drafts with the model's own tokens."""
    if request.lossy:
        from edgespec.verification.typical import TypicalVerifier

        return TypicalVerifier(vocab_size, request.sampling, max_nodes)
    return Verifier(vocab_size, request.sampling, max_nodes)


def check_prompt(num_tokens: int, plan: Plan, most: int) -> None:
    """Raise OptionError for an empty prompt, ContextOverflowError for one that does not fit; the
    model takes `most` tokens.
    """
    if not num_tokens:
        raise OptionError("the prompt is empty; type at least one character")
    if num_tokens > plan.context_length - 1:
        raise ContextOverflowError(
            f"the prompt has {num_tokens} tokens and the context holds {plan.context_length}, one "
            "of which the reply needs; shorten the prompt, load with a larger --context (this "
            f"model takes up to {most}), or drop what is oldest with --on-overflow"
        )


def _until_end(tokens: list[int], end_ids: frozenset[int]) -> list[int]:
    """The tokens up to the first that ends the reply, which is kept."""
    for place, token in enumerate(tokens):
        if token in end_ids:
            return tokens[: place + 1]
    return tokens
