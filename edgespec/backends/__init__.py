"""Backends by name; each is imported only when it is opened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from edgespec.errors import OptionError

if TYPE_CHECKING:
    from edgespec.backends.base import Progress, Target
    from edgespec.memory.plan import Plan
    from edgespec.models.file import ModelFile
    from edgespec.models.spec import TensorType

NAMES = ("native", "reference")
PLANNED = ("llamacpp", "onnx")
"""Names that are reserved: they will come, and are refused with a sentence until then."""


def choose(name: str) -> str:
    """The backend to use for a name the user gave; "auto" is the fastest there is."""
    if name == "auto":
        return NAMES[0]
    if name in NAMES:
        return name
    if name in PLANNED:
        raise OptionError(
            f"the {name} backend is not part of this version; use --backend native (GGUF models of "
            "the llama, qwen2 and qwen3 architectures)"
        )
    raise OptionError(f"no backend is called {name!r}; choose auto, {', '.join(NAMES)}")


def warm_up(name: str, kinds: Iterable[TensorType], kv_type: str = "f16") -> None:
    """Compile what a backend needs for these weight types and KV, or load it from the cache."""
    if name == "native":
        from edgespec.backends.native.warm_up import warm_up as warm_up_native

        warm_up_native(kinds, kv_type)


def open_target(file: ModelFile, plan: Plan, progress: Progress | None = None) -> Target:
    """Load a model into the backend its plan names."""
    if plan.backend == "reference":
        from edgespec.backends.reference import ReferenceTarget

        return ReferenceTarget(file, plan, progress)
    from edgespec.backends.native.target import NativeTarget

    return NativeTarget(file, plan, progress)
