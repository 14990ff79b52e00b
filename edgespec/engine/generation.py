"""A reply while it is written: from its request to text and numbers."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from edgespec.backends.base import Progress
from edgespec.control.statistics import ReplyStats
from edgespec.engine.context import Overflow, Stop
from edgespec.engine.decode import Run
from edgespec.engine.request import FinishReason, KvTraffic, Reply, Request, Stats
from edgespec.engine.slot import Session, Text
from edgespec.errors import ContextOverflowError, EdgeSpecError, OptionError
from edgespec.memory.plan.plan import Plan
from edgespec.models.file import ModelFile
from edgespec.system.resident_memory import peak_resident_bytes
from edgespec.verification.match import Verifier


@dataclass(slots=True)
class Writing:
    """What a reader sees of a reply while it is written; its stream and the work share it.

    The work holds this and not the stream, so that a stream nobody holds any more ends at once.
    """

    request: Request
    overflow: Overflow = field(default_factory=Stop)
    """What becomes of a text that outgrows the context."""
    owner: Hashable = None
    """Whose text this goes on with: a conversation's, or nobody's."""
    seen_ids: list[int] = field(default_factory=list)
    """What the model has before it: prompt and reply, less what was dropped."""
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    stats: Stats | None = None
    finish_reason: FinishReason = "cancelled"

    def __post_init__(self) -> None:
        self.seen_ids = list(self.request.prompt_ids)

    @property
    def reply(self) -> Reply:
        """The reply; raises EdgeSpecError while it is still being written."""
        if self.stats is None:
            raise EdgeSpecError("the reply is not finished; read the stream to its end or close it")
        return Reply(self.text, self.token_ids, self.finish_reason, self.stats)


class Writer:
    """Writes one reply in a session: prefills its prompt, takes tokens, makes text of them."""

    def __init__(
        self,
        writing: Writing,
        session: Session,
        file: ModelFile,
        plan: Plan,
        others: Iterable[Text] = (),
        progress: Progress | None = None,
        traffic: KvTraffic | None = None,
        start: float | None = None,
    ) -> None:
        """Prefill the prompt as far as neither this session nor the others have it already.

        `traffic` is what comes and goes meanwhile, `start` when the request came, if not now.
        """
        self.writing = writing
        self._traffic = traffic
        self._plan = plan
        self._progress = progress
        begun = time.perf_counter()
        self._start = begun if start is None else start
        request = writing.request
        self._num_prompt = len(writing.seen_ids)
        self._cached = session.begin(writing.seen_ids, others, progress)
        self._prefill_s = time.perf_counter() - begun
        session.shift = 0
        if request.speculation:
            session.market.begin(request.sampling)
            session.market.reset(writing.seen_ids)
        self.run = Run(
            session,
            request,
            _verifier(file.spec.vocab_size, request, plan.max_nodes),
            frozenset() if request.ignore_eos else file.tokenizer.end_ids,
            ReplyStats(session.market.names),
        )
        self._detokenizer = file.tokenizer.stream()
        self._first_s = 0.0

    def push(self, tokens: list[int]) -> str:
        """Take the tokens of a step; returns the text they complete."""
        self._first_s = self._first_s or time.perf_counter() - self._start
        kept = tokens if self.run.session.finish_reason != "stop" else tokens[:-1]
        self.writing.token_ids += kept
        self.writing.seen_ids += kept
        piece = "".join(map(self._detokenizer.push, kept))
        self.writing.text += piece
        return piece

    def make_room(self) -> bool:
        """Where the context is full, let the policy drop something and prefill what is left; False
        when the reply has ended for good.
        """
        writing, session = self.writing, self.run.session
        if session.finish_reason != "context":
            return False
        num_seen = len(session.ids)
        prompt = max(num_seen - len(writing.token_ids), 0)
        room = session.sequence.target.context_length - 1
        kept = writing.overflow.shorten(session.ids[:prompt], session.ids[prompt:], room)
        if kept is None:
            return False
        session.finish_reason = "cancelled"
        writing.seen_ids = kept
        session.begin(kept, progress=self._progress)
        session.shift += num_seen - len(kept)
        if writing.request.speculation:
            session.market.reset(kept)
        return True

    def flush(self) -> str:
        """The text that was held back because more might have belonged to it."""
        rest = self._detokenizer.flush()
        self.writing.text += rest
        return rest

    def end(self) -> None:
        """Tell the reader how it ended, and the numbers."""
        writing, market = self.writing, self.run.session.market
        computed = self._num_prompt - 1 - self._cached
        writing.finish_reason = self.run.session.finish_reason
        writing.stats = stats(
            writing.request,
            self._plan,
            self.run.stats,
            prompt_tokens=self._num_prompt,
            dropped_turns=writing.overflow.dropped_turns,
            dropped_tokens=writing.overflow.dropped_tokens,
            cached_tokens=self._cached,
            prefill_tokens_per_second=computed / self._prefill_s if computed else 0.0,
            time_to_first_token_s=self._first_s,
            traffic=self._traffic,
            told=(market.notes, market.overlap) if writing.request.speculation else None,
        )


def _verifier(vocab_size: int, request: Request, max_nodes: int) -> Verifier:
    if request.lossy:
        from edgespec.verification.typical import TypicalVerifier

        return TypicalVerifier(vocab_size, request.sampling, max_nodes)
    return Verifier(vocab_size, request.sampling, max_nodes)


def stats(
    request: Request,
    plan: Plan,
    counts: ReplyStats,
    *,
    prompt_tokens: int | None = None,
    dropped_turns: int = 0,
    dropped_tokens: int = 0,
    cached_tokens: int = 0,
    prefill_tokens_per_second: float = 0.0,
    time_to_first_token_s: float = 0.0,
    traffic: KvTraffic | None = None,
    told: tuple[tuple[str, ...], str] | None = None,
) -> Stats:
    """The numbers of a reply, or of one that was never begun."""
    moved = traffic or KvTraffic()
    notes, overlap = told or ((), "")
    return Stats(
        prompt_tokens=len(request.prompt_ids) if prompt_tokens is None else prompt_tokens,
        dropped_turns=dropped_turns,
        dropped_tokens=dropped_tokens,
        cached_tokens=cached_tokens,
        prefill_tokens_per_second=prefill_tokens_per_second,
        time_to_first_token_s=time_to_first_token_s,
        peak_memory_bytes=peak_resident_bytes(),
        planned_memory_bytes=plan.planned_bytes,
        backend=plan.backend,
        seed=request.sampling.seed,
        lossy=request.lossy,
        restored_tokens=moved.restored_tokens,
        spilled_tokens=moved.spilled_tokens,
        forgotten_tokens=moved.forgotten_tokens,
        notes=(*moved.notes, *notes),
        overlap=overlap,
        **counts.as_dict(),
    )


def check_prompt(request: Request, plan: Plan, most: int) -> None:
    """Raise OptionError for an empty prompt, ContextOverflowError for one that does not fit; the
    model takes `most` tokens.
    """
    num_tokens = len(request.prompt_ids)
    if not num_tokens:
        raise OptionError("the prompt is empty; type at least one character")
    if num_tokens > plan.context_length - 1:
        raise ContextOverflowError(
            f"the prompt has {num_tokens} tokens and the context holds {plan.context_length}, one "
            "of which the reply needs; shorten the prompt, load with a larger --context (this "
            f"model takes up to {most}), or drop what is oldest with --on-overflow"
        )


def fit_prompt(writing: Writing, plan: Plan, most: int) -> None:
    """Let a reply's policy shorten a prompt that does not fit; raises as `check_prompt` does when
    it may not.
    """
    room = plan.context_length - 1
    if len(writing.seen_ids) > room:
        kept = writing.overflow.shorten(writing.seen_ids, [], room)
        if kept is not None:
            writing.seen_ids = kept
            return
    check_prompt(writing.request, plan, most)
