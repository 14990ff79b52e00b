"""llama.cpp in a process of its own: greedy decoding with all logits, and its quantiser.

A separate process, because some builds of llama.cpp crash on some processors (those compiled for
AMX do on machines that report AMX but do not run it), and a crash must end as an error that names
it. Needs llama-cpp-python; uses its low-level API only.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

FILE_TYPES = {"Q8_0": 7, "Q4_0": 2, "Q4_K": 14, "Q6_K": 18, "F16": 1, "BF16": 32, "F32": 0}
"""`llama_ftype` by tensor type; written "pure", every matrix gets this type."""
TENSOR_TYPES = {"Q8_0": 8, "Q4_0": 2, "Q4_K": 12, "Q6_K": 14, "F16": 1, "BF16": 30, "F32": 0}
"""`ggml_type` by tensor type."""


class PeerError(RuntimeError):
    """llama.cpp refused the work; says why."""


class PeerMissing(PeerError):
    """llama.cpp is not installed, or crashes on this machine."""


def installed() -> bool:
    """Whether llama-cpp-python can be imported."""
    return importlib.util.find_spec("llama_cpp") is not None


def greedy(
    model: Path, prompts: Sequence[Sequence[int]], num_tokens: int, *, threads: int = 2
) -> Iterator[Iterator[tuple[int, NDArray[np.float32]]]]:
    """For each prompt, `num_tokens` pairs of llama.cpp's greedy token and its logits [vocab] f32.

    KV is f16, flash attention off, and the end of text is not obeyed. All runs before the first
    pair is given, so the two engines do not compete; logits wait in a temporary file. Raises
    PeerError, PeerMissing.
    """
    request = {"model": str(model), "prompts": [list(map(int, ids)) for ids in prompts]}
    request |= {"num_tokens": num_tokens, "threads": threads}
    with tempfile.TemporaryFile() as output:
        _run("greedy", request, output)
        output.seek(0)
        width = int.from_bytes(output.read(4), "little")
        for _ in prompts:
            rows = (np.frombuffer(output.read(4 * width), np.float32) for _ in range(num_tokens))
            yield ((int(logits.argmax()), logits) for logits in rows)


def quantise(source: Path, target: Path, kind: str, *, threads: int = 2) -> None:
    """Write `source` with every matrix in one tensor type, by llama.cpp's own quantiser."""
    request = {"source": str(source), "target": str(target), "kind": kind, "threads": threads}
    _run("quantise", request, subprocess.DEVNULL)


def version() -> str:
    """Version of llama-cpp-python."""
    from importlib.metadata import version as installed_version

    return installed_version("llama-cpp-python")


def _run(command: str, request: dict[str, Any], output: IO[bytes] | int) -> None:
    """Run this file as a program to its end; raises PeerError or PeerMissing."""
    if not installed():
        raise PeerMissing("llama-cpp-python is not installed; `pip install llama-cpp-python`")
    found = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), command, json.dumps(request)],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    code, lines = found.returncode, found.stderr.decode(errors="replace").strip().splitlines()
    if code < 0:
        raise PeerMissing(
            f"llama.cpp crashed with {signal.Signals(-code).name}; builds compiled for AMX do on "
            "some processors that report it: build llama-cpp-python with -DGGML_AMX=OFF"
        )
    if code:
        raise PeerError(f"llama.cpp failed: {lines[-1] if lines else f'exit code {code}'}")


def _serve_greedy(request: dict[str, Any], output: IO[bytes]) -> None:
    import llama_cpp as llama

    model = _open(request["model"])
    vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    params = llama.llama_context_default_params()
    longest = max(map(len, request["prompts"]))
    params.n_ctx = longest + request["num_tokens"]
    params.n_batch = params.n_ubatch = longest
    params.n_threads = params.n_threads_batch = request["threads"]
    params.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_DISABLED  # as in llama_cpp.Llama()
    context = llama.llama_init_from_model(model, params)
    if not context:
        raise SystemExit("cannot make a context")
    output.write(vocab_size.to_bytes(4, "little"))
    for prompt in request["prompts"]:
        llama.llama_memory_clear(llama.llama_get_memory(context), True)
        ids = prompt
        for _ in range(request["num_tokens"]):
            array = (ctypes.c_int32 * len(ids))(*ids)
            if llama.llama_decode(context, llama.llama_batch_get_one(array, len(ids))):
                raise SystemExit("llama_decode failed")
            place = llama.llama_get_logits_ith(context, -1)
            logits = np.ctypeslib.as_array(place, (vocab_size,))
            output.write(logits.tobytes())
            ids = [int(logits.argmax())]
        output.flush()


def _open(path: str) -> Any:
    import llama_cpp as llama

    llama.llama_backend_init()
    params = llama.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(path.encode(), params)
    if not model:
        raise SystemExit(f"cannot load {path}")
    return model


def _serve_quantise(request: dict[str, Any], output: IO[bytes]) -> None:
    import llama_cpp as llama

    params = llama.llama_model_quantize_default_params()
    params.nthread = request["threads"]
    params.ftype = FILE_TYPES[request["kind"]]
    params.token_embedding_type = params.output_tensor_type = TENSOR_TYPES[request["kind"]]
    params.allow_requantize = params.pure = True
    paths = (request["source"].encode(), request["target"].encode())
    if llama.llama_model_quantize(*paths, ctypes.byref(params)):
        raise SystemExit(f"cannot quantise {request['source']} to {request['kind']}")


if __name__ == "__main__":
    # Logits own the real standard output; whatever the library prints goes to standard error.
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve = {"greedy": _serve_greedy, "quantise": _serve_quantise}[sys.argv[1]]
    serve(json.loads(sys.argv[2]), pipe)
    pipe.flush()
