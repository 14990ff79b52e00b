"""The planner's questions put to llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from edgespec.backends.llamacpp.placing import Placing
from edgespec.backends.llamacpp.probe import probed
from edgespec.backends.llamacpp.survey import Survey, context_settings
from edgespec.memory.foreign import Ask, EngineBytes
from edgespec.memory.placement import Device
from edgespec.memory.settings import Settings
from edgespec.models.file import ModelFile


@contextmanager
def ask_engine(file: ModelFile, devices: Sequence[Device] = ()) -> Iterator[Ask]:
    """Ask what sessions on a file would hold, with layers on devices where there are any.

    Raises ModelFileError, BackendError.
    """
    verdict = probed()
    verdict.require()
    with Survey(file.path, extra_buffers=verdict.extra_buffers) as survey:

        def ask(settings: Settings, threads: int) -> EngineBytes:
            return survey.bytes_of(context_settings(settings, threads))

        if not devices:
            yield ask
            return
        with Placing(file, devices, survey) as placing:
            yield placing.ask
