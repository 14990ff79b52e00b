"""The planner's questions put to llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgespec.backends.llamacpp.model import ContextSettings
from edgespec.backends.llamacpp.probe import probed
from edgespec.backends.llamacpp.survey import Survey
from edgespec.memory.foreign import Ask, EngineBytes
from edgespec.memory.settings import Settings


@contextmanager
def ask_engine(path: Path) -> Iterator[Ask]:
    """Ask what sessions on a file would hold; raises ModelFileError, BackendError."""
    verdict = probed()
    verdict.require()
    with Survey(path, extra_buffers=verdict.extra_buffers) as survey:

        def ask(settings: Settings, threads: int) -> EngineBytes:
            return survey.bytes_of(
                ContextSettings(
                    context=settings.context,
                    rows=max(settings.prefill_chunk, settings.max_nodes),
                    nodes=settings.max_nodes,
                    threads=threads,
                    kv_type=settings.kv_type,
                    texts=settings.sequences,
                )
            )

        yield ask
