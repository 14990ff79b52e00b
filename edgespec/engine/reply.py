"""What comes back: a finished reply and its numbers."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from edgespec.system.records import dataclass

FinishReason = Literal["stop", "length", "context", "cancelled"]
"""The model ended its reply; max_tokens were written; the context is full; the reader stopped."""


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
    prompt_cache_tokens: int = 0
    """Cached tokens whose keys and values were read from the prompt cache."""
    joules_per_token: float | None = None
    """What the whole processor, or the battery, gave for a token of the reply, its prompt and all
    that ran beside it included; None where the system does not tell.
    """
    notes: tuple[str, ...] = ()
    """What went wrong on the way and cost time alone."""
    disk_bytes_per_token: int = 0
    """Weights that were read from disk for each token of the reply, where they do not fit."""
    overlap: str = ""
    """Whether drafts were written while the target verified, and why; "" without a draft model."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely the model found a token before anything was done to its logits, and the likeliest
    tokens there.
    """

    token_id: int
    logprob: float
    """Natural logarithm of the probability."""
    top: list[tuple[int, float]]
    """(token id, log-probability), the likeliest first."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished reply; `token_ids` leave out the token that ended it."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stats: Stats
    reasoning: str = ""
    """What the model thought before it answered; its tokens are among `token_ids`."""
    logprobs: list[TokenLogprob] | None = None
    """One for each of `token_ids`; None unless they were asked for."""
    origins: list[str] | None = None
    """The drafter of each of `token_ids`, "" for the model itself; None unless asked for."""
