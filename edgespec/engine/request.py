"""What a request is: the prompt's token ids, and how to reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from numbers import Integral
from typing import TYPE_CHECKING, Self

from edgespec.engine.context import check_policy
from edgespec.engine.reply_options import ReplyOptions
from edgespec.errors import OptionError
from edgespec.models.grammars import grammar_of, matcher_of, prepare
from edgespec.models.names import open_dereference
from edgespec.system.option_fields import check_types
from edgespec.system.records import dataclass
from edgespec.system.resident_memory import resident_bytes
from edgespec.verification.sampling import SamplingParams, random_seed
from edgespec.verification.shaping import Shaping

if TYPE_CHECKING:
    from edgespec.memory.plan.plan import Plan
    from edgespec.models.file import ModelFile

DEFAULT_MAX_TOKENS = 512

MAX_LOGPROBS = 100
MAX_STOP_TEXTS = 64
NAME_TOKENS = 32
"""Of a prompt's end, in which a name may have begun."""

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
    shaping: Shaping | None = None
    """What else is done to logits before a token is drawn."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer; they are no part of it."""
    grammar: str | None = None
    """What binds the reply, in llguidance's form."""
    grammar_after: str | None = ""
    """The dot and the name begun that a grammar of names goes on from; None where the prompt's end
    is to be looked at for it.
    """
    logprobs: int | None = None
    """How many of the likeliest tokens are told with each token's log-probability."""
    origins: bool = False
    """Whether each token's drafter is told."""

    @classmethod
    def of(
        cls,
        prompt_ids: Sequence[int],
        options: ReplyOptions,
        *,
        in_template: bool = False,
        before: str | None = None,
    ) -> Self:
        """The request that options ask for; `before` is what stands before the reply, where that is
        not the prompt's end. Raises OptionError for values that mean nothing.
        """
        check_types(options)
        sampling = SamplingParams(
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            repetition_penalty=options.repetition_penalty,
            repetition_window=options.repetition_window,
            seed=random_seed() if options.seed is None else options.seed,
        )
        return cls(
            tuple(map(_token_id, prompt_ids)),
            sampling,
            options.max_tokens,
            options.speculation,
            options.max_nodes,
            options.ignore_eos,
            options.accept,
            options.prefix,
            in_template,
            _shaping(options),
            _stop_texts(options.stop),
            grammar_of(options.schema, options.regex, options.grammar, options.names),
            _grammar_after(options, "" if in_template else before),
            options.logprobs,
            options.origins,
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
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_LOGPROBS:
            raise OptionError(
                f"logprobs is {self.logprobs}, but 0 to {MAX_LOGPROBS} tokens can be told"
            )
        if self.grammar is not None and self.ignore_eos:
            raise OptionError("what binds a reply says when it ends; drop ignore_eos")
        if self.accept == "typical" and (self.shaping is not None or self.grammar is not None):
            raise OptionError(
                "typical acceptance looks at probabilities as the model gives them; leave it, or "
                "schemas, penalties, logit_bias, DRY, top_n_sigma, typical_p and XTC, out"
            )
        if self.accept == "typical" and self.sampling.repetition_penalty != 1.0:
            raise OptionError(
                "typical acceptance looks at probabilities before any repetition penalty; leave "
                "one of the two out"
            )

    def checked(self, file: ModelFile, plan: Plan) -> Self:
        """This, if a model can answer it: raises OptionError for a token that its vocabulary does
        not have, and for a schema or grammar that cannot be followed; BudgetError where there is no
        room for one.
        """
        vocab_size = file.spec.vocab_size
        for token in self.prompt_ids:
            if not 0 <= token < vocab_size:
                raise OptionError(
                    f"the prompt has token {token}, and this model has tokens 0 to {vocab_size - 1}"
                )
        for token, _ in self.shaping.logit_bias if self.shaping is not None else ():
            if token >= vocab_size:
                raise OptionError(
                    f"logit_bias names token {token}, and this model has tokens 0 to "
                    f"{vocab_size - 1}"
                )
        if self.grammar is not None:
            prepare(file.tokenizer, plan.budget_bytes - resident_bytes())
            matcher_of(file.tokenizer, self.grammar)
        if self.grammar_after is None:
            end = file.tokenizer.decode(self.prompt_ids[-NAME_TOKENS:])
            return replace(self, grammar_after=open_dereference(end))
        return self

    @property
    def lossy(self) -> bool:
        """Whether speculation may change the text: only if asked for, and not when greedy."""
        return self.accept == "typical" and self.speculation and not self.sampling.greedy


def check_options(options: ReplyOptions) -> None:
    """Raise OptionError for a value that means nothing."""
    Request.of((), options)
    check_policy(options.on_overflow)


def _grammar_after(options: ReplyOptions, before: str | None) -> str | None:
    if options.names is None:
        return ""
    return None if before is None else open_dereference(before)


def _shaping(options: ReplyOptions) -> Shaping | None:
    """The controls that are not at rest, None when all are."""
    bias = options.logit_bias or {}
    names = [field.name for field in fields(Shaping) if field.name != "logit_bias"]
    asked = Shaping(
        tuple(sorted((_token_id(token), float(by)) for token, by in bias.items())),
        **{name: getattr(options, name) for name in names},
    )
    resting = (
        not asked.logit_bias
        and not asked.frequency_penalty
        and not asked.presence_penalty
        and not asked.dry_multiplier
        and not asked.top_n_sigma
        and not asked.cuts
    )
    return None if resting else asked


def _stop_texts(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    texts = (stop,) if isinstance(stop, str) else tuple(stop or ())
    for text in texts:
        if not isinstance(text, str) or not text:
            raise OptionError(f"stop takes texts that are not empty, and {text!r} is none")
    if len(texts) > MAX_STOP_TEXTS:
        raise OptionError(
            f"stop has {len(texts)} texts, and at most {MAX_STOP_TEXTS} are looked for"
        )
    return texts


def _token_id(token: object) -> int:
    if isinstance(token, bool) or not isinstance(token, Integral):
        raise OptionError(f"a prompt is text or token ids, and {token!r} is no token id")
    return int(token)
