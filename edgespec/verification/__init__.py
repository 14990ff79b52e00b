"""Drawing the target's tokens and comparing drafts with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgespec.verification.sampling import SamplingParams

if TYPE_CHECKING:
    from edgespec.verification.acceptance import Verdict, Verifier, verify
    from edgespec.verification.noise import gumbel_noise
    from edgespec.verification.rejection_verifier import RejectionVerifier

_LAZY = {
    "RejectionVerifier": "edgespec.verification.rejection_verifier",
    "Verdict": "edgespec.verification.acceptance",
    "Verifier": "edgespec.verification.acceptance",
    "gumbel_noise": "edgespec.verification.noise",
    "verify": "edgespec.verification.acceptance",
}

__all__ = [
    "RejectionVerifier",
    "SamplingParams",
    "Verdict",
    "Verifier",
    "gumbel_noise",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import what brings Numba on first use: options are checked, and plans made, without it."""
    if name not in _LAZY:
        raise AttributeError(f"module 'edgespec.verification' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
