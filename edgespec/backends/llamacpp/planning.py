"""The planner's questions put to llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from edgespec.backends.llamacpp.model import ContextSettings
from edgespec.backends.llamacpp.placing import Placing
from edgespec.backends.llamacpp.probe import probed
from edgespec.backends.llamacpp.survey import Survey, context_settings
from edgespec.memory.foreign import Ask, EngineBytes
from edgespec.memory.placement import Device
from edgespec.memory.settings import Settings
from edgespec.models.file import ModelFile
from edgespec.models.spec import ModelSpec

BRANCH_BYTES = 48
"""Of each position for each sequence that shares it: a node of a set in the heap."""
CELL_BYTES = 52 + 2 * BRANCH_BYTES
"""Of each position: what is noted of it, and its nodes of two sets more."""
_CELLS_AT_A_TIME = 256


@contextmanager
def ask_engine(file: ModelFile, devices: Sequence[Device] = ()) -> Iterator[Ask]:
    """Ask what sessions on a file would hold, with layers on devices where there are any.

    Raises ModelFileError, BackendError.
    """
    verdict = probed()
    verdict.require()
    with Survey(file.path, extra_buffers=verdict.extra_buffers) as survey:

        def told(settings: Settings, threads: int) -> EngineBytes:
            return survey.bytes_of(context_settings(settings, threads))

        def with_the_rest(ask: Ask) -> Ask:
            def asked(settings: Settings, threads: int) -> EngineBytes:
                return replace(
                    ask(settings, threads),
                    branch_bytes=BRANCH_BYTES,
                    cell_bytes=CELL_BYTES,
                    scratch=scratch_bytes(file.spec, context_settings(settings, threads)),
                )

            return asked

        if not devices:
            yield with_the_rest(told)
            return
        with Placing(file, devices, survey) as placing:
            yield with_the_rest(placing.ask)


def scratch_bytes(spec: ModelSpec, settings: ContextSettings) -> int:
    """What a pass converts the right side of its widest product to, which llama.cpp allocates when
    it computes and tells nobody: activations, or without flash attention a whole chunk's
    probabilities over all positions, in 16 bits.
    """
    width = max(spec.ffn_dim, spec.dim, spec.num_heads * spec.head_dim)
    if settings.kv_type == "f16":
        cells = -(-settings.context * settings.texts // _CELLS_AT_A_TIME) * _CELLS_AT_A_TIME
        width = max(width, spec.num_heads * cells)
    return 2 * settings.rows * width
