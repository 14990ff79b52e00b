"""Speculative sampling by rejection: the target's distribution, not the same text. A library: the
engine does not use it, and docs/verification.md says why.
"""

from edgespec.verification.rejection.rejection_verifier import RejectionVerifier

__all__ = ["RejectionVerifier"]
