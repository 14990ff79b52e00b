"""A reader's handle on one reply."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from edgespec.engine.generation import Generation
from edgespec.engine.reply import Reply
from edgespec.engine.request import Request
from edgespec.models.reasoning import Piece


class Stream:
    """An iterator over the pieces of one reply; `reply` is the whole once it has ended.

    The work holds the generation and not this, so a stream that nobody holds any more ends at once.
    """

    def __init__(self, pieces: Generator[Piece, None, None], generation: Generation) -> None:
        self._pieces, self.generation = pieces, generation

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        return next(self._pieces)

    def close(self) -> None:
        """Stop writing; what was written stays in the cache."""
        self._pieces.close()

    @property
    def request(self) -> Request:
        return self.generation.request

    @property
    def text(self) -> str:
        """What has been written so far of the answer."""
        return self.generation.text

    @property
    def reasoning(self) -> str:
        """What has been written so far of the thoughts before it."""
        return self.generation.reasoning

    @property
    def untouched(self) -> bool:
        """Whether the text is all that the tokens say: none of it was reasoning or its marks."""
        return self.generation.untouched

    @property
    def token_ids(self) -> list[int]:
        return self.generation.token_ids

    @property
    def seen_ids(self) -> list[int]:
        """What the model has before it: prompt and reply, less what a full context dropped."""
        return self.generation.seen_ids

    @property
    def started(self) -> bool:
        """Whether the reply was begun: its prompt was accepted and prefilled."""
        return self.generation.began

    @property
    def reply(self) -> Reply:
        """The reply; raises EdgeSpecError while it is still being written."""
        return self.generation.reply
