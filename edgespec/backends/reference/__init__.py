"""The reference backend: every part that layers are described with, in plain NumPy."""

from edgespec.backends.reference.rotation import rope_frequencies
from edgespec.backends.reference.target import ReferenceTarget, Snapshot

__all__ = ["ReferenceTarget", "Snapshot", "rope_frequencies"]
