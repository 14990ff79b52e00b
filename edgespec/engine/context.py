"""What becomes of a text that outgrows the context: the policies, and what each of them drops.

Whatever stays is computed anew where its positions changed, so keys and values are those of the
text that is left and nothing else; the part before the first gap is still there. A policy looks at
token ids alone, and a step never drafts past the end of the context, so the text does not depend on
speculation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from edgespec.errors import OptionError

POLICIES = ("stop", "drop-turns", "sliding")
NUM_SINKS = 4
"""First tokens that a sliding window keeps, for attention to rest on."""


@runtime_checkable
class Overflow(Protocol):
    """Makes room in a full context, and counts what that cost."""

    dropped_turns: int
    dropped_tokens: int

    def shorten(self, prompt: Sequence[int], reply: Sequence[int], room: int) -> list[int] | None:
        """The ids to go on with, at most `room` of them, instead of `prompt` and then `reply`.

        `reply` is what was written since `prompt`. None when nothing may be dropped.
        """


class Stop:
    """Drops nothing: a prompt that is too long is refused, a reply ends where the context does."""

    dropped_turns = 0
    dropped_tokens = 0

    def shorten(self, prompt: Sequence[int], reply: Sequence[int], room: int) -> None:
        del prompt, reply, room


class Sliding:
    """Keeps the first tokens and the latest, as many as fill half of the context.

    "Efficient Streaming Language Models with Attention Sinks" (StreamingLLM), section 3.2: without
    the first tokens attention has nothing to rest on. There the window moves by one token at a time
    and keys are rotated again; here it moves by half a context, and what is left is computed again.
    """

    dropped_turns = 0

    def __init__(self, num_sinks: int = NUM_SINKS) -> None:
        """`num_sinks` is the length of what must stay, such as a system message."""
        self.dropped_tokens = 0
        self._num_sinks = num_sinks

    def shorten(self, prompt: Sequence[int], reply: Sequence[int], room: int) -> list[int] | None:
        ids = [*prompt, *reply]
        if room < 2:
            return None
        sinks = self._num_sinks if self._num_sinks <= room // 2 else NUM_SINKS
        sinks = min(sinks, room // 2)
        latest = max(1, (room - sinks) // 2)
        self.dropped_tokens += len(ids) - sinks - latest
        return [*ids[:sinks], *ids[-latest:]]


def policy(name: str) -> Overflow:
    """A policy by its name; where there are no turns to drop, `drop-turns` stops."""
    check_policy(name)
    return Sliding() if name == "sliding" else Stop()


def check_policy(name: str) -> None:
    """Raise OptionError for a name that is none of `POLICIES`."""
    if name not in POLICIES:
        raise OptionError(
            f"no way to handle a full context is called {name!r}; choose {', '.join(POLICIES)}"
        )
