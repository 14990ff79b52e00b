"""What a plan would take if one of its settings were different."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from edgespec.memory.plan.plan import Alternative
from edgespec.memory.plan.settings import KV_TYPES, SMALLEST_CHUNK, SMALLEST_CONTEXT, Settings
from edgespec.memory.plan.sizing import Sizing


def alternatives(sizing: Sizing, chosen: Settings) -> tuple[Alternative, ...]:
    """The same plan with one change each: half and twice the context, the other KV types, no
    drafting, smaller prefill passes, one thread, the other backend.
    """
    total = sizing.total(chosen)
    found = [
        Alternative(name, option, changed, changed - total)
        for name, option, changed in (*_settings(sizing, chosen), *_backend(sizing, chosen))
    ]
    return tuple(found)


def _settings(sizing: Sizing, chosen: Settings) -> Iterator[tuple[str, str, int]]:
    def change(name: str, option: str, **values: object) -> tuple[str, str, int]:
        return name, option, sizing.total(replace(chosen, **values))  # type: ignore[arg-type]

    for context in (chosen.context // 2, chosen.context * 2):
        if SMALLEST_CONTEXT <= context <= sizing.spec.context_length:
            yield change("context", f"--context {context}", context=context)
    if sizing.backend == "native" and not sizing.spec.keeps_latents:
        for other in KV_TYPES:
            if other != chosen.kv_type:
                yield change("KV type", f"--kv-type {other}", kv_type=other)
    if chosen.max_nodes > chosen.sequences:
        yield change("speculation", "--no-speculation", max_nodes=chosen.sequences, drafter_bytes=0)
    if chosen.prefill_chunk > SMALLEST_CHUNK:
        name = f"prefill chunk of {SMALLEST_CHUNK}"
        yield change(name, "", prefill_chunk=SMALLEST_CHUNK)
    if chosen.threads > 1:
        yield change("threads", "--threads 1", threads=1)


def _backend(sizing: Sizing, chosen: Settings) -> Iterator[tuple[str, str, int]]:
    if sizing.ask is not None:  # the native backend may not be able to compute this model
        return
    other = "reference" if sizing.backend == "native" else "native"
    if other == "native" or chosen.kv_type == "f16":
        total = replace(sizing, backend=other).total(chosen)
        yield "backend", f"--backend {other}", total
