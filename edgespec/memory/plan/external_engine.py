"""Where every byte of a session on an external engine goes; the engine itself tells most."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from edgespec.memory.plan import calibration
from edgespec.memory.plan.calibration import Runtime
from edgespec.memory.plan.footprint import tokenizer_bytes
from edgespec.memory.plan.placement import DevicePart
from edgespec.memory.plan.plan import Footprint, FootprintItem
from edgespec.memory.plan.settings import Settings
from edgespec.models.spec import ModelSpec, TensorInfo, TensorType
from edgespec.system.records import dataclass
from edgespec.system.size import MIB, format_size

_FLOATS = (TensorType.F32, TensorType.F16, TensorType.BF16)
SESSION_BYTES = 10 * MIB
"""Graphs and cells of the engine, text, statistics, library pages that come back while working."""
KERNELS_KEPT = 0.75
"""Of what all kernels keep, what those that only decode do: measured 7.3 of 10 MiB."""


@dataclass(frozen=True, slots=True)
class EngineBytes:
    """What an engine says that it would hold, in bytes."""

    library: int = 0
    vocabulary: int = 0
    cache: int = 0
    compute: int = 0
    copies_head: bool = False
    """Weights are repacked, so an output head tied to the embedding is held beside it."""
    name: str = "llama.cpp"
    weights: int | None = None
    """None: as much as the file's tensors."""
    loading: int | None = None
    """What opening holds beyond the weights; None: the largest tensor."""
    kv_type: str = ""
    """How it keeps keys and values, where that is not for us to choose."""
    branch_bytes: int = 0
    """Per position of a sequence, for each node of a pass but its root."""
    cell_bytes: int = 0
    """Per position of all sequences, beside its keys and values."""
    scratch: int = 0
    """What it multiplies in, where that is not part of what it tells."""
    read_tensors: int = 1
    """Copies of a tensor while it is read: two where it is sent on to a device."""
    provider: int = 0
    """Of what computes in its place: libraries, compiled graphs, copies of weights."""
    process: int = 0
    """Of a process that the engine has for itself, what it holds before the engine."""
    devices: tuple[DevicePart, ...] = ()
    """What other devices would hold; the rest here is this process's alone."""


Ask = Callable[[Settings, int], EngineBytes]
"""What an engine would hold with these settings and this many threads."""


