"""What a plan that reads weights from disk says: the disk's speed, and the tokens to expect."""

from __future__ import annotations

from dataclasses import replace

from edgespec.control.estimated_curve import estimated_curve, read_bytes
from edgespec.memory.plan.plan import Plan
from edgespec.memory.plan.streaming import StreamableWeights, Streaming
from edgespec.models.file import ModelFile
from edgespec.system.size import GIB, format_size


def with_disk_speed(plan: Plan, file: ModelFile) -> Plan:
    """The plan with the disk's speed, measured now, and a sentence about what comes of it."""
    if plan.streaming is None:
        return plan
    from edgespec.backends.native.streaming.disk_speed import disk_bytes_per_s

    tensors = tuple(file.tensors.values())
    speed = disk_bytes_per_s(file.path)
    weights = StreamableWeights(file.spec, tensors)
    computing = estimated_curve("native", read_bytes(file.spec, tensors), plan.threads, 1)

    def tokens_per_second(streaming: Streaming) -> float:
        return 1.0 / replace(streaming, disk_bytes_per_s=speed).curve(computing)[1]

    now = replace(plan.streaming, disk_bytes_per_s=speed)
    more = weights.within(now.spare_bytes + GIB)
    assert more is not None
    sentence = (
        f"{_told(now)} at {speed / 1e9:.2f} GB/s, as measured: about "
        f"{tokens_per_second(now):.2g} tokens/s without drafts; 1 GiB more memory would bring "
        f"{tokens_per_second(more):.2g}"
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
