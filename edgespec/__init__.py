"""EdgeSpec: language models at full speed on the machine you own.

import edgespec

with edgespec.load(memory="1GiB") as engine:
    print(engine.generate("Write a haiku about rain.").text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgespec.errors import (
    BackendError,
    BudgetError,
    ContextOverflowError,
    EdgeSpecError,
    KvFileError,
    ModelFileError,
    OptionError,
    StoreError,
    TemplateError,
    UnsupportedModelError,
)
from edgespec.version import __version__

if TYPE_CHECKING:
    from edgespec.batch import BatchStream
    from edgespec.chat import Chat
    from edgespec.engine import Engine
    from edgespec.memory.plan import Plan
    from edgespec.opening import load, plan
    from edgespec.reply import Reply, Request, Stats
    from edgespec.voting import Vote

_LAZY = {
    "BatchStream": "edgespec.batch",
    "Chat": "edgespec.chat",
    "Engine": "edgespec.engine",
    "Plan": "edgespec.memory.plan",
    "Reply": "edgespec.reply",
    "Request": "edgespec.reply",
    "Stats": "edgespec.reply",
    "Vote": "edgespec.voting",
    "load": "edgespec.opening",
    "plan": "edgespec.opening",
}

__all__ = [
    "BackendError",
    "BatchStream",
    "BudgetError",
    "Chat",
    "ContextOverflowError",
    "EdgeSpecError",
    "KvFileError",
    "Engine",
    "ModelFileError",
    "OptionError",
    "Plan",
    "Reply",
    "Request",
    "Stats",
    "StoreError",
    "TemplateError",
    "UnsupportedModelError",
    "Vote",
    "__version__",
    "load",
    "plan",
]


def __getattr__(name: str) -> Any:
    """Import the heavy parts on first use: `edgespec --help` needs none of them."""
    if name not in _LAZY:
        raise AttributeError(f"module 'edgespec' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
