"""Where every byte of a native session goes: the items of a footprint.

The exact items are what the backend allocates and can be held to (`native_sizes.py`); the others
are calibrated (`calibration.py`). A session has three peaks: starting up (imports and kernels, no
weights yet; a first start's compiler included), loading (weights, and the rows being read) and
running (weights, KV, scratch). The items sum to the largest: those of running in full, then what
the other two need on top.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from edgespec.memory.plan import calibration
from edgespec.memory.plan.calibration import Runtime
from edgespec.memory.plan.head_sizes import HEAD_ITEM, KEPT_STATES
from edgespec.memory.plan.kv_sizes import KV_BLOCK, kept_positions, kv_bytes
from edgespec.memory.plan.native_sizes import (
    activation_bytes,
    adapter_bytes,
    loading_bytes,
    logits_bytes,
    scratch_bytes,
    weights_bytes,
)
from edgespec.memory.plan.plan import Footprint, FootprintItem
from edgespec.memory.plan.settings import Settings
from edgespec.memory.plan.state_layout import (
    CHECKPOINT_EVERY,
    STATES_ITEM,
    has_states,
    most_checkpoints,
    num_states,
    states_bytes,
)
from edgespec.memory.plan.streaming import READ_THREADS, STREAM_ITEM, Streaming
from edgespec.models.layers import Moe
from edgespec.models.spec import ModelSpec, TensorInfo
from edgespec.system.size import format_size

ADAPTER_ITEM = "early-exit adapter"


def native_footprint(
    spec: ModelSpec,
    tensors: Iterable[TensorInfo],
    settings: Settings,
    *,
    drafters: Mapping[str, int],
    runtime: Runtime,
    datastore_bytes: int = 0,
    draft_model_bytes: int = 0,
    draft_loading_bytes: int = 0,
    adapter: tuple[TensorInfo, ...] = (),
    head_bytes: int = 0,
    waiting_bytes: int = 0,
    streaming: Streaming | None = None,
) -> Footprint:
    """Itemise the peak of a native session, in bytes.

    `runtime` is how far the process has started, `drafters` the cap of each store by its item's
    name for each sequence, `datastore_bytes` what is resident of a mapped file. Items and their
    formulas: interpreter
    (resident now, less library pages that go), libraries and compiled kernels (measured,
    `calibration.py`), tokenizer (`tokenizer_bytes`), weights, KV cache, activations, node scratch
    and logits (`native_sizes.py`), sampling (24 bytes a token of the vocabulary), stores (their
    caps), session and thread stacks (measured), allocator slack (1 % of all that is not weights or
    measured). Raises UnsupportedModelError.
    """
    tensors = tuple(tensors)
    context, kv_type, sequences = settings.context, settings.kv_type, settings.sequences
    max_nodes, prefill_chunk, threads = settings.max_nodes, settings.prefill_chunk, settings.threads
    rows = max(max_nodes, prefill_chunk)
    started = threads + (READ_THREADS if streaming else 0)
    nodes = f"{max_nodes} node{'' if max_nodes == 1 else 's'}"
    times = "" if sequences == 1 else f"{sequences} x "
    choosing = calibration.SAMPLING_BYTES_PER_TOKEN + 8 * (sequences - 1)  # a heap each
    kernels = _kernels_bytes(runtime, drafters, spec, head_bytes > 0)
    has_windows = any(kept_positions(own, context, rows) < context for own in spec.attentions)
    steady = [
        FootprintItem("interpreter", runtime.interpreter_bytes(), "resident now, measured"),
        FootprintItem("libraries", runtime.libraries_bytes(), "NumPy, Numba and LLVM, measured"),
        FootprintItem("compiled kernels", kernels, "measured"),
        FootprintItem("tokenizer", tokenizer_bytes(spec.vocab_size), f"{spec.vocab_size} tokens"),
        *_weights(tensors, spec, streaming),
    ]
    running = [
        FootprintItem(
            "KV cache",
            sequences * kv_bytes(spec, context, kv_type, rows),
            f"{times}{-(-context // KV_BLOCK)} x {KV_BLOCK} positions, {kv_type}"
            + ", less for windows" * has_windows,
            exact=True,
        ),
        *_states(spec, settings),
        FootprintItem(
            "activations",
            activation_bytes(spec, rows, kv_type, sequences),
            f"{rows} rows per pass",
            exact=True,
        ),
        FootprintItem(
            "node scratch",
            scratch_bytes(spec, context, max_nodes, prefill_chunk, threads, sequences),
            f"attention of {nodes}, tree tables",
            exact=True,
        ),
        FootprintItem("logits", logits_bytes(spec, max_nodes), f"rows of {nodes}", exact=True),
        FootprintItem("sampling", spec.vocab_size * choosing),
        *(
            FootprintItem(name, sequences * size, f"{times}limit")
            for name, size in drafters.items()
        ),
        FootprintItem("session", calibration.SESSION_BYTES, "text, templates, library pages"),
        FootprintItem("thread stacks", started * calibration.THREAD_BYTES, f"{started} + 1"),
    ]
    if datastore_bytes:
        running.append(FootprintItem("datastore", datastore_bytes, "resident at a time"))
    if draft_model_bytes:
        running.append(
            FootprintItem("draft model", draft_model_bytes, "weights, KV cache, scratch")
        )
    if head_bytes:
        note = "weights, KV cache, scratch, hidden states"
        running.append(FootprintItem(HEAD_ITEM, head_bytes, note, exact=True))
        note = f"{times}{KEPT_STATES} positions that the head has not read"
        running.append(FootprintItem("waiting states", waiting_bytes, note))
    if adapter:
        size, exits = adapter_bytes(adapter), f"{len(adapter)} exit{'s' if adapter[1:] else ''}"
        running.append(FootprintItem(ADAPTER_ITEM, size, exits, exact=True))
    held, used = _sum(steady), _sum(running)
    slack = FootprintItem("allocator slack", int(used * calibration.SLACK))
    used += slack.size_bytes
    loading = max(0, loading_bytes(tensors) - used, draft_loading_bytes - used)
    startup = max(0, runtime.peak_bytes() - held - used - loading)
    extra = [
        FootprintItem("loading", loading, "rows of the file, in excess of the above"),
        FootprintItem("start-up", startup, _startup_note(runtime)),
    ]
    return Footprint((*steady, *running, slack, *extra))


def _weights(
    tensors: tuple[TensorInfo, ...], spec: ModelSpec, streaming: Streaming | None
) -> Iterator[FootprintItem]:
    """What stays in memory of them, and what the rest is read into."""
    size = weights_bytes(tensors, spec)
    if streaming is None:
        yield FootprintItem("weights", size, "repacked", exact=True)
        return
    left_out = streaming.on_disk_bytes
    note = f"repacked; {format_size(left_out)} more are on disk"
    yield FootprintItem("weights", size - left_out, note, exact=True)
    yield FootprintItem(STREAM_ITEM, streaming.size_bytes, streaming.note, exact=True)


def _states(spec: ModelSpec, settings: Settings) -> list[FootprintItem]:
    """What sequences hold of recurrent layers, if there are any."""
    if not has_states(spec):
        return []
    kept = settings.sequences, settings.checkpoints
    note = f"{num_states(*kept)}, to return to one every {CHECKPOINT_EVERY} positions"
    if settings.checkpoints < most_checkpoints(settings.context):
        note = f"{num_states(*kept)}, fewer to return to the further back"
    return [FootprintItem(STATES_ITEM, states_bytes(spec, *kept), note, exact=True)]


def tokenizer_bytes(vocab_size: int) -> int:
    """Tokenizer of a vocabulary: a constant and a measured number of bytes per token."""
    return calibration.TOKENIZER_BYTES + vocab_size * calibration.TOKENIZER_BYTES_PER_TOKEN


def _kernels_bytes(
    runtime: Runtime, drafters: Mapping[str, int], spec: ModelSpec, has_head: bool
) -> int:
    """Kernels of a session, of each drafter beyond the two built in, of experts, of states and of
    a draft head.
    """
    more = max(0, sum(name.startswith("drafter ") for name in drafters) - 2)
    parts = [has_head, has_states(spec), any(isinstance(layer.ffn, Moe) for layer in spec.layers)]
    own = 0 if runtime.kernels == "ready" else sum(parts) * calibration.PART_KERNELS_BYTES
    return runtime.kernels_bytes() + own + more * calibration.DRAFTER_KERNELS_BYTES


def _startup_note(runtime: Runtime) -> str:
    work = "compiling once, in a child" if runtime.kernels == "cold" else "loading kernels"
    return f"{work}, in excess of the above"


def _sum(items: Iterable[FootprintItem]) -> int:
    return sum(item.size_bytes for item in items)
