"""One sentence for each choice of a plan: what was chosen, and why not more."""

from __future__ import annotations

from edgespec.memory.plan.settings import Limits, Settings
from edgespec.models.spec import ModelSpec
from edgespec.system.hardware import Hardware
from edgespec.system.size import format_size

_RECURRENT = "1 node a pass, no drafting: the model's recurrent state cannot take drafts back"


def reasons(spec: ModelSpec, limits: Limits, chosen: Settings, hardware: Hardware) -> list[str]:
    """The sentences, in the order of the levers people know best."""
    told = [_context(spec, limits, chosen)]
    if chosen.sequences > 1:
        each = f"each has {chosen.context} tokens"
        told.append(f"{chosen.sequences} texts at once: as asked; {each}")
    if chosen.kv_type != "f16":
        told.append(_kv_type(limits, chosen))
    fewer = chosen.prefill_chunk < limits.wished.prefill_chunk
    told.append(_RECURRENT if spec.recurrent else _nodes(limits, chosen))
    told.append(f"prefill: {chosen.prefill_chunk} tokens a pass{', fewer, to fit' * fewer}")
    told.append(_threads(limits, chosen, hardware))
    return told


def _context(spec: ModelSpec, limits: Limits, chosen: Settings) -> str:
    if "context" in limits.pinned:
        return f"context {chosen.context}: as asked"
    if chosen.context < limits.wished.context:
        return (
            f"context {chosen.context}: {limits.wished.context} does not fit; more memory or "
            "a smaller model gives more"
        )
    if chosen.context < spec.context_length:
        return (
            f"context {chosen.context}: enough for most work; --context takes up to "
            f"{spec.context_length}"
        )
    return f"context {chosen.context}: all the model was trained for"


def _kv_type(limits: Limits, chosen: Settings) -> str:
    if chosen.kv_type == "q4":
        return "KV q4: as asked; a bit over a quarter of f16's memory, and the text differs"
    if "kv_type" in limits.pinned:
        return "KV int8: as asked; half the memory of f16"
    return (
        "KV int8: half the memory of f16, which would not leave as much context; the text may "
        "differ from f16's, and --kv-type f16 keeps that"
    )


def _nodes(limits: Limits, chosen: Settings) -> str:
    if chosen.max_nodes == chosen.sequences:
        why = "as asked" if limits.wished.max_nodes == chosen.sequences else "nothing else fits"
        node = "1 node" if chosen.sequences == 1 else "1 node a text"
        return f"{node} a pass, no drafting: {why}"
    each = "" if chosen.sequences == 1 else " for each text"
    stores = f"drafters keep at most {format_size(chosen.drafter_bytes)}{each}"
    if "max_nodes" in limits.pinned:
        return f"up to {chosen.max_nodes} nodes a pass: as asked; {stores}"
    fewer = chosen.max_nodes < limits.wished.max_nodes
    why = "fewer, to fit" if fewer else "where speed levels off"
    return f"up to {chosen.max_nodes} nodes a pass: {why}; {stores}"


def _threads(limits: Limits, chosen: Settings, hardware: Hardware) -> str:
    start = f"{chosen.threads} thread{'' if chosen.threads == 1 else 's'}"
    if "threads" in limits.pinned:
        return f"{start}: as asked"
    if chosen.threads < limits.wished.threads:
        return f"{start}: fewer than the {limits.wished.threads} cores, to fit"
    if chosen.threads < hardware.allowed_physical:
        return f"{start}: the control group allows {hardware.cpu_quota:g} processors"
    return f"{start}: one for each physical core this process may use"
