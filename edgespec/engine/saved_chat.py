"""Conversations in files: JSON that anybody may write by hand, hostile until it was checked.

{"edgespec_chat": 1, "messages": [{"role": "user", "content": "..."}, ...]} is enough. "tools" are
the functions that the model may call, "model" its file. "tokenizer", "text" and "ids" say how the
turns were encoded: with the same vocabulary the model goes on after the very tokens that it wrote.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from edgespec.errors import OptionError
from edgespec.system.records import dataclass
from edgespec.system.user_data import write_private

VERSION = 1
_LARGEST_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class SavedChat:
    """What a file of a conversation holds."""

    messages: list[dict[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    model: str = ""
    """The file of the model that it was held with."""
    tokenizer: str = ""
    """The vocabulary's fingerprint in hex."""
    text: str = ""
    """The turns in the chat template, as far as `ids` say them."""
    ids: Sequence[int] = ()

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file, readable for its owner only, whole or not at all; raises OSError."""
        kept = {"edgespec_chat": VERSION} | asdict(self)
        text = json.dumps(kept, ensure_ascii=False, indent=1)
        write_private(Path(path), [text.encode("utf-8", "surrogatepass")])

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Raises OptionError for a file that cannot be read or is something else."""
        place = os.fspath(path)
        try:
            with open(path, "rb") as file:
                raw = file.read(_LARGEST_BYTES + 1)
            if len(raw) > _LARGEST_BYTES:
                raise ValueError(f"it is larger than {_LARGEST_BYTES // 2**20} MiB")
            return cls._checked(json.loads(raw.decode("utf-8", "surrogatepass")))
        except OSError as error:
            raise OptionError(f"cannot go on with {place}: {error.strerror or error}") from None
        except RecursionError:
            raise OptionError(f"cannot go on with {place}: it is nested too deeply") from None
        except ValueError as error:
            why = str(error) if type(error) is ValueError else "it is not JSON"
            raise OptionError(f"cannot go on with {place}: {why}") from None

    @classmethod
    def _checked(cls, kept: Any) -> Self:
        """Raises ValueError for what is no conversation."""
        if not isinstance(kept, dict) or kept.get("edgespec_chat") != VERSION:
            raise ValueError("it is no saved conversation")
        messages, tools = kept.get("messages"), kept.get("tools")
        if not isinstance(messages, list) or not all(map(_is_message, messages)):
            raise ValueError("its messages are not all a role and a content, both text")
        if tools is not None and not (
            isinstance(tools, list) and all(isinstance(one, dict) for one in tools)
        ):
            raise ValueError("its tools are no list of functions")
        model, vocabulary, text = (kept.get(name, "") for name in ("model", "tokenizer", "text"))
        ids = kept.get("ids", [])
        known = isinstance(ids, list) and all(
            isinstance(one, str) for one in (model, vocabulary, text)
        )
        if not known or not all(type(one) is int and one >= 0 for one in ids):
            raise ValueError("its tokens are not numbers with a text")
        return cls(messages, tools, model, vocabulary, text, ids)


def _is_message(found: Any) -> bool:
    return (
        isinstance(found, dict)
        and isinstance(found.get("role"), str)
        and isinstance(found.get("content"), str)
    )
