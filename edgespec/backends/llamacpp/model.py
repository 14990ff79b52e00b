"""A GGUF file open in llama.cpp, and a context on it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from edgespec.backends.llamacpp.cells import num_sequences
from edgespec.backends.llamacpp.library import Library, version
from edgespec.backends.llamacpp.remote.offload import (
    Devices,
    Offload,
    device_cache_bytes,
    layer_cache_bytes,
)
from edgespec.backends.passes import Progress
from edgespec.errors import BackendError, ModelFileError, UnsupportedModelError
from edgespec.models.gguf.file_source import FileSource
from edgespec.models.gguf.header import read_header
from edgespec.system.records import dataclass

_BUFFER = re.compile(r"(\S+) +(model|compute) buffer size = +([\d.]+) MiB")
_CACHE = re.compile(r"^llama_(?:kv_cache|memory_recurrent)\S*: +size = +([\d.]+) MiB")
_MIB = 1024**2
_PROGRESS_STEPS = 100


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """What a context is made with."""

    context: int
    """Positions of each text."""
    rows: int
    """Most tokens of one pass: a tree, or a chunk of a prompt."""
    nodes: int
    """Most tokens of one pass that have their logits computed; 1 is plain decoding."""
    threads: int
    kv_type: str = "f16"
    gpu_layers: int = 0
    texts: int = 1
    """Most texts at a time."""


def buffers(lines: Iterable[str], kind: Literal["model", "compute"]) -> dict[str, int]:
    """Bytes by buffer ("CPU", "CPU_REPACK", ...), from the library's own log lines.

    They tell MiB with two decimals. Raises BackendError when no line tells it.
    """
    found = [match for line in lines if (match := _BUFFER.search(line)) and match[2] == kind]
    if not found:
        raise _untold(f"{kind} buffer")
    return {match[1]: round(float(match[3]) * _MIB) for match in found}


def cache_bytes(lines: Iterable[str]) -> int:
    """Bytes of keys, values and recurrent states; raises as `buffers` does."""
    found = [match for line in lines if (match := _CACHE.search(line))]
    if not found:
        raise _untold("KV cache")
    return sum(round(float(match[1]) * _MIB) for match in found)


def _untold(what: str) -> BackendError:
    return BackendError(
        f"llama-cpp-python {version()} does not tell the size of its {what}, so no memory budget "
        "can be kept; install version 0.3.36"
    )


class Model:
    """Weights and vocabulary; raises ModelFileError with the library's own words.

    Without `allocate` no tensor is read and nothing can be computed, but contexts still tell what
    they would allocate. `extra_buffers` lets the library repack weights for this processor; with
    `mapped` they are used where the file lies in memory, shared by all that map it. `layers` opens
    the first part of a model split by `models/gguf/splitting.py` as a model of these layers.
    `offload` says what other devices hold; without it they hold nothing.
    """

    def __init__(
        self,
        library: Library,
        path: Path,
        *,
        extra_buffers: bool,
        allocate: bool = True,
        mapped: bool = False,
        layers: int | None = None,
        offload: Offload | None = None,
        progress: Progress | None = None,
    ) -> None:
        api = library.api
        self.library = library
        params = api.llama_model_default_params()
        params.n_gpu_layers = 0
        self.devices = Devices(offload)
        self.devices.apply(api, params)
        # A map would stay resident beside repacked copies.
        params.load_mode = api.LLAMA_LOAD_MODE_MMAP if mapped else api.LLAMA_LOAD_MODE_NONE
        params.use_extra_bufts = extra_buffers and not mapped
        if layers is not None:
            params.kv_overrides = _first_layers(api, path, layers)
        params.no_alloc = not allocate
        self.free_before = self.devices.free_bytes()
        stopped: list[BaseException] = []
        report = _progress_callback(api, progress, stopped)
        params.progress_callback = report
        library.forget()
        self.handle: Any = api.llama_model_load_from_file(str(path).encode(), params)
        if stopped:
            self.close()
            raise stopped[0]
        if not self.handle:
            raise ModelFileError(f"llama.cpp cannot open {path}: {library.complaint()}")
        self.buffers = buffers(library.lines(), "model")
        """Bytes of weights by buffer, all 0 when nothing was allocated."""
        self.vocab: Any = api.llama_model_get_vocab(self.handle)
        self.vocab_size = int(api.llama_vocab_n_tokens(self.vocab))
        self.has_state = bool(
            api.llama_model_is_recurrent(self.handle) or api.llama_model_is_hybrid(self.handle)
        )
        """It keeps a state that cannot forget its last tokens."""
        if api.llama_model_has_encoder(self.handle) or api.llama_model_is_diffusion(self.handle):
            self.close()
            raise UnsupportedModelError(
                f"cannot run {path}: it does not write from left to right (an encoder or a "
                "diffusion model); choose a text generation model"
            )

    def close(self) -> None:
        if self.handle:
            self.library.api.llama_model_free(self.handle)
            self.handle = self.vocab = None


def _first_layers(api: Any, path: Path, layers: int) -> Any:
    """What makes part 1 of a split model a model of its own."""
    with FileSource(path) as source:
        architecture = read_header(source).metadata.get("general.architecture", "")
    values = {f"{architecture}.block_count": layers, "split.count": 0}
    found = (api.llama_model_kv_override * (len(values) + 1))()  # the last one's key stays empty
    for place, (key, value) in zip(found, values.items(), strict=False):
        place.tag, place.key = api.LLAMA_KV_OVERRIDE_TYPE_INT, key.encode()
        place.value.val_i64 = value
    return found


def _progress_callback(api: Any, progress: Progress | None, stopped: list[BaseException]) -> Any:
    """A callback that passes on hundredths; what is raised in it stops loading and is kept."""

    def report(share: float, _: Any) -> bool:
        try:
            if progress is not None:
                progress(int(share * _PROGRESS_STEPS), _PROGRESS_STEPS)
        except BaseException as error:  # nothing may be raised through the library
            stopped.append(error)
        return not stopped

    return api.llama_progress_callback(report)


class Context:
    """KV cache and buffers of one session on a model; raises BackendError."""

    def __init__(self, model: Model, settings: ContextSettings) -> None:
        library, api = model.library, model.library.api
        self.api = api
        library.forget()
        self.handle: Any = api.llama_init_from_model(model.handle, _params(api, settings))
        if not self.handle:
            raise BackendError(
                f"llama.cpp cannot make a context of {settings.context} tokens: "
                f"{library.complaint()}; load with a smaller --context"
            )
        lines = library.lines()
        self.cache_bytes = cache_bytes(lines)
        self.layer_cache_bytes = layer_cache_bytes(lines)
        """Of one layer at most."""
        self.caches = device_cache_bytes(lines)
        self.compute = buffers(lines, "compute")
        """Bytes by buffer."""
        self.compute_bytes = sum(self.compute.values())
        self.memory: Any = api.llama_get_memory(self.handle)

    def close(self) -> None:
        if self.handle:
            self.api.llama_free(self.handle)
            self.handle = self.memory = None


_KV_TYPES = {"f16": "GGML_TYPE_F16", "int8": "GGML_TYPE_Q8_0", "q4": "GGML_TYPE_Q4_0"}
"""Its nearest type of keys and values for each of ours."""


def _params(api: Any, settings: ContextSettings) -> Any:
    params = api.llama_context_default_params()
    params.n_ctx = settings.context * settings.texts
    params.n_batch = params.n_ubatch = settings.rows
    params.n_seq_max = sequences = sum(num_sequences(settings.texts, settings.nodes))
    params.kv_unified = True  # branches share the positions before them
    params.n_outputs_max = params.n_outputs_max_per_seq = max(settings.nodes, sequences)
    params.n_threads = params.n_threads_batch = settings.threads
    params.offload_kqv = params.op_offload = settings.gpu_layers > 0
    quantised = settings.kv_type != "f16"
    params.type_k = params.type_v = getattr(api, _KV_TYPES[settings.kv_type])
    # On processors its flash attention takes 1.3 (256 tokens) to 4 times (2,048) as long for a
    # tree as its plain attention does, but quantised values need it.
    params.flash_attn_type = (
        api.LLAMA_FLASH_ATTN_TYPE_ENABLED if quantised else api.LLAMA_FLASH_ATTN_TYPE_DISABLED
    )
    return params
