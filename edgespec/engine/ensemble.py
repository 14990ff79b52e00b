"""What several replies to one prompt are good for: the first, a vote, a choice of completions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Unpack

from edgespec.engine.batch import BatchStream
from edgespec.engine.reply import Reply
from edgespec.engine.reply_options import ReplyKeywords, ReplyOptions
from edgespec.engine.request import MAX_LOGPROBS, Request
from edgespec.engine.suggestions import Suggestion, completions, likeliest_starts
from edgespec.engine.voting import Vote, first_finished, majority, vote_of_shortest
from edgespec.errors import OptionError
from edgespec.models.file import ModelFile
from edgespec.models.tokenizers.infill import infill_ids
from edgespec.system.option_fields import made, spells

if TYPE_CHECKING:
    from edgespec.memory.plan.plan import Plan


class Ensemble(ABC):
    """The half of an engine that asks for several replies to one prompt."""

    file: ModelFile
    plan: Plan

    @abstractmethod
    def _batch(
        self,
        prompts: Sequence[str | Sequence[int] | Request],
        options: ReplyOptions,
        n: int,
        seeds: Sequence[int] | None,
        max_batch: int | None,
    ) -> BatchStream: ...

    @spells(ReplyOptions)
    def first_finished(
        self,
        prompt: str | Sequence[int],
        n: int,
        *,
        seeds: Sequence[int] | None = None,
        max_batch: int | None = None,
        **options: Unpack[ReplyKeywords],
    ) -> Reply:
        """Write n replies at once until the first ends, and return it; the rest is never written.

        First is the one that takes the fewest tokens, the earlier seed among equals, whatever
        speculation made faster. Seeds and errors are as for `stream_batch`. Source: "First Finish
        Search: Efficient Test-Time Scaling in Large Language Models".
        """
        asked = made(ReplyOptions, "first_finished", options)
        return first_finished(self._batch([prompt], asked, n, seeds, max_batch))

    @spells(ReplyOptions)
    def majority(
        self,
        prompt: str | Sequence[int],
        n: int,
        *,
        key: Callable[[str], Hashable] = str.strip,
        first: int | None = None,
        deadline_s: float | None = None,
        seeds: Sequence[int] | None = None,
        max_batch: int | None = None,
        **options: Unpack[ReplyKeywords],
    ) -> Vote:
        """Let n replies vote: `key` takes a reply's text to its answer, and None abstains.

        Ends as soon as those still being written cannot change the result. With `first`, only so
        many vote, those that take the fewest tokens, and the shortest decides a tie: "Don't
        Overthink it. Preferring Shorter Thinking Chains for Improved LLM Reasoning" (short-m@k).
        After `deadline_s` seconds those vote that have ended. Seeds and errors are as for
        `stream_batch`. Source: "Self-Consistency Improves Chain of Thought Reasoning in Language
        Models".
        """
        asked = made(ReplyOptions, "majority", options)
        if first is not None and not 1 <= first <= n:
            raise OptionError(f"first is {first}, but 1 to {n} of {n} replies can vote")
        stream = self._batch([prompt], asked, n, seeds, max_batch)
        if first is not None:
            return vote_of_shortest(stream, key, first, deadline_s)
        return majority(stream, key, deadline_s)

    def suggest(
        self,
        prefix: str,
        suffix: str | None = None,
        k: int = 3,
        *,
        within: float | None = None,
        deadline_s: float | None = None,
        max_tokens: int = 24,
        max_batch: int | None = None,
    ) -> list[Suggestion]:
        """The k likeliest first tokens after a text, each with what the model says next: exact
        greedy completions, the likeliest first, written together.

        With a `suffix`, what belongs between the two. With `within`, one that comes to be so many
        nats less likely than the best of the same length ends there and comes last. After
        `deadline_s` seconds they end where they are. Raises OptionError for a suffix where the
        model has no tokens for it, and for a negative `within`.
        """
        if not 1 <= k <= MAX_LOGPROBS:
            raise OptionError(f"k is {k}, but 1 to {MAX_LOGPROBS} completions can be suggested")
        if within is not None and not within >= 0:
            raise OptionError(f"within is {within}, but it is at least 0 nats, or None")
        ids = infill_ids(self.file.tokenizer, prefix, suffix)
        options = ReplyOptions(
            max_tokens=1, temperature=0.0, logprobs=min(k + 1, MAX_LOGPROBS), ignore_eos=True
        )
        starts = likeliest_starts(self._batch([ids], options, 1, None, None), k, self.file)
        if not starts:
            return []
        options = ReplyOptions(max_tokens=max(max_tokens - 1, 1), temperature=0.0, logprobs=0)
        prompts = [[*ids, start.token_ids[0]] for start in starts]
        stream = self._batch(prompts, options, 1, None, max_batch)
        return completions(stream, starts, self.file.tokenizer, within, deadline_s)
