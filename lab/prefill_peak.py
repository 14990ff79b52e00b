"""Is the peak of a long prompt's prefill what was planned, whatever the chunk?

    python -m lab.prefill_peak MODEL [--context 32768] [--chunks 32,128,512,2048] [--kv-type int8]

Each chunk in a process of its own: the plan, the peak of the process while it computes a prompt of
random tokens that fills the context, and what is beside weights, keys and values.
"""

from __future__ import annotations

import time
from typing import Any
from unittest.mock import patch

import numpy as np

import edgespec
from edgespec.memory.plan import settings
from edgespec.system.resident_memory import peak_resident_bytes
from edgespec.system.size import MIB
from lab.harness import MODEL, Asked, Rows, Script, in_process, numbers, option

script = Script(__doc__)


def filled(model: str, context: int, chunk: int, kv_type: str) -> dict[str, Any]:
    """Plan and peak in bytes, processor time in seconds."""
    with (
        patch.object(settings, "DEFAULT_CHUNK", chunk),
        edgespec.load(
            model, backend="native", context=context, kv_type=kv_type, drafters="none"
        ) as engine,
    ):
        plan = engine.plan
        ids = np.random.default_rng(0).integers(3, engine.file.spec.vocab_size, context - 2)
        before = time.process_time()
        engine.scheduler.slots[0].sequence.prefill(ids.astype(np.int32))
        return {
            "chunk": plan.prefill_chunk,
            "planned": plan.planned_bytes,
            "peak": peak_resident_bytes(),
            "weights": plan.footprint["weights"],
            "kv": plan.footprint["KV cache"],
            "seconds": time.process_time() - before,
        }


@script.command(
    MODEL,
    option("--context", type=int, default=32_768),
    option("--chunks", type=numbers, default=[32, 128, 512, 2048]),
    option("--kv-type", default="int8"),
)
def prefill_peak(asked: Asked) -> Rows:
    """Plan and peak by chunk."""
    for chunk in asked.chunks:
        found = in_process(filled, asked.model, asked.context, chunk, asked.kv_type)
        if "error" in found:
            raise SystemExit(found["error"])
        besides = found["planned"] - found["weights"] - found["kv"]
        yield {
            "chunk": found["chunk"],
            "planned MiB": f"{found['planned'] / MIB:.0f}",
            "peak MiB": f"{found['peak'] / MIB:.0f}",
            "peak/planned": f"{found['peak'] / found['planned']:.3f}",
            "weights": f"{found['weights'] / MIB:.0f}",
            "keys and values": f"{found['kv'] / MIB:.0f}",
            "beside": f"{besides / MIB:.0f}",
            "processor s": f"{found['seconds']:.0f}",
        }


if __name__ == "__main__":
    script.run()
