"""Engine: owns one open model and writes replies with it."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from edgespec.control.allotment import Allotment
from edgespec.control.controller import Controller
from edgespec.control.cost_curve import CostCurve
from edgespec.control.curve_cache import measured_curve
from edgespec.control.expected_speed import RepeatingShare
from edgespec.drafting.market.market import Market
from edgespec.engine import prompts
from edgespec.engine.context import Overflow, policy
from edgespec.engine.decode import decode
from edgespec.engine.generation import Writer, Writing, check_prompt, fit_prompt
from edgespec.engine.idle_sequences import IdleSequences
from edgespec.engine.reply_stream import ReplyStream
from edgespec.engine.request import DEFAULT_MAX_TOKENS, KvTraffic, Reply, Request
from edgespec.engine.slot import Session, Text
from edgespec.errors import BackendError, BudgetError, EdgeSpecError, OptionError
from edgespec.memory.kv import prompt_cache
from edgespec.memory.kv.kv_file import KvHeader
from edgespec.memory.kv.spill import spill_folder
from edgespec.memory.plan.plan import Plan
from edgespec.memory.watch import Watch
from edgespec.models.file import ModelFile
from edgespec.system.resident_memory import release_free_memory
from edgespec.system.size import format_size
from edgespec.verification.sampling import SamplingParams, random_seed

if TYPE_CHECKING:
    from edgespec.backends.base import Target
    from edgespec.backends.sequence import KvSequence
    from edgespec.engine.batch import Batch, BatchStream
    from edgespec.engine.chat import Chat
    from edgespec.engine.voting import Vote
    from edgespec.models.tokenizers.tokenizer import Tokenizer

Prompts = Sequence[str | Sequence[int] | Request]
Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total): stages are "load", "kernels", "measure" and "prefill"."""


class Closable(Protocol):
    """What an engine holds for its drafters, and closes with itself."""

    def close(self) -> None: ...


