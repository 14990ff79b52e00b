"""Engine: owns one open model and writes replies with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from edgespec.control.controller import Controller
from edgespec.control.cost_curve import CostCurve
from edgespec.control.curve_cache import measured_curve
from edgespec.control.stats import ReplyStats
from edgespec.decode import Session, decode
from edgespec.drafting import Market
from edgespec.errors import ContextOverflowError, EdgeSpecError, OptionError
from edgespec.memory.monitor import peak_resident_bytes
from edgespec.memory.plan import Plan
from edgespec.models.file import ModelFile
from edgespec.reply import DEFAULT_MAX_TOKENS, FinishReason, Reply, Request, Stats
from edgespec.verification.acceptance import Verifier
from edgespec.verification.sampling import SamplingParams, random_seed

if TYPE_CHECKING:
    from edgespec.backends.base import Target
    from edgespec.chat import Chat
    from edgespec.models.tokenizer import Tokenizer

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total): stages are "load", "kernels", "measure" and "prefill"."""


class Engine:
    """One open model with its KV cache; a context manager.

    Made by `edgespec.load`. One reply at a time: starting a second before the first ended is an
    EdgeSpecError. Prompts that begin like the text already in the cache are prefilled only from
    where they differ.
    """

    def __init__(
        self,
        file: ModelFile,
        plan: Plan,
        target: Target,
        market: Market,
        progress: Progress | None = None,
    ) -> None:
        self.file = file
        self.plan = plan
        self._progress = progress
        self._target = target
        self._busy = threading.Lock()
        self._curve = measured_curve(file.path, plan, target, _stage(progress, "measure"))
        controller = Controller(CostCurve(self._curve, plan.max_nodes), plan.max_nodes)
        self._session = Session(target, market, controller)
        self._closed = False

    @property
    def tokenizer(self) -> Tokenizer:
        return self.file.tokenizer

    def cost_curve(self) -> dict[int, float]:
        """Seconds of one forward pass by number of nodes, as measured on this machine."""
        return dict(self._curve)

    def generate(self, prompt: str | Sequence[int], **options: Any) -> Reply:
        """Write the whole reply to a prompt; see `stream` for the options."""
        stream = self.stream(prompt, **options)
        for _ in stream:
            pass
        return stream.reply

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        speculation: bool = True,
        max_nodes: int | None = None,
        ignore_eos: bool = False,
        raw: bool = False,
    ) -> ReplyStream:
        """Yield the reply piece by piece; afterwards `.reply` is the whole.

        A text prompt becomes one user turn of the model's chat template, unless `raw` is set or the
        model has none; token ids are taken as they are. Raises OptionError for values that mean
        nothing and ContextOverflowError when the prompt does not fit.
        """
        sampling = SamplingParams(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=random_seed() if seed is None else seed,
        )
        ids = self.encode(prompt, raw=raw) if isinstance(prompt, str) else list(prompt)
        request = Request(tuple(ids), sampling, max_tokens, speculation, max_nodes, ignore_eos)
        return ReplyStream(self, request)

    def encode(self, prompt: str, *, raw: bool = False) -> list[int]:
        """Token ids of a prompt, in the model's chat template unless `raw` is set."""
        template = None if raw else self.file.chat_template
        if template is None:
            return self.tokenizer.encode(prompt)
        text = template.render([{"role": "user", "content": self.tokenizer.shield(prompt)}])
        return self.tokenizer.encode(text, parse_special=True)

    def chat(self, system: str | None = None) -> Chat:
        """A conversation with this model; raises TemplateError when it has no chat template."""
        from edgespec.chat import Chat

        return Chat(self, system)

    def close(self) -> None:
        """Give back the model's memory and file; using the engine afterwards is an error."""
        if not self._closed:
            self._closed = True
            self._session.market.close()
            self._target.close()
            self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, writing: Writing) -> Iterator[str]:
        """The life of one request: prefill what is new, decode, account."""
        if self._closed:
            raise EdgeSpecError("this engine is closed; open another with edgespec.load")
        if not self._busy.acquire(blocking=False):
            raise EdgeSpecError(
                "another reply of this engine is still being written; finish or close that stream"
            )
        try:
            yield from self._write(writing)
        finally:
            self._busy.release()

    def _write(self, writing: Writing) -> Iterator[str]:
        request, session = writing.request, self._session
        start = time.perf_counter()
        cached = self._prefill(request.prompt_ids)
        prefill_s = time.perf_counter() - start
        if request.speculation:
            session.market.begin(request.sampling)
            session.market.reset(request.prompt_ids)
        end_ids = frozenset() if request.ignore_eos else self.tokenizer.end_ids
        verifier = Verifier(self.file.spec.vocab_size, request.sampling, self.plan.max_nodes)
        counts = ReplyStats(session.market.names)
        detokenizer = self.tokenizer.stream()
        first_s = 0.0
        steps = decode(session, request, verifier, end_ids, counts)
        try:
            for tokens in steps:
                first_s = first_s or time.perf_counter() - start
                kept = tokens if session.finish_reason != "stop" else tokens[:-1]
                writing.token_ids += kept
                piece = "".join(map(detokenizer.push, kept))
                if piece:
                    writing.text += piece
                    yield piece
            rest = detokenizer.flush()
            if rest:
                writing.text += rest
                yield rest
        finally:
            with suppress(ValueError):  # interrupted inside a step: the generator is already ending
                steps.close()
            computed = len(request.prompt_ids) - 1 - cached
            writing.finish_reason = session.finish_reason
            rate = computed / prefill_s if computed else 0.0
            writing.stats = self._stats(request, counts, cached, rate, first_s)

    def _prefill(self, prompt_ids: tuple[int, ...]) -> int:
        """Commit all of the prompt but its last token; returns how many positions were cached."""
        target, session = self._target, self._session
        if not prompt_ids:
            raise OptionError("the prompt is empty; type at least one character")
        if len(prompt_ids) > target.context_length - 1:
            raise ContextOverflowError(
                f"the prompt has {len(prompt_ids)} tokens and the context holds "
                f"{target.context_length}, one of which the reply needs; shorten the prompt or "
                f"load with a larger --context (this model takes up to "
                f"{self.file.spec.context_length})"
            )
        cached = 0
        limit = min(target.length, len(prompt_ids) - 1)
        while cached < limit and session.ids[cached] == prompt_ids[cached]:
            cached += 1
        target.truncate(cached)
        session.ids[:] = prompt_ids[: cached + 1]
        rest = prompt_ids[cached:-1]
        if rest:
            done = cached
            try:
                target.prefill(rest, progress=_stage(self._progress, "prefill"))
                done = len(prompt_ids) - 1
            finally:
                done = max(done, target.length)
                session.ids[:] = prompt_ids[: done + 1]
        return cached

    def _stats(
        self, request: Request, counts: ReplyStats, cached: int, prefill_rate: float, first_s: float
    ) -> Stats:
        return Stats(
            prompt_tokens=len(request.prompt_ids),
            cached_tokens=cached,
            prefill_tokens_per_second=prefill_rate,
            time_to_first_token_s=first_s,
            peak_memory_bytes=peak_resident_bytes(),
            planned_memory_bytes=self.plan.planned_bytes,
            backend=self.plan.backend,
            seed=request.sampling.seed,
            **counts.as_dict(),
        )


