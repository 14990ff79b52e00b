"""What the user may ask of sampling."""

from __future__ import annotations

import math
import secrets
from dataclasses import field

from edgespec.errors import OptionError
from edgespec.system.records import dataclass

MAX_TEMPERATURE = 100.0
MAX_REPETITION_PENALTY = 10.0
MAX_REPETITION_WINDOW = 1024


def random_seed() -> int:
    """A seed nobody asked for: 32 bits, short enough to be typed again."""
    return secrets.randbits(32)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn; the steps run in this order, as llama.cpp's do.

    The penalty on the last `repetition_window` tokens (positive logits are divided, others
    multiplied by it), the `top_k` best, the smallest set of best tokens with probability `top_p`,
    those with at least `min_p` of the best one's probability, and only then the temperature. Raises
    OptionError for a value that means nothing.
    """

    temperature: float = 0.8
    """0 takes the best token; the penalty still applies."""
    top_k: int = 40
    """0 turns it off."""
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    repetition_window: int = 64
    """Tokens of prompt and reply, the newest ones, that the penalty looks at."""
    seed: int = field(default_factory=random_seed)

    def __post_init__(self) -> None:
        check_number(
            "temperature", self.temperature, 0.0, MAX_TEMPERATURE, "0 is greedy, 0.8 is usual"
        )
        check_whole("top_k", self.top_k, 0, 2**31 - 1, "0 turns it off, 40 is usual")
        check_number("top_p", self.top_p, 0.0, 1.0, "1 turns it off, 0.95 is usual")
        check_number("min_p", self.min_p, 0.0, 1.0, "0 turns it off, 0.05 is usual")
        check_number(
            "repetition_penalty", self.repetition_penalty, 0.0, MAX_REPETITION_PENALTY, "1 is off"
        )
        if self.repetition_penalty == 0.0:
            raise OptionError("repetition_penalty is 0, which no logit survives; 1 turns it off")
        check_whole(
            "repetition_window", self.repetition_window, 0, MAX_REPETITION_WINDOW, "64 is usual"
        )
        check_whole("seed", self.seed, 0, 2**64 - 1, "any whole number in that range will do")

    @property
    def greedy(self) -> bool:
        """Whether the best token is taken without drawing."""
        return self.temperature == 0.0


def check_number(name: str, value: float, low: float, high: float, hint: str) -> None:
    """Raise OptionError for what is no number, or lies outside."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError(
            f"{name} must be a number from {low:g} to {high:g}, not {value!r}; {hint}"
        )
    if not math.isfinite(value) or not low <= value <= high:
        raise OptionError(f"{name} is {value:g}, but must lie in {low:g} to {high:g}; {hint}")


def check_whole(name: str, value: int, low: int, high: int, hint: str) -> None:
    """Raise OptionError for what is no whole number, or lies outside."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionError(
            f"{name} must be a whole number from {low} to {high}, not {value!r}; {hint}"
        )
    if not low <= value <= high:
        raise OptionError(f"{name} is {value}, but must lie in {low} to {high}; {hint}")