class Engine:
    """One open model with its KV cache; a context manager.

    Made by `edgespec.load`. One stream or batch at a time: starting a second before the first
    ended is an EdgeSpecError. Prompts that begin like a text already in the cache are prefilled
    only from where they differ; each chat's text stays there while others are written.
    """

    def __init__(
        self,
        file: ModelFile,
        plan: Plan,
        target: Target,
        make_market: Callable[[], Market],
        progress: Progress | None = None,
        draft_model: Closable | None = None,
    ) -> None:
        self.file = file
        self._draft_model = draft_model
        self.plan = plan
        self._progress = progress
        self._target = target
        self._busy = threading.Lock()
        self._curve = measured_curve(file.path, plan, target, _stage(progress, "measure"))
        self._controller = Controller(CostCurve(self._curve, plan.max_nodes), plan.max_nodes)
        self.allotment = Allotment(CostCurve(self._curve, plan.max_nodes), plan.max_nodes)
        self._make_market = make_market
        self._session = self._open_session(target.own)
        self.sessions = [self._session]
        """Of all texts that were written at a time; they keep what they hold."""
        self._idle = IdleSequences(target, spill_folder(), cache(self._kv_kind))
        self._watch = Watch(plan, self._shrink)
        self._repeating = RepeatingShare.of(file.fingerprint)
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
        on_overflow: str | Overflow = "stop",
        **options: Any,
    ) -> ReplyStream:
        """Yield the reply piece by piece; afterwards `.reply` is the whole.

        When the context is full, `on_overflow` says what happens: "stop", or "sliding" keeps the
        first tokens and the latest; in a chat, "drop-turns" drops the oldest turns. Other options
        and errors are those of `request`; ContextOverflowError when the prompt does not fit and
        nothing may be dropped, BudgetError when the process comes to hold more than its budget.
        """
        return self.stream_for(None, prompt, policy(on_overflow), options)

    def stream_for(
        self,
        owner: Hashable,
        prompt: str | Sequence[int],
        overflow: Overflow,
        options: dict[str, Any],
    ) -> ReplyStream:
        """A reply that goes on with the text of an owner, such as a chat, until `forget`."""
        writing = Writing(self.request(prompt, **options), overflow, owner)
        return ReplyStream(self._run(writing), writing)

    def forget(self, owner: Hashable) -> None:
        """Give back what is kept of an owner's text: now, or when the reply that is being written
        ends.
        """
        self._idle.discard(owner)
        if self._busy.acquire(blocking=False):
            try:
                if not self._closed:
                    self._idle.sweep(self._session)
            finally:
                self._busy.release()

    def generate_batch(self, prompts: Prompts, **options: Any) -> list[Reply]:
        """Write the replies to several prompts, as many at once as `load` had `sequences`; see
        `stream_batch` for the options.

        The replies are in the order of the prompts, `n` for each, and each is what `generate` would
        write with the same seed.
        """
        stream = self.stream_batch(prompts, **options)
        for _ in stream:
            pass
        return stream.replies

    def stream_batch(
        self,
        prompts: Prompts,
        *,
        n: int = 1,
        seed: int | None = None,
        seeds: Sequence[int] | None = None,
        max_batch: int | None = None,
        on_overflow: str = "stop",
        **options: Any,
    ) -> BatchStream:
        """Yield (index, piece) of several replies as they come; afterwards `.replies` has them all.

        `n` replies to each prompt, the j-th drawn with `seeds[j]`, or with `seed + j`; at most
        `max_batch` at once. `on_overflow` "sliding" keeps the first tokens and the latest of a text
        that fills its context. A prompt may be a `Request`, which brings its own options. Other
        options are `request`'s. Raises OptionError for values that mean nothing and for more at
        once than planned, ContextOverflowError when a prompt does not fit.
        """
        from edgespec.engine.batch import Batch, BatchStream, requests

        asked = requests(self, prompts, n, seed, seeds, options)
        return BatchStream(self, Batch(self, asked, max_batch, on_overflow))

    def first_finished(self, prompt: str | Sequence[int], n: int, **options: Any) -> Reply:
        """Write n replies at once until the first ends, and return it; the rest is never written.

        First is the one that takes the fewest tokens, the earlier seed among equals, whatever
        speculation made faster. Options are those of `stream_batch`.
        """
        from edgespec.engine.voting import first_finished

        return first_finished(self, prompt, n, options)

    def majority(
        self,
        prompt: str | Sequence[int],
        n: int,
        *,
        key: Callable[[str], Hashable] = str.strip,
        **options: Any,
    ) -> Vote:
        """Let n replies vote: `key` takes a reply's text to its answer, and None abstains.

        Ends as soon as those still being written cannot change the result. Options are those of
        `stream_batch`. Source: "Self-Consistency Improves Chain of Thought Reasoning in Language
        Models".
        """
        from edgespec.engine.voting import majority

        return majority(self, prompt, n, key, options)

    def request(
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
        accept: str = "exact",
        raw: bool = False,
        prefix: str | None = None,
    ) -> Request:
        """A reply to be written, checked.

        A text prompt becomes one user turn of the model's chat template, unless `raw` is set or the
        model has none; token ids are taken as they are. `prefix` is the name of a saved prefix that
        comes before a text prompt (`save_prefix`), and that token ids may begin with.
        `accept="typical"` is lossy: drafts that the model finds likely enough stay, and the text is
        another than without them. Raises OptionError for values that mean nothing, KvFileError for
        a prefix that there is not.
        """
        sampling = SamplingParams(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=random_seed() if seed is None else seed,
        )
        if isinstance(prompt, str):
            ids = self.encode(prompt, raw=raw, prefix=prefix)
        else:
            ids = list(prompt)
        return Request(
            tuple(ids), sampling, max_tokens, speculation, max_nodes, ignore_eos, accept, prefix
        )

    def encode(self, prompt: str, *, raw: bool = False, prefix: str | None = None) -> list[int]:
        """Token ids of a prompt, in the model's chat template unless `raw` is set, after a saved
        prefix if one is named.
        """
        return prompts.encode(self.file, prompt, raw=raw, prefix=prefix)

    def chat(self, system: str | None = None, *, prefix: str | None = None) -> Chat:
        """A conversation with this model, after a system message or the saved prefix that holds it;
        raises TemplateError when the model has no chat template, KvFileError when there is no such
        prefix.
        """
        from edgespec.engine.chat import Chat

        if prefix is not None:
            if system is not None:
                raise OptionError("a chat takes a system message or a saved prefix, and got both")
            system = prompts.prefix_text(self.file, prefix, raw=False)
        return Chat(self, system, prefix)

    def save_prefix(self, name: str, text: str, *, raw: bool = False) -> prompt_cache.Prefix:
        """Compute a system message, or with `raw` the beginning of a text, and save it with its
        keys and values under a name, which `prefix=` takes; returns what was saved.

        Raises OptionError for a name that cannot be one, ContextOverflowError when the context does
        not hold the text, BackendError for a backend that keeps keys and values to itself,
        KvFileError when the file cannot be written.
        """
        prompt_cache.check_name(name)
        arena, raw = self._target.arena, raw or self.file.chat_template is None
        if arena is None:
            raise BackendError(
                f"the {self.plan.backend} backend keeps keys and values to itself, so a prefix "
                "cannot be saved; load with backend native"
            )
        ids = prompts.prefix_ids(self.file, text, raw=raw)
        prompt = [*ids, *ids[-1:]]  # the last token of a prompt is left to be computed
        check_prompt(self.request(prompt), self.plan, self.file.spec.context_length)
        with self._alone():
            self._idle.switch(self._session, None, prompt)
            self._session.begin(prompt, self.texts_besides(self._session), self._prefilled)
            self._idle.drop_saved(name)
            header = KvHeader(self._kv_kind(), arena.block_bytes, np.asarray(ids, np.int32))
            model = self.file.spec.name or self.file.path.name
            prefix = prompt_cache.Prefix(name, text, raw, model, header, 0)
            contents = self._session.sequence.state.contents(len(ids))
            return replace(prefix, size_bytes=prompt_cache.save(prefix, contents))

    def close(self) -> None:
        """Give back the model's memory and file; using the engine afterwards is an error."""
        if not self._closed:
            self._closed = True
            self._idle.close()
            for session in self.sessions:
                session.market.close()
                session.sequence.close()
            self._repeating.save()
            self._target.close()
            if self._draft_model is not None:
                self._draft_model.close()
            self.file.close()
            release_free_memory()  # the interpreter's end touches library pages once more

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, writing: Writing) -> Generator[str, None, None]:
        """The life of one request: prefill what is new, decode, account."""
        with self._alone():
            start = time.perf_counter()
            fit_prompt(writing, self.plan, self.file.spec.context_length)
            self._idle.switch(self._session, writing.owner, writing.seen_ids)
            writer = self.writer(writing, self._session, start)
            steps = self._steps(writer)
            try:
                for tokens in steps:
                    piece = writer.push(tokens)
                    self._watch.check()
                    if piece:
                        yield piece
                if rest := writer.flush():
                    yield rest
            finally:
                with suppress(ValueError):  # interrupted inside a step: the generator is ending
                    steps.close()
                writer.end()
                if writing.request.speculation:
                    stats = writer.run.stats
                    self._repeating.learn(self._curve, stats.output_tokens, stats.steps)

    def _steps(self, writer: Writer) -> Generator[list[int], None, None]:
        """The tokens of each step, also of those after a full context that something was dropped
        from.
        """
        yield from decode(writer.run, self._controller)
        while writer.make_room():
            yield from decode(writer.run, self._controller)

    def _run_batch(self, batch: Batch) -> Generator[list[tuple[int, str]], None, None]:
        """The life of a batch, step by step."""
        with self._alone():
            self._idle.switch(self._session, None, ())
            try:
                while not batch.is_over():
                    yield batch.step()
                    self._watch.check()
            finally:
                batch.end()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While the engine works for one stream, another is an error."""
        if self._closed:
            raise EdgeSpecError("this engine is closed; open another with edgespec.load")
        if not self._busy.acquire(blocking=False):
            raise EdgeSpecError(
                "another reply of this engine is still being written; finish or close that stream"
            )
        try:
            self._idle.traffic = KvTraffic()
            with self._watch:
                yield
        except MemoryError:
            raise BudgetError(
                "the system refused memory while a reply was written, so the request was ended; "
                f"planned were {format_size(self.plan.planned_bytes)} "
                f"({self.plan.footprint.summary()}); close other programs, or load with less "
                "--memory"
            ) from None
        finally:
            self._idle.sweep(self._session)
            self._busy.release()

    def writer(self, writing: Writing, session: Session, start: float | None = None) -> Writer:
        """A reply begun in a session, at `start` if not now: its prompt is prefilled when this
        returns, as far as no text in memory begins like it.
        """
        prefix = writing.request.prefix
        if prefix is not None:
            ids = writing.seen_ids
            session.sequence.truncate(session.common(ids))
            self._idle.offer(prompt_cache.read(prefix), ids, session.sequence.length)
        return Writer(
            writing,
            session,
            self.file,
            self.plan,
            self.texts_besides(session),
            self._prefilled,
            self._idle.traffic,
            start,
        )

    def _prefilled(self, done: int, total: int) -> None:
        self._watch.check()
        if self._progress is not None:
            self._progress("prefill", done, total)

    def _shrink(self) -> int:
        """Spill idle conversations, and where that is not enough let drafters shrink their stores;
        returns how many bytes that gave back.
        """
        freed = self._idle.spill()
        if freed:
            release_free_memory()
        if not freed or self._watch.is_over():
            freed += sum(session.market.shrink() for session in self.sessions)
        return freed

    def _kv_kind(self) -> bytes:
        told = (self.file.content_fingerprint(), self._target.kv_kind)
        return hashlib.blake2b(repr(told).encode(), digest_size=32).digest()

    def texts_besides(self, session: Session) -> list[Text]:
        """Every other text that is in memory, for a prompt to begin like."""
        others = [other for other in self.sessions if other is not session]
        return [*others, *self._idle.texts()]

    def lanes(self, count: int) -> list[Session]:
        """Sessions for so many texts at once, the engine's own first; they keep their texts."""
        while len(self.sessions) < count:
            self.sessions.append(self._open_session(self._target.open_sequence()))
        return self.sessions[:count]

    def _open_session(self, sequence: KvSequence) -> Session:
        market = self._make_market()
        market.attach(sequence, self._controller.curve.table)
        return Session(sequence, market)


def _stage(progress: Progress | None, name: str) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, total: progress(name, done, total)
