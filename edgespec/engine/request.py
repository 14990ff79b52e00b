"""What a request is: the prompt's token ids, and how to reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from edgespec.engine.context import check_policy
from edgespec.engine.reply_options import ReplyOptions
from edgespec.errors import OptionError
from edgespec.verification.sampling import SamplingParams, random_seed

DEFAULT_MAX_TOKENS = 512

ACCEPT_RULES = ("exact", "typical")
"""Which drafts stay: what the model alone would have written, or, lossy, what is typical enough."""


@dataclass(frozen=True, slots=True)
class Request:
    """One reply to be written: token ids of the prompt, and how."""

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    max_tokens: int = DEFAULT_MAX_TOKENS
    speculation: bool = True
    max_nodes: int | None = None
    """Most nodes of one pass, the root included; None takes the plan's."""
    ignore_eos: bool = False
    accept: str = "exact"
    """One of ACCEPT_RULES."""
    prefix: str | None = None
    """Name of a saved prefix that the prompt begins with, and whose keys and values are used."""
    in_template: bool = False
    """The prompt is in the chat template, so the reply may begin with reasoning."""

    @classmethod
    def of(
        cls, prompt_ids: Sequence[int], options: ReplyOptions, *, in_template: bool = False
    ) -> Self:
        """The request that options ask for; raises OptionError for values that mean nothing."""
        sampling = SamplingParams(
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            repetition_penalty=options.repetition_penalty,
            seed=random_seed() if options.seed is None else options.seed,
        )
        return cls(
            tuple(prompt_ids),
            sampling,
            options.max_tokens,
            options.speculation,
            options.max_nodes,
            options.ignore_eos,
            options.accept,
            options.prefix,
            in_template,
        )

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise OptionError(f"max_tokens is {self.max_tokens}, but a reply has at least 1 token")
        if self.max_nodes is not None and self.max_nodes < 1:
            raise OptionError(f"max_nodes is {self.max_nodes}, but a pass has at least 1 node")
        if self.accept not in ACCEPT_RULES:
            raise OptionError(
                f"drafts are accepted by the rules {' or '.join(ACCEPT_RULES)}, and "
                f"{self.accept!r} was asked for"
            )
        if self.accept == "typical" and self.sampling.repetition_penalty != 1.0:
            raise OptionError(
                "typical acceptance looks at probabilities before any repetition penalty; leave "
                "one of the two out"
            )

    @property
    def lossy(self) -> bool:
        """Whether speculation may change the text: only if asked for, and not when greedy."""
        return self.accept == "typical" and self.speculation and not self.sampling.greedy


def check_options(options: ReplyOptions) -> None:
    """Raise OptionError for a value that means nothing."""
    Request.of((), options)
    check_policy(options.on_overflow)
