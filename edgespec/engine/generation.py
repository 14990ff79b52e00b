"""One reply, from its request to its text and numbers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.passes import Logits, Progress
from edgespec.control.statistics import ReplyStats
from edgespec.drafting.tree import DraftTree, StepOutcome
from edgespec.engine.context import Overflow, Stop
from edgespec.engine.idle_sequences import KvTraffic
from edgespec.engine.prompts import check_prompt
from edgespec.engine.reply import FinishReason, Reply, Stats, TokenLogprob
from edgespec.engine.request import Request
from edgespec.engine.slot import CachedSequence, Slot
from edgespec.engine.stop_texts import StopTexts
from edgespec.engine.verifiers import verifier_for
from edgespec.errors import EdgeSpecError
from edgespec.memory.plan.plan import Plan
from edgespec.models.file import ModelFile
from edgespec.models.reasoning import Parser, Piece, joined
from edgespec.models.tokenizers.stream import StreamDecoder
from edgespec.system.records import dataclass
from edgespec.system.resident_memory import peak_resident_bytes
from edgespec.verification.constraint import Constraint
from edgespec.verification.logprobs import log_probabilities
from edgespec.verification.match import Verifier
from edgespec.verification.shaped_verifier import ShapedVerifier

_NO_TOKENS = np.zeros(0, np.int32)


class Cancelled(Exception):
    """Ends a prefill that nobody waits for any more; never leaves the engine."""


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
    """Filled in when it ends."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """One for each of `token_ids`, where they were asked for."""
    origins: list[str] = field(default_factory=list)
    """The drafter of each of `token_ids`, "" for the model itself, where that was asked for."""
    unread: deque[Piece] = field(default_factory=deque)
    """What has been written and nobody has taken yet."""
    submitted: bool = False
    cancelled: bool = False
    """Set by any thread: it ends before the next step."""
    shared: bool = False
    """Others were written beside it."""
    error: Exception | None = None
    """What ended it, where that was an error."""
    wake: Callable[[], None] | None = None
    """Called by whoever writes when there is something to read, or it has ended."""
    traffic: KvTraffic = field(default_factory=KvTraffic)
    ended_s: float = 0.0
    """When it ended, by `time.perf_counter`."""
    counts: ReplyStats = field(default_factory=ReplyStats)
    slot: Slot = field(init=False)
    """Where it is written, from `begin` to `end`."""
    end_tokens: NDArray[np.int32] = field(default_factory=lambda: _NO_TOKENS)
    """Those that end the reply, for kernels."""
    constraint: Constraint | None = None
    """What binds the reply."""
    _verifier: Verifier | None = None
    _pieces: StreamDecoder | None = None
    _stops: StopTexts | None = None
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
    prefill_s: float = 0.0
    """Seconds that its prompt took to compute."""
    _read_before: int = 0

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
        self.prefill_s = time.perf_counter() - begun
        end_ids = frozenset[int]() if self.request.ignore_eos else file.tokenizer.end_ids
        self.take(slot, verifier_for(self.request, file, max_nodes), end_ids)
        self._stops = StopTexts(self.request.stop) if self.request.stop else None
        request = self.request
        if request.in_template and request.grammar is None and file.reasoning is not None:
            self._thoughts = file.reasoning.parser(self.seen_ids)
            self._marks = file.reasoning.marks
        self._pieces = file.tokenizer.stream()  # last: from here on it has begun

    def take(self, slot: Slot, verifier: Verifier, end_ids: frozenset[int] = frozenset()) -> None:
        """Go on from what a slot holds, which is the prompt."""
        self.slot, self._verifier, self._end_ids = slot, verifier, end_ids
        self.constraint = verifier.constraint if isinstance(verifier, ShapedVerifier) else None
        self.end_tokens = np.array(sorted(end_ids), np.int32)
        self.counts = ReplyStats((*slot.market.names, "grammar"))
        self._read_before = slot.sequence.target.bytes_read
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
        """What draws its tokens, if that takes the rows and nothing of the text, and nothing but
        the tokens is asked for.
        """
        verifier, request = self._verifier, self.request
        if request.logprobs is not None or request.origins:
            return None
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
        ids = slot.ids
        recent = ids[max(len(ids) - verifier.window, 0) :]
        verdict = verifier.verify(logits, tree.tokens, tree.parents, recent, self.position, maxima)
        slot.sequence.commit(verdict.path)
        drafts = verdict.path[1:]
        tokens = [*tree.tokens[drafts].tolist(), verdict.bonus] if drafts else [verdict.bonus]
        new = _until_end(tokens, self._end_ids)
        if self.request.logprobs is not None:
            found = log_probabilities(logits, verdict.path, new, self.request.logprobs)
            self.logprobs += [TokenLogprob(*one) for one in found]
        if self.request.origins:
            named = [self.counts.sources[source] for source in tree.sources[drafts].tolist()]
            self.origins += [*named, ""][: len(new)]
        rest = self._rest(len(tokens))
        self.grow(new, len(tokens))
        return StepOutcome(tree, verdict.path, verdict.bonus, tokens), new + rest

    def _rest(self, num_tokens: int) -> list[int]:
        """The end of the reply behind a step, where no choice is left: it takes no pass."""
        constraint, request = self.constraint, self.request
        if constraint is None or not request.speculation or request.logprobs is not None:
            return []
        sequence = self.slot.sequence
        room = sequence.target.context_length - sequence.length - 1
        rest = constraint.finish(min(room, self.tokens_left - num_tokens))
        if rest:
            self.counts.record_rest(len(rest), self.slot.market.token_s)
            self.origins += ["grammar"] * len(rest) if request.origins else []
        return rest

    def grow(self, new: list[int], num_tokens: int) -> None:
        """Steps have brought these tokens, and committed `num_tokens`."""
        self.slot.ids.extend(new)
        self._judge(new, num_tokens)

    def _judge(self, new: Sequence[int] = (), num_tokens: int = 0) -> None:
        """Find out whether the reply has ended, now that a step brought so many tokens."""
        sequence = self.slot.sequence
        is_whole = self.constraint is not None and self.constraint.is_over
        self.finish_reason = (
            "stop"
            if (new and new[-1] in self._end_ids) or is_whole
            else "length"
            if self.counts.output_tokens + num_tokens >= self.request.max_tokens
            else "context"
            if sequence.length >= sequence.target.context_length
            else "cancelled"
        )

    @property
    def untouched(self) -> bool:
        """Whether the text is all that the tokens say."""
        whole = self._thoughts is None or self._thoughts.untouched
        return whole and not (self._stops is not None and self._stops.found)

    def push(self, new: list[int]) -> None:
        """Make text of a step's tokens, to be read: what they complete, in at most a piece for each
        change between reasoning and answer.
        """
        assert self._pieces is not None
        self._first_s = self._first_s or time.perf_counter() - self._start
        kept = new[:-1] if new and new[-1] in self._end_ids else new
        pieces, num_kept = self._made(kept)
        self.token_ids += kept[:num_kept]
        self.seen_ids += kept[:num_kept]
        if self._stops is not None and self._stops.found:
            self.finish_reason = "stop"
        elif self.is_over and not self._make_room():
            pieces += self._flush()
        del self.logprobs[len(self.token_ids) :], self.origins[len(self.token_ids) :]
        self._keep(pieces)

    def _made(self, kept: list[int]) -> tuple[list[Piece], int]:
        """Text of tokens, and how many of them there are up to one that completes a stop text."""
        decoder, parser, stops = self._pieces, self._thoughts, self._stops
        assert decoder is not None
        if parser is None and stops is None:
            return [Piece("".join(map(decoder.push, kept)))], len(kept)
        made: list[Piece] = []
        for place, token in enumerate(kept):
            mark = self._marks.get(token)
            if parser is None:
                pieces = [Piece(decoder.push(token))]
            elif mark is None:
                pieces = parser.push(decoder.push(token))
            else:
                pieces = parser.mark(mark)
            made += pieces if stops is None else stops.push(pieces)
            if stops is not None and stops.found:
                return made, place + 1
        return made, len(kept)

    def _flush(self) -> list[Piece]:
        """What is left at the end, once."""
        decoder, parser, stops = self._pieces, self._thoughts, self._stops
        if decoder is None:
            return []
        text = decoder.flush()
        pieces = [Piece(text)] if parser is None else [*parser.push(text), *parser.flush()]
        return pieces if stops is None else [*stops.push(pieces), *stops.flush()]

    def _keep(self, pieces: list[Piece]) -> None:
        pieces = joined(pieces)
        for piece in pieces:
            if piece.reasoning:
                self.reasoning += piece
            else:
                self.text += piece
        self.unread.extend(pieces)

    def tell(self) -> None:
        """Wake who reads, wherever that is."""
        if self.wake is not None:
            self.wake()

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

    def end(self, plan: Plan, joules_per_token: float | None = None) -> None:
        """Fill in the numbers; the slot is free. One that never began has none to speak of."""
        if not self.is_over:  # cut short: what was held back
            held = [] if self._thoughts is None else self._thoughts.flush()
            self._keep(
                held if self._stops is None else [*self._stops.push(held), *self._stops.flush()]
            )
        traffic, self.ended_s = self.traffic, time.perf_counter()
        market = self.slot.market if self.began and self.request.speculation else None
        computed = max(self._num_prompt - 1 - self._cached, 0)
        prefill_speed = computed / self.prefill_s if self.prefill_s and computed > 0 else 0.0
        read = self.slot.sequence.target.bytes_read - self._read_before if self.began else 0
        self.stats = Stats(
            prompt_tokens=self._num_prompt or len(self.request.prompt_ids),
            cached_tokens=self._cached,
            prefill_tokens_per_second=prefill_speed,
            time_to_first_token_s=self._first_s,
            peak_memory_bytes=peak_resident_bytes(),
            planned_memory_bytes=plan.planned_bytes,
            backend=plan.backend,
            seed=self.request.sampling.seed,
            dropped_turns=self.overflow.dropped_turns,
            dropped_tokens=self.overflow.dropped_tokens,
            lossy=self.request.lossy,
            joules_per_token=joules_per_token,
            notes=(*traffic.notes, *(market.notes if market else ())),
            overlap=market.overlap if market else "",
            disk_bytes_per_token=read // max(self.counts.output_tokens, 1),
            **traffic.counts(),
            **self.counts.as_dict(),
        )
        self._verifier = None  # it knows arrays of the target's
        if self.began:
            del self.slot

    @property
    def reply(self) -> Reply:
        """The reply; raises EdgeSpecError while it is still being written."""
        if self.stats is None:
            raise EdgeSpecError("the reply is not finished; read the stream to its end or close it")
        logprobs = None if self.request.logprobs is None else self.logprobs
        origins = self.origins if self.request.origins else None
        told = (self.text, self.token_ids, self.finish_reason, self.stats, self.reasoning)
        return Reply(*told, logprobs, origins)


def _until_end(tokens: list[int], end_ids: frozenset[int]) -> list[int]:
    """The tokens up to the first that ends the reply, which is kept."""
    for place, token in enumerate(tokens):
        if token in end_ids:
            return tokens[: place + 1]
    return tokens
