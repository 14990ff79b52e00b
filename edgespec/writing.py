"""A reply while it is written: from its request to text and numbers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from edgespec.backends.base import Progress
from edgespec.control.stats import ReplyStats
from edgespec.decode import Run
from edgespec.errors import ContextOverflowError, EdgeSpecError, OptionError
from edgespec.memory.monitor import peak_resident_bytes
from edgespec.memory.plan import Plan
from edgespec.models.file import ModelFile
from edgespec.reply import FinishReason, Reply, Request, Stats
from edgespec.session import Session
from edgespec.verification.acceptance import Verifier


@dataclass(slots=True)
class Writing:
    """What a reader sees of a reply while it is written; its stream and the work share it.

    The work holds this and not the stream, so that a stream nobody holds any more ends at once.
    """

    request: Request
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    stats: Stats | None = None
    finish_reason: FinishReason = "cancelled"

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
        others: Sequence[Session] = (),
        progress: Progress | None = None,
    ) -> None:
        """Prefill the prompt as far as neither this session nor the others have it already."""
        self.writing = writing
        self._plan = plan
        self._start = time.perf_counter()
        request = writing.request
        self._cached = session.begin(request.prompt_ids, others, progress)
        self._prefill_s = time.perf_counter() - self._start
        if request.speculation:
            session.market.begin(request.sampling)
            session.market.reset(request.prompt_ids)
        self.run = Run(
            session,
            request,
            Verifier(file.spec.vocab_size, request.sampling, plan.max_nodes),
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
        piece = "".join(map(self._detokenizer.push, kept))
        self.writing.text += piece
        return piece

    def flush(self) -> str:
        """The text that was held back because more might have belonged to it."""
        rest = self._detokenizer.flush()
        self.writing.text += rest
        return rest

    def end(self) -> None:
        """Tell the reader how it ended, and the numbers."""
        writing, request = self.writing, self.writing.request
        computed = len(request.prompt_ids) - 1 - self._cached
        writing.finish_reason = self.run.session.finish_reason
        writing.stats = stats(
            request,
            self._plan,
            self.run.stats,
            cached_tokens=self._cached,
            prefill_tokens_per_second=computed / self._prefill_s if computed else 0.0,
            time_to_first_token_s=self._first_s,
        )


def stats(
    request: Request,
    plan: Plan,
    counts: ReplyStats,
    *,
    cached_tokens: int = 0,
    prefill_tokens_per_second: float = 0.0,
    time_to_first_token_s: float = 0.0,
) -> Stats:
    """The numbers of a reply, or of one that was never begun."""
    return Stats(
        prompt_tokens=len(request.prompt_ids),
        cached_tokens=cached_tokens,
        prefill_tokens_per_second=prefill_tokens_per_second,
        time_to_first_token_s=time_to_first_token_s,
        peak_memory_bytes=peak_resident_bytes(),
        planned_memory_bytes=plan.planned_bytes,
        backend=plan.backend,
        seed=request.sampling.seed,
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
            f"of which the reply needs; shorten the prompt or load with a larger --context (this "
            f"model takes up to {most})"
        )
