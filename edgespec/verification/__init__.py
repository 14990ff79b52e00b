"""Drawing the target's tokens and comparing drafts with them."""

from edgespec.verification.acceptance import Verdict, Verifier, verify
from edgespec.verification.noise import gumbel_noise
from edgespec.verification.sampling import SamplingParams

__all__ = ["SamplingParams", "Verdict", "Verifier", "gumbel_noise", "verify"]
