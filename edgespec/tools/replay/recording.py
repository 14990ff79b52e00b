"""Recording replies as lines that `transcripts.py` reads, with the likeliest tokens of each."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.errors import TranscriptError

if TYPE_CHECKING:  # a command that records nothing need not load them
    from edgespec.engine.reply import Reply
    from edgespec.engine.request import Request


def recorded(request: Request, reply: Reply) -> str:
    """A reply, and what the model found likeliest where each of its tokens was drawn."""
    line = {
        "prompt": list(request.prompt_ids),
        "output": reply.token_ids,
        "top": [[[token, round(one, 4)] for token, one in at.top] for at in reply.logprobs or []],
        "sampling": asdict(request.sampling),
    }
    if not request.logprobs:
        del line["top"]
    return json.dumps(line) + "\n"


def append_recorded(path: str, request: Request, reply: Reply) -> None:
    """Add a reply to a file; raises TranscriptError where that cannot be written."""
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(recorded(request, reply))
    except OSError as error:
        raise TranscriptError(
            f"cannot write {path} ({error.strerror or error}); choose another --record"
        ) from None
