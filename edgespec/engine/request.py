"""What a request is, and what comes back."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from edgespec.errors import OptionError
from edgespec.verification.sampling import SamplingParams

FinishReason = Literal["stop", "length", "context", "cancelled"]
"""The model ended its reply; max_tokens were written; the context is full; the reader stopped."""

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


@dataclass(slots=True)
class KvTraffic:
    """What became of idle conversations' keys and values while a reply was written."""

    spilled_tokens: int = 0
    restored_tokens: int = 0
    forgotten_tokens: int = 0
    notes: list[str] = field(default_factory=list)

    def note(self, sentence: str) -> None:
        """Keep what went wrong, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)


@dataclass(frozen=True, slots=True)
class Stats:
    """The numbers of one reply; names as in `run --json`."""

    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens whose keys and values were still there from before."""
    output_tokens: int
    tokens_per_second: float
    """Decoding only; in a batch, of this reply alone."""
    prefill_tokens_per_second: float
    time_to_first_token_s: float
    """From the request to the first token of the reply."""
    steps: int
    tokens_per_step: float
    drafted: int
    accepted: int
    by_source: dict[str, dict[str, Any]]
    estimated_speedup: float
    """Against plain decoding at the measured cost of one token; in a batch, of one for each text
    that is written with it.
    """
    peak_memory_bytes: int
    planned_memory_bytes: int
    backend: str
    seed: int
    dropped_turns: int = 0
    """Oldest turns that had to make room in a full context, and tokens."""
    dropped_tokens: int = 0
    lossy: bool = False
    """Speculation may have changed the text, because `accept="typical"` was asked for."""
    restored_tokens: int = 0
    """Cached tokens whose keys and values were read back from a file."""
    spilled_tokens: int = 0
    """Tokens of idle conversations whose keys and values went to a file to make room."""
    forgotten_tokens: int = 0
    """The same, but they are to be computed again."""
    notes: tuple[str, ...] = ()
    """What went wrong on the way and cost time alone."""
    overlap: str = ""
    """Whether drafts were written while the target verified, and why; "" without a draft model."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished reply; `token_ids` leave out the token that ended it."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stats: Stats
