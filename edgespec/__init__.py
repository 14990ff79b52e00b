"""EdgeSpec: language models at full speed on the machine you own.

import edgespec

with edgespec.load(memory="1GiB") as engine:
    print(engine.generate("Write a haiku about rain.").text)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from edgespec.errors import (
    AdaptError,
    BackendError,
    BudgetError,
    ContextOverflowError,
    EdgeSpecError,
    ExportError,
    HubError,
    KvFileError,
    ModelFileError,
    OptionError,
    StoreError,
    TemplateError,
    TranscriptError,
    UnsupportedModelError,
)
from edgespec.system.few_collections import few_collections
from edgespec.version import __version__

if TYPE_CHECKING:
    from edgespec.engine.batch import BatchStream
    from edgespec.engine.chat import Chat
    from edgespec.engine.engine import Engine
    from edgespec.engine.reply import Reply, Stats, TokenLogprob
    from edgespec.engine.reply_options import ReplyKeywords, ReplyOptions
    from edgespec.engine.reply_stream import Stream
    from edgespec.engine.request import Request
    from edgespec.engine.voting import Vote
    from edgespec.loading.load import load, plan
    from edgespec.loading.load_options import LoadOptions
    from edgespec.memory.plan.plan import Plan
    from edgespec.models.hub.download import pull
    from edgespec.models.reasoning import Piece

_LAZY = {
    "BatchStream": "edgespec.engine.batch",
    "Chat": "edgespec.engine.chat",
    "Engine": "edgespec.engine.engine",
    "LoadOptions": "edgespec.loading.load_options",
    "Piece": "edgespec.models.reasoning",
    "Plan": "edgespec.memory.plan.plan",
    "Reply": "edgespec.engine.reply",
    "ReplyKeywords": "edgespec.engine.reply_options",
    "ReplyOptions": "edgespec.engine.reply_options",
    "Request": "edgespec.engine.request",
    "Stats": "edgespec.engine.reply",
    "Stream": "edgespec.engine.reply_stream",
    "TokenLogprob": "edgespec.engine.reply",
    "Vote": "edgespec.engine.voting",
    "load": "edgespec.loading.load",
    "plan": "edgespec.loading.load",
    "pull": "edgespec.models.hub.download",
}

__all__ = [
    "AdaptError",
    "BackendError",
    "BatchStream",
    "BudgetError",
    "Chat",
    "ContextOverflowError",
    "EdgeSpecError",
    "Engine",
    "ExportError",
    "HubError",
    "KvFileError",
    "LoadOptions",
    "ModelFileError",
    "OptionError",
    "Piece",
    "Plan",
    "Reply",
    "ReplyKeywords",
    "ReplyOptions",
    "Request",
    "Stats",
    "StoreError",
    "Stream",
    "TemplateError",
    "TokenLogprob",
    "TranscriptError",
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
    with few_collections():
        return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """All that can be had, loaded or not."""
    return sorted({*globals(), *__all__})
