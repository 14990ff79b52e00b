"""Sampling controls that few requests use, and what they may be."""

from __future__ import annotations

from edgespec.system.records import dataclass
from edgespec.verification.sampling import check_number, check_whole


@dataclass(frozen=True, slots=True)
class Shaping:
    """Controls that few requests use; raises OptionError for a value that means nothing."""

    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit)."""
    frequency_penalty: float = 0.0
    """Taken from a token's logit for each time it is among the last tokens."""
    presence_penalty: float = 0.0
    """Taken once from those that are."""
    dry_multiplier: float = 0.0
    """Don't Repeat Yourself: how much a token that would go on repeating the text loses; 0 is off.
    Source: "DRY: A modern repetition penalty", text-generation-webui, pull request 5677.
    """
    dry_base: float = 1.75
    """It loses this many times more for each token of the repetition beyond the allowed length."""
    dry_allowed_length: int = 2
    top_n_sigma: float = 0.0
    """Only logits within so many standard deviations of the best stay; 0 is off. Source: "Top-nσ:
    Not All Logits Are You Need".
    """
    typical_p: float = 1.0
    """Only the tokens whose surprise is nearest to the expected one stay, up to this probability; 1
    is off. Source: "Locally Typical Sampling".
    """
    xtc_probability: float = 0.0
    """How often all of the likeliest tokens but the last are left out; 0 is off. Source: "Exclude
    Top Choices", text-generation-webui, pull request 6335.
    """
    xtc_threshold: float = 0.1
    """A token is one of the likeliest from this probability up."""

    def __post_init__(self) -> None:
        for name in ("frequency_penalty", "presence_penalty"):
            check_number(name, getattr(self, name), -100.0, 100.0, "0 turns it off")
        check_number("dry_multiplier", self.dry_multiplier, 0.0, 100.0, "0 is off, 0.8 is usual")
        check_number("dry_base", self.dry_base, 1.0, 4.0, "1.75 is usual")
        check_whole("dry_allowed_length", self.dry_allowed_length, 1, 1000, "2 is usual")
        check_number("top_n_sigma", self.top_n_sigma, 0.0, 100.0, "0 is off, 1 is usual")
        check_number("typical_p", self.typical_p, 0.0, 1.0, "1 turns it off")
        check_number("xtc_probability", self.xtc_probability, 0.0, 1.0, "0 turns it off")
        check_number("xtc_threshold", self.xtc_threshold, 0.0, 1.0, "0.1 is usual")
        for token, bias in self.logit_bias:
            check_whole("a token of logit_bias", token, 0, 2**31 - 1, "ids are those of encode()")
            check_number(f"the bias of token {token}", bias, -1e4, 1e4, "-100 bans a token")

    @property
    def cuts(self) -> bool:
        """Whether tokens are left out in a way that kernels do not know."""
        return self.typical_p < 1.0 or self.xtc_probability > 0.0
