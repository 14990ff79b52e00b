"""What runs on a node: one engine, in a process that Ray starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from edgespec.errors import EdgeSpecError
from edgespec.tools.answer_file import Answer, Line, answers
from edgespec.version import __version__

if TYPE_CHECKING:
    from edgespec.engine.engine import Engine


class Worker:
    """One engine, within the budget of its node."""

    def __init__(self) -> None:
        self._engine: Engine | None = None

    def open(self, version: str, arguments: dict[str, Any]) -> str | None:
        """Load the model; returns why that cannot be, in a sentence, or None.

        `arguments` are those of `edgespec.load`; `version` is the one of who asks.
        """
        from edgespec.loading.load import load

        if version != __version__:
            return f"it has EdgeSpec {__version__}, and {version} is asking: install the same"
        try:
            self._engine = load(**arguments)
        except EdgeSpecError as error:
            return str(error)
        return None

    def answer(self, lines: list[Line], defaults: dict[str, Any]) -> Iterator[tuple[int, Answer]]:
        """Numbers of lines and their output, as they end; a refusal has number 0."""
        assert self._engine is not None
        try:
            for line, output in answers(self._engine, lines, defaults):
                yield line.number, output
        except EdgeSpecError as error:
            yield 0, {"error": str(error)}
