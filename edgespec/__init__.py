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
    HubError,
    KvFileError,
    ModelFileError,
    OptionError,
    StoreError,
    TemplateError,
    UnsupportedModelError,
)
from edgespec.version import __version__

if TYPE_CHECKING:
    from edgespec.engine.batch import BatchStream
    from edgespec.engine.chat import Chat
    from edgespec.engine.engine import Engine
    from edgespec.engine.reply import Reply, Stats
    from edgespec.engine.request import Request
    from edgespec.engine.voting import Vote
    from edgespec.loading.load import load, plan
    from edgespec.memory.plan.plan import Plan
    from edgespec.models.hub.download import pull

_LAZY = {
    "BatchStream": "edgespec.engine.batch",
    "Chat": "edgespec.engine.chat",
    "Engine": "edgespec.engine.engine",
    "Plan": "edgespec.memory.plan.plan",
    "Reply": "edgespec.engine.reply",
    "Request": "edgespec.engine.request",
    "Stats": "edgespec.engine.reply",
    "Vote": "edgespec.engine.voting",
    "load": "edgespec.loading.load",
    "plan": "edgespec.loading.load",
    "pull": "edgespec.models.hub.download",
}

__all__ = [
    "BackendError",
    "BatchStream",
    "BudgetError",
    "Chat",
    "ContextOverflowError",
    "EdgeSpecError",
    "Engine",
    "HubError",
    "KvFileError",
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
    "pull",
]


def __getattr__(name: str) -> Any:
    """Import the heavy parts on first use: `edgespec --help` needs none of them."""
    if name not in _LAZY:
        raise AttributeError(f"module 'edgespec' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
