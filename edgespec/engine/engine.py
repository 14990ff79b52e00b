"""Engine: one open model and everything that can be asked of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from edgespec.control.curve_cache import measured_curve
from edgespec.drafting.market.market import Market
from edgespec.engine import prompts
from edgespec.engine.context import Overflow, policy
from edgespec.engine.ensemble import Ensemble
from edgespec.engine.generation import Generation
from edgespec.engine.line import Line
from edgespec.engine.prompts import Message, check_prompt
from edgespec.engine.reply import Reply, TokenLogprob
from edgespec.engine.reply_options import ReplyKeywords, ReplyOptions
from edgespec.engine.reply_stream import Stream, Then
from edgespec.engine.request import Request
from edgespec.engine.scheduler import Progress, Scheduler
from edgespec.errors import OptionError
from edgespec.memory.plan.plan import Plan
from edgespec.models.file import ModelFile
from edgespec.system.option_fields import made, spells
from edgespec.system.resident_memory import release_free_memory

if TYPE_CHECKING:  # what few processes ask for is imported where it is asked for
    from edgespec.backends.base import Target
    from edgespec.engine.batch import BatchStream
    from edgespec.engine.chat import Chat
    from edgespec.engine.embedding import Pooling
    from edgespec.engine.repository import Repository
    from edgespec.memory.kv.saved_prefixes import Prefix
    from edgespec.models.tokenizers.tokenizer import Tokenizer

Prompt = str | Sequence[int]
"""A text, or token ids."""
Prompts = Sequence[Prompt | Request]


class Closable(Protocol):
    """What an engine holds for its drafters, and closes with itself."""

    def close(self) -> None: ...


class Engine(Ensemble):
    """One open model with its KV cache; a context manager.

    Made by `edgespec.load`. Any thread may use it: as many replies as `load` had `sequences` share
    their passes, and the others wait in line. Prompts that begin like a sequence already in the
    cache are prefilled only from where they differ; each chat's sequence stays there while others
    are written.
    """

    def __init__(
        self,
        file: ModelFile,
        plan: Plan,
        target: Target,
        make_market: Callable[[float], Market],
        progress: Progress | None = None,
        drafting: Sequence[Closable] = (),
    ) -> None:
        self.file = file
        self.plan = plan
        self._drafting = drafting
        self._repositories: dict[Path, Repository] = {}
        self._curve = measured_curve(file.path, plan, target, _stage(progress, "measure"))
        self.scheduler = Scheduler(file, plan, target, self._curve, make_market, progress)
        self.line = Line(self.scheduler)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.file.tokenizer

    def cost_curve(self) -> dict[int, float]:
        """Seconds of one forward pass by number of nodes, as measured on this machine."""
        return dict(self._curve)

    @spells(ReplyOptions)
    def generate(
        self,
        prompt: Prompt | Request | None = None,
        *,
        messages: Sequence[Message] | None = None,
        tools: Sequence[Message] | None = None,
        **options: Unpack[ReplyKeywords],
    ) -> Reply:
        """Write the whole reply to a prompt or to messages; see `stream`."""
        asked = made(ReplyOptions, "generate", options)
        return self._written(self._request(prompt, asked, messages, tools), asked).finish()

    @spells(ReplyOptions)
    def stream(
        self,
        prompt: Prompt | Request | None = None,
        *,
        messages: Sequence[Message] | None = None,
        tools: Sequence[Message] | None = None,
        **options: Unpack[ReplyKeywords],
    ) -> Stream:
        """Yield the reply piece by piece, to `for` or `async for`; afterwards `.reply` is the
        whole.

        A piece is a `str` whose `reasoning` says whether it is thought or answer.
        A text prompt becomes one user turn of the model's chat template, unless `raw` is set or the
        model has none; token ids are taken as they are. `messages` are a whole conversation, each
        with `role` and `content`, and `tools` functions as JSON schemas that the model may call. A
        `Request` brings its own options.
        When the context is full, `on_overflow` says what happens: "stop", or "sliding" keeps the
        first tokens and the latest; in a chat, "drop-turns" drops the oldest turns.
        `accept="typical"` is lossy: drafts that the model finds likely enough stay, and the text is
        another than without them. Several streams share passes as far as `load` had `sequences`,
        from one thread or many; the others wait in line. Raises OptionError for values that mean
        nothing, KvFileError for a prefix that there is not, ContextOverflowError when the prompt
        does not fit and nothing may be dropped, BudgetError when the process comes to hold more
        than its budget.
        """
        asked = made(ReplyOptions, "stream", options)
        return self._written(self._request(prompt, asked, messages, tools), asked)

    def _written(self, request: Request, options: ReplyOptions) -> Stream:
        return Stream(self.line, Generation(request, policy(options.on_overflow)))

    @spells(ReplyOptions)
    def generate_batch(
        self,
        prompts: Prompts,
        *,
        n: int = 1,
        seeds: Sequence[int] | None = None,
        max_batch: int | None = None,
        **options: Unpack[ReplyKeywords],
    ) -> list[Reply]:
        """Write the replies to several prompts, as many at once as `load` had `sequences`; see
        `stream_batch`.

        The replies are in the order of the prompts, `n` for each, and each is what `generate` would
        write with the same seed.
        """
        asked = made(ReplyOptions, "generate_batch", options)
        stream = self._batch(prompts, asked, n, seeds, max_batch)
        for _ in stream:
            pass
        return stream.replies

    @spells(ReplyOptions)
    def stream_batch(
        self,
        prompts: Prompts,
        *,
        n: int = 1,
        seeds: Sequence[int] | None = None,
        max_batch: int | None = None,
        **options: Unpack[ReplyKeywords],
    ) -> BatchStream:
        """Yield (index, piece) of several replies as they come; afterwards `.replies` has them all.

        `n` replies to each prompt, the j-th drawn with `seeds[j]`, or with `seed + j`; at most
        `max_batch` at once. A prompt may be a `Request`, which brings its own options. Raises as
        `stream` does, and OptionError for more at once than planned.
        """
        asked = made(ReplyOptions, "stream_batch", options)
        return self._batch(prompts, asked, n, seeds, max_batch)

    def _batch(
        self,
        prompts: Prompts,
        options: ReplyOptions,
        n: int,
        seeds: Sequence[int] | None,
        max_batch: int | None,
    ) -> BatchStream:
        from edgespec.engine.batch import BatchStream, check_most, requests

        asked = requests(
            lambda prompt: self._request(prompt, options), prompts, n, options.seed, seeds
        )
        written = [Generation(request, policy(options.on_overflow)) for request in asked]
        most = check_most(max_batch, self.plan.sequences)
        for one in written:
            one.fit(self.plan, self.file.spec.context_length)
        return BatchStream(self.line, written, most)

    @spells(ReplyOptions)
    def request(
        self,
        prompt: Prompt | Request | None = None,
        *,
        messages: Sequence[Message] | None = None,
        tools: Sequence[Message] | None = None,
        **options: Unpack[ReplyKeywords],
    ) -> Request:
        """A reply to be written, checked; raises as `stream` does."""
        asked = made(ReplyOptions, "request", options)
        return self._request(prompt, asked, messages, tools)

    def _request(
        self,
        prompt: Prompt | Request | None,
        options: ReplyOptions,
        messages: Sequence[Message] | None = None,
        tools: Sequence[Message] | None = None,
    ) -> Request:
        if (prompt is None) == (messages is None):
            raise OptionError("give either a prompt or messages")
        options = options.without_thoughts()
        if messages is not None:
            ids = prompts.encode_messages(self.file, messages, tools, options.thinking)
            return Request.of(ids, options, in_template=True).checked(self.file, self.plan)
        if isinstance(prompt, str):
            raw = prompts.is_raw(self.file, raw=options.raw)
            ids = self.encode(prompt, raw=raw, prefix=options.prefix, thinking=options.thinking)
            return Request.of(ids, options, in_template=not raw).checked(self.file, self.plan)
        if isinstance(prompt, Request):
            return prompt
        if isinstance(prompt, bytes | bytearray | Mapping) or not isinstance(prompt, Iterable):
            raise OptionError(f"a prompt is text or token ids, and {prompt!r} is neither")
        return Request.of(prompt, options).checked(self.file, self.plan)

    def count_tokens(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[Message] | None = None,
        tools: Sequence[Message] | None = None,
        raw: bool = False,
    ) -> int:
        """How many tokens a prompt, or a conversation, takes of the context."""
        asked = ReplyOptions(raw=raw)
        return len(self._request(prompt, asked, messages, tools).prompt_ids)

    def embed(self, text: Prompt, *, pooling: Pooling = "mean") -> NDArray[np.float32]:
        """What a text is about, as a vector [dim] f32 of length one: the model's hidden states,
        averaged over its tokens ("mean") or of the last one.

        Raises OptionError and ContextOverflowError as `generate` does, BackendError for a backend
        or a model that does not give its states.
        """
        from edgespec.engine.embedding import check_pooling, embedding

        check_pooling(pooling)
        ids = self._request(text, ReplyOptions(raw=True)).prompt_ids
        check_prompt(len(ids), self.plan, self.file.spec.context_length)
        with self.line.free_slot() as slot:
            self.scheduler.idle.switch(slot, None, ids)
            return embedding(self.file, slot, ids, pooling)

    def remember(self, text: str | Sequence[int]) -> None:
        """Draft from this text, too: a retrieved passage, a file of the repository that is edited.

        Costs no pass and changes no reply. As much is kept as the drafters' memory has room for, of
        all texts and replies the latest, so what matters most comes last. Source: "REST:
        Retrieval-Based Speculative Decoding", "RASD: Retrieval-Augmented Speculative Decoding".
        """
        ids = self.tokenizer.encode(text, add_bos=False) if isinstance(text, str) else text
        with self.line.free_slot() as slot:
            slot.market.remember(np.array(ids, np.int32))

    def remember_folder(
        self, folder: str | os.PathLike[str], near: str | os.PathLike[str] | None = None
    ) -> int:
        """`remember` the text files of a folder, those near a file of it, which is being edited,
        before all others; returns how many were read: later calls read what has changed.
        """
        from edgespec.engine.repository import Repository

        place = Path(folder).resolve()
        known = self._repositories.setdefault(place, Repository(place))
        num_files = 0
        for text in known.news(near):
            self.remember(text)
            num_files += 1
        return num_files

    def score(self, text: Prompt, *, top: int = 0) -> list[TokenLogprob]:
        """How likely the model finds each token of a text after those before it, from the second
        on, and the `top` likeliest there; a text's first token counts where the model begins texts
        with a token of its own.

        Raises OptionError and ContextOverflowError as `generate` does.
        """
        from edgespec.engine.scoring import log_likelihoods

        ids = self._request(text, ReplyOptions(raw=True, logprobs=top)).prompt_ids
        check_prompt(len(ids), self.plan, self.file.spec.context_length)
        with self.line.free_slot() as slot:
            self.scheduler.idle.switch(slot, None, ids)
            return log_likelihoods(slot, ids, top, self.scheduler.target.max_nodes)

    def encode(
        self,
        prompt: str,
        *,
        raw: bool = False,
        prefix: str | None = None,
        thinking: bool | None = None,
    ) -> list[int]:
        """Token ids of a prompt, in the model's chat template unless `raw` is set, after a saved
        prefix if one is named.
        """
        return prompts.encode(self.file, prompt, raw=raw, prefix=prefix, thinking=thinking)

    def chat(
        self,
        system: str | None = None,
        *,
        prefix: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> Chat:
        """A conversation with this model, after a system message or the saved prefix that holds it,
        and with functions as JSON schemas that the model may call.

        Raises TemplateError when the model has no chat template, KvFileError when there is no such
        prefix.
        """
        from edgespec.engine.chat import Chat

        if prefix is not None:
            if system is not None:
                raise OptionError("a chat takes a system message or a saved prefix, and got both")
            system = prompts.prefix_text(self.file, prefix, raw=False)
        return Chat(self.file, self._turn, self.line.forget, system, prefix, tools)

    def load_chat(self, path: str | os.PathLike[str]) -> Chat:
        """The conversation that `Chat.save` wrote, perhaps with another model; raises OptionError
        for a file that holds none.
        """
        from edgespec.engine.saved_chat import SavedChat

        saved = SavedChat.read(path)
        chat = self.chat(tools=saved.tools)
        chat.restore(saved)
        return chat

    def _turn(
        self,
        ids: Sequence[int],
        overflow: Overflow,
        owner: Hashable,
        options: ReplyOptions,
        then: Then | None = None,
    ) -> Stream:
        """A reply that goes on with the sequence of an owner, such as a chat, until it is
        forgotten.
        """
        request = Request.of(ids, options, in_template=True)
        return Stream(self.line, Generation(request, overflow, owner), then)

    def save_prefix(self, name: str, text: str, *, raw: bool = False) -> Prefix:
        """Compute a system message, or with `raw` the beginning of a text, and save it with its
        keys and values under a name, which `prefix=` takes; returns what was saved.

        Raises OptionError for a name that cannot be one, ContextOverflowError when the context does
        not hold the text, BackendError for a backend that keeps keys and values to itself,
        KvFileError when the file cannot be written.
        """
        from edgespec.engine.prefix_saving import save_prefix

        return save_prefix(self.line, self.scheduler, name, text, raw=raw)

    def close(self) -> None:
        """End what is being written, wait for that, and give back the model's memory and file;
        using the engine afterwards is an error.
        """
        if self.line.close():
            self.scheduler.close()
            for one in self._drafting:
                one.close()
            self.file.close()
            release_free_memory()  # the interpreter's end touches library pages once more

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _stage(progress: Progress | None, stage: str) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, total: progress(stage, done, total)
