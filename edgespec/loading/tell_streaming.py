"""What a plan that reads weights from disk says: the disk's speed, and the tokens to expect."""

from __future__ import annotations

from dataclasses import replace

from edgespec.control.curve_cache import streamed_seconds
from edgespec.control.estimated_curve import estimated_curve, memory_speed, read_bytes
from edgespec.memory.plan.plan import Plan
from edgespec.memory.plan.streaming import StreamableWeights, Streaming
from edgespec.models.file import ModelFile
from edgespec.system.size import GIB, format_size

_LEAST_S = 1e-12
"""Of reading a byte, where replies found nothing to read."""


def with_disk_speed(plan: Plan, file: ModelFile) -> Plan:
    """The plan with the disk's speed, as replies found it or else as measured now, and a sentence
    about what comes of it.
    """
    streaming = plan.streaming
    if streaming is None:
        return plan
    tensors = tuple(file.tensors.values())
    weights = StreamableWeights(file.spec, tensors)
    computing = estimated_curve("native", read_bytes(file.spec, tensors), 1, memory_speed(plan))
    seen = streamed_seconds(file.path, plan)
    if seen:
        nearest = min(seen, key=lambda size: abs(size - streaming.read_bytes))
        computing = {1: min(computing[1], seen[nearest])}
        reading_s = seen[nearest] - (computing[1] if streaming.num_experts else 0.0)
        speed = 1.0 / max(reading_s / max(nearest, 1), _LEAST_S)
        how = ", as in earlier replies"
    else:
        from edgespec.backends.native.streaming.disk_speed import disk_bytes_per_s

        speed = disk_bytes_per_s(file.path)
        how = f" at {speed / 1e9:.2f} GB/s, as measured"

    def tokens_per_second(held: Streaming) -> float:
        return 1.0 / replace(held, disk_bytes_per_s=speed).curve(computing)[1]

    now = replace(streaming, disk_bytes_per_s=speed)
    more = weights.within(now.spare_bytes + GIB)
    assert more is not None
    sentence = (
        f"{_told(now)}{how}: about {tokens_per_second(now):.2g} tokens/s without drafts; 1 GiB "
        f"more memory would bring {tokens_per_second(more):.2g}"
    )
    return replace(plan, streaming=now).with_notes(sentence)


def _told(now: Streaming) -> str:
    size = format_size(now.read_bytes)
    if not now.num_experts:
        return f"weights do not fit: every pass reads {size} of them from disk"
    return (
        f"weights do not fit: {now.expert_slots} of {now.num_experts} experts are held, and a "
        f"token that uses them evenly reads {size} from disk"
    )
