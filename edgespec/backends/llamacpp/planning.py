"""The planner's questions put to llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from edgespec.backends.llamacpp.model import ContextSettings
from edgespec.backends.llamacpp.probe import probed
from edgespec.backends.llamacpp.survey import Survey
from edgespec.memory.foreign import Ask, EngineBytes
from edgespec.memory.settings import Settings
from edgespec.models.file import ModelFile
from edgespec.models.spec import ModelSpec

BRANCH_BYTES = 48
"""Of each position for each sequence that shares it: a node of a set in the heap."""
CELL_BYTES = 52 + 2 * BRANCH_BYTES
"""Of each position: what is noted of it, and its nodes of two sets more."""
_CELLS_AT_A_TIME = 256


@contextmanager
def ask_engine(file: ModelFile) -> Iterator[Ask]:
    """Ask what sessions on a file would hold; raises ModelFileError, BackendError."""
    verdict = probed()
    verdict.require()
    with Survey(file.path, extra_buffers=verdict.extra_buffers) as survey:

        def ask(settings: Settings, threads: int) -> EngineBytes:
            asked = ContextSettings(
                context=settings.context,
                rows=max(settings.prefill_chunk, settings.max_nodes),
                nodes=settings.max_nodes,
                threads=threads,
                kv_type=settings.kv_type,
                texts=settings.sequences,
            )
            return replace(
                survey.bytes_of(asked),
                branch_bytes=BRANCH_BYTES,
                cell_bytes=CELL_BYTES,
                scratch=scratch_bytes(file.spec, asked),
            )

        yield ask


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
