"""The planner's questions put to llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from edgespec.backends.llamacpp.model import ContextSettings
from edgespec.backends.llamacpp.probe import probed
from edgespec.backends.llamacpp.remote.placing import Placing
from edgespec.backends.llamacpp.survey import Survey, context_settings
from edgespec.memory.plan.external_engine import Ask, EngineBytes
from edgespec.memory.plan.placement import Device
from edgespec.memory.plan.settings import Settings
from edgespec.models.file import ModelFile
from edgespec.models.spec import ModelSpec
from edgespec.system.shared_pages import counts_once

BRANCH_BYTES = 48
"""Of each position for each sequence that shares it: a node of a set in the heap."""
CELL_BYTES = 52 + 2 * BRANCH_BYTES
"""Of each position: what is noted of it, and its nodes of two sets more."""
_CELLS_AT_A_TIME = 256


@contextmanager
def ask_engine(
    file: ModelFile,
    devices: Sequence[Device] = (),
    *,
    mapped: bool = False,
    layers: int | None = None,
    cpu_moe: int | None = 0,
) -> Iterator[Ask]:
    """Ask what sessions on a file would hold, with layers on devices where there are any.

    With `mapped` weights are used where they lie, with `layers` they are another session's pages.
    The experts of `cpu_moe` layers stay in this process, None lets sizes decide.

    Raises ModelFileError, BackendError.
    """
    verdict = probed()
    verdict.require()
    extra = verdict.extra_buffers and not mapped and layers is None
    spec = file.spec if layers is None else file.spec.first_layers(layers)
    loading = 0 if mapped or layers is not None else None
    weights = 0 if layers is not None and counts_once() else None
    with Survey(file.path, extra_buffers=extra, layers=layers, offloads=bool(devices)) as survey:

        def told(settings: Settings, threads: int) -> EngineBytes:
            return survey.bytes_of(context_settings(settings, threads))

        def with_the_rest(ask: Ask) -> Ask:
            def asked(settings: Settings, threads: int) -> EngineBytes:
                found = ask(settings, threads)
                return replace(
                    found,
                    branch_bytes=BRANCH_BYTES,
                    cell_bytes=CELL_BYTES,
                    scratch=scratch_bytes(spec, context_settings(settings, threads)),
                    weights=found.weights if weights is None else weights,
                    loading=loading,
                )

            return asked

        if not devices:
            yield with_the_rest(told)
            return
        with Placing(file, devices, survey, cpu_moe) as placing:
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