def external_footprint(
    spec: ModelSpec,
    tensors: Iterable[TensorInfo],
    settings: Settings,
    engine: EngineBytes,
    *,
    drafters: Mapping[str, int],
    runtime: Runtime,
    datastore_bytes: int = 0,
    draft_model_bytes: int = 0,
    draft_loading_bytes: int = 0,
) -> Footprint:
    """Itemise the peak of a session, in bytes; `drafters` are the caps of the stores by name."""
    tensors = tuple(tensors)
    threads = settings.threads
    base = runtime.interpreter_bytes() + runtime.libraries_bytes()
    kernels = runtime.kernels_bytes()
    if not draft_model_bytes:  # a draft model runs on all of them
        kernels = int(kernels * KERNELS_KEPT)
    weights = _weights_bytes(spec, tensors, engine)
    kv_type = engine.kv_type or settings.kv_type
    positions = settings.sequences * settings.context
    sequences = _num_branches(settings)
    rows = sequences + 1
    branches = _branches_bytes(settings, engine)
    choosing = calibration.SAMPLING_BYTES_PER_TOKEN + 8 * (settings.sequences - 1)  # a heap each
    held = [
        FootprintItem("interpreter", base, "with its libraries, measured"),
        FootprintItem("compiled kernels", kernels, "for decoding, measured"),
        FootprintItem(engine.name, engine.library, "the library, measured"),
        FootprintItem("vocabulary", engine.vocabulary, f"{engine.name}'s, measured"),
        FootprintItem("tokenizer", tokenizer_bytes(spec.vocab_size), f"{spec.vocab_size} tokens"),
        FootprintItem("weights", weights, _weights_note(engine), exact=True),
        FootprintItem("KV cache", engine.cache, f"{positions} positions, {kv_type}", True),
        FootprintItem("activations", engine.compute, f"{engine.name}'s compute buffer", True),
        FootprintItem("logits", 4 * spec.vocab_size * rows, f"{rows} rows"),
        FootprintItem("scratch", engine.scratch, f"for {engine.name}'s products"),
        FootprintItem("branches", branches, f"{sequences} beside the sequence"),
        FootprintItem("sampling", spec.vocab_size * choosing),
        *(
            FootprintItem(name, settings.sequences * size, "limit")
            for name, size in drafters.items()
        ),
        FootprintItem("session", SESSION_BYTES, "graphs, cells, text, library pages"),
        FootprintItem("threads", (threads - 1) * calibration.THREAD_BYTES, f"{threads - 1} more"),
    ]
    if engine.provider:
        held.append(
            FootprintItem("provider", engine.provider, "its library, code and copies, measured")
        )
    if shared := sum(part.total_bytes for part in engine.devices if part.shared):
        held.append(FootprintItem("GPU", shared, "what it holds of this memory"))
    if engine.process:
        held.append(FootprintItem("isolation", engine.process, "a process of its own, shared rows"))
    if datastore_bytes:
        held.append(FootprintItem("datastore", datastore_bytes, "resident at a time"))
    if draft_model_bytes:
        held.append(FootprintItem("draft model", draft_model_bytes, "weights, KV cache, scratch"))
    total = sum(item.size_bytes for item in held)
    loading = max(loading_bytes(tensors, engine), draft_loading_bytes)
    after = total - base - kernels - engine.library - engine.vocabulary - weights
    after -= engine.provider
    start_up = max(0, runtime.peak_bytes() - total)
    return Footprint(
        (
            *held,
            FootprintItem(
                "loading", max(0, loading - after), "a tensor being read, in excess of the above"
            ),
            FootprintItem("start-up", start_up, "compiler, in excess of the above"),
        )
    )


def _weights_note(engine: EngineBytes) -> str:
    experts = sum(part.experts_bytes for part in engine.devices)
    more = f", {format_size(experts)} of it experts of layers on devices" if experts else ""
    return f"one copy{more}"


def engine_bytes(
    spec: ModelSpec, tensors: Iterable[TensorInfo], settings: Settings, engine: EngineBytes
) -> tuple[int, int]:
    """What a draft model holds on an external engine, besides the library and all that is ours:
    once it is loaded, and to work with.
    """
    tensors = tuple(tensors)
    branches = _num_branches(settings)
    used = engine.cache + engine.compute + engine.scratch + 4 * spec.vocab_size * (branches + 1)
    used += _branches_bytes(settings, engine)
    return engine.vocabulary + _weights_bytes(spec, tensors, engine), used


def _num_branches(settings: Settings) -> int:
    """Sequences besides the first: nodes, and texts."""
    return settings.max_nodes - 1 + (settings.sequences if settings.sequences > 1 else 0)


def _branches_bytes(settings: Settings, engine: EngineBytes) -> int:
    """Tables of positions and of the sequences that share them."""
    branches = (settings.max_nodes - 1) * settings.context * engine.branch_bytes
    return branches + settings.sequences * settings.context * engine.cell_bytes


def _weights_bytes(spec: ModelSpec, tensors: Iterable[TensorInfo], engine: EngineBytes) -> int:
    tensors = tuple(tensors)
    weights = engine.weights
    if weights is None:
        weights = sum(tensor.size_bytes for tensor in tensors)
    if engine.copies_head and spec.tied_embeddings:
        weights += sum(
            tensor.size_bytes
            for tensor in tensors
            if tensor.name == "token_embd.weight" and tensor.type not in _FLOATS
        )
    return weights


def loading_bytes(tensors: Iterable[TensorInfo], engine: EngineBytes) -> int:
    """What an engine holds beyond the weights while it loads them."""
    if engine.loading is not None:
        return engine.loading
    return engine.read_tensors * max((tensor.size_bytes for tensor in tensors), default=0)