@dataclass(slots=True)
class Writing:
    """A reply while it is written; the stream and the work behind it share it.

    The work holds this and not the stream, so that a stream nobody holds any more ends at once.
    """

    request: Request
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    stats: Stats | None = None
    finish_reason: FinishReason = "cancelled"


class ReplyStream:
    """An iterator over the pieces of one reply; `reply` is the whole once it has ended."""

    def __init__(self, engine: Engine, request: Request) -> None:
        self._writing = Writing(request)
        self._pieces = engine._run(self._writing)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """Stop writing; what was written stays in the cache."""
        self._pieces.close()  # type: ignore[attr-defined]

    @property
    def request(self) -> Request:
        return self._writing.request

    @property
    def text(self) -> str:
        """What has been written so far."""
        return self._writing.text

    @property
    def token_ids(self) -> list[int]:
        return self._writing.token_ids

    @property
    def started(self) -> bool:
        """Whether the reply was begun: its prompt was accepted and prefilled."""
        return self._writing.stats is not None

    @property
    def reply(self) -> Reply:
        """The reply; raises EdgeSpecError while it is still being written."""
        done = self._writing
        if done.stats is None:
            raise EdgeSpecError("the reply is not finished; read the stream to its end or close it")
        return Reply(done.text, done.token_ids, done.finish_reason, done.stats)


def _stage(progress: Progress | None, name: str) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, total: progress(name, done, total)
