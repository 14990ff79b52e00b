"""One sentence for each choice of a plan: what was chosen, and why not more."""

from __future__ import annotations

from edgespec.memory.plan.settings import Limits, Settings
from edgespec.memory.plan.state_layout import CHECKPOINT_EVERY, has_states, most_checkpoints
from edgespec.models.spec import ModelSpec
from edgespec.system.hardware import Hardware
from edgespec.system.size import format_size

_RECURRENT = "1 node per pass, no drafting: the model's recurrent state cannot be rolled back"


def reasons(
    spec: ModelSpec,
    limits: Limits,
    chosen: Settings,
    hardware: Hardware,
    exact: Settings | None,
    rolls_back: bool = True,
) -> list[str]:
    """The sentences, the settings that people know best first; `exact` is what fits with keys and
    values in f16, `rolls_back` whether the backend can take tokens back.
    """
    found = [_context(spec, limits, chosen)]
    if chosen.sequences > 1:
        each = f"each has a context of {chosen.context} tokens"
        found.append(f"{chosen.sequences} replies at once: as requested; {each}")
    if chosen.kv_type != "f16":
        found.append(_kv_type(limits, chosen, exact))
    if rolls_back and has_states(spec):
        found.append(_checkpoints(chosen))
    fewer = chosen.prefill_chunk < limits.wished.prefill_chunk
    found.append(_nodes(limits, chosen) if rolls_back else _RECURRENT)
    found.append(f"prefill: {chosen.prefill_chunk} tokens per pass{', fewer to fit' * fewer}")
    found.append(_threads(limits, chosen, hardware))
    return found


def _context(spec: ModelSpec, limits: Limits, chosen: Settings) -> str:
    if "context" in limits.pinned:
        return f"context {chosen.context}: as requested"
    if chosen.context < limits.wished.context:
        return (
            f"context {chosen.context}: {limits.wished.context} does not fit; more memory or "
            "a smaller model allows more"
        )
    if chosen.context < spec.context_length:
        return (
            f"context {chosen.context}: enough for most uses; --context takes up to "
            f"{spec.context_length}"
        )
    return f"context {chosen.context}: the longest the model supports"


def _kv_type(limits: Limits, chosen: Settings, exact: Settings | None) -> str:
    if chosen.kv_type == "q4":
        return "KV q4: as requested; a little over a quarter of f16's memory, and the text differs"
    if "kv_type" in limits.pinned:
        return "KV int8: as requested; half the memory of f16"
    if exact is None:
        return "KV int8: f16 does not fit; the text may differ from f16's"
    if exact.context < chosen.context:
        left = f"a context of {exact.context}"
    elif exact.max_nodes < chosen.max_nodes:
        left = f"{exact.max_nodes} node{'' if exact.max_nodes == 1 else 's'} per pass"
    else:
        left = "less for drafting and prefill"
    return (
        f"KV int8: f16 would leave {left}; the text may differ from f16's "
        "(--kv-type f16 avoids that)"
    )


def _checkpoints(chosen: Settings) -> str:
    each = "" if chosen.sequences == 1 else " for each reply"
    kept = f"{chosen.checkpoints} state{'' if chosen.checkpoints == 1 else 's'} set aside{each}"
    if chosen.checkpoints < most_checkpoints(chosen.context):
        return (
            f"{kept}, fewer to fit: after an edit far back, more than {CHECKPOINT_EVERY} tokens "
            "may be read again"
        )
    return f"{kept}: after an edit, at most {CHECKPOINT_EVERY} tokens are read again"


def _nodes(limits: Limits, chosen: Settings) -> str:
    if chosen.max_nodes == chosen.sequences:
        why = "as requested" if limits.wished.max_nodes == chosen.sequences else "nothing more fits"
        node = "1 node" if chosen.sequences == 1 else "1 node per reply"
        return f"{node} per pass, no drafting: {why}"
    each = "" if chosen.sequences == 1 else " for each reply"
    stores = f"drafters use at most {format_size(chosen.drafter_bytes)}{each}"
    if "max_nodes" in limits.pinned:
        return f"up to {chosen.max_nodes} nodes per pass: as requested; {stores}"
    fewer = chosen.max_nodes < limits.wished.max_nodes
    why = "fewer to fit" if fewer else "more would hardly be faster"
    return f"up to {chosen.max_nodes} nodes per pass: {why}; {stores}"


def _threads(limits: Limits, chosen: Settings, hardware: Hardware) -> str:
    start = f"{chosen.threads} thread{'' if chosen.threads == 1 else 's'}"
    if "threads" in limits.pinned:
        return f"{start}: as requested"
    if chosen.threads < limits.wished.threads:
        return f"{start}: fewer than the {limits.wished.threads} cores to fit"
    if (
        hardware.little_cores
        and chosen.threads == hardware.allowed_physical - hardware.little_cores
    ):
        return f"{start}: one per big core; little ones would hold them up"
    if chosen.threads < hardware.allowed_physical:
        return f"{start}: the control group allows {hardware.cpu_quota:g} CPUs"
    return f"{start}: one per physical core available to this process"
