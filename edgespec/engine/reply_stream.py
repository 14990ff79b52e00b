"""A reply while it is written."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from edgespec.engine.generation import Writing
from edgespec.engine.request import Reply, Request


class ReplyStream:
    """An iterator over the pieces of one reply; `reply` is the whole once it has ended."""

    def __init__(self, pieces: Generator[str, None, None], writing: Writing) -> None:
        self._pieces, self._writing = pieces, writing

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """Stop writing; what was written stays in the cache."""
        self._pieces.close()

    @property
    def request(self) -> Request:
        return self._writing.request

    @property
    def text(self) -> str:
        """What has been written so far."""
        return self._writing.text

    @property
    def token_ids(self) -> list[int]:
        return self._writing.token_ids

    @property
    def seen_ids(self) -> list[int]:
        """What the model has before it: prompt and reply, less what a full context dropped."""
        return self._writing.seen_ids

    @property
    def started(self) -> bool:
        """Whether the reply was begun: its prompt was accepted and prefilled."""
        return self._writing.stats is not None

    @property
    def reply(self) -> Reply:
        """The reply; raises EdgeSpecError while it is still being written."""
        return self._writing.reply
