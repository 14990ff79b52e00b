"""llama.cpp in a process of its own: greedy decoding with all logits, losses, and its quantiser.

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
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

TENSOR_TYPES = {
    "F32": 0, "F16": 1, "BF16": 30, "Q8_0": 8, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7,
    "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ4_NL": 20,
    "Q2_K": 10, "Q3_K": 11, "IQ4_XS": 23, "IQ3_S": 21, "MXFP4": 39,
}  # fmt: skip
"""`ggml_type` by name: every matrix gets this type."""
FILE_TYPES = {
    "F32": 0, "F16": 1, "BF16": 32, "Q8_0": 7, "Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9,
    "Q4_K": 14, "Q5_K": 16, "Q6_K": 18, "IQ4_NL": 25, "Q4_K_M": 15, "Q5_K_M": 17,
    "Q2_K": 10, "Q3_K": 12, "IQ4_XS": 30, "IQ3_S": 26, "MXFP4": 38,
}  # fmt: skip
"""`llama_ftype` by name; those that are no tensor type are mixtures of llama.cpp's choice."""
MOST_BATCHED = 512
"""Tokens that it reads at a time where all logits are wanted."""


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
    request: dict[str, Any] = {"model": str(model)}
    request |= {"prompts": [list(map(int, ids)) for ids in prompts]}
    request |= {"num_tokens": num_tokens, "threads": threads}
    with tempfile.TemporaryFile() as output:
        _run("greedy", request, output)
        output.seek(0)
        width = int.from_bytes(output.read(4), "little")
        for _ in prompts:
            rows = (np.frombuffer(output.read(4 * width), np.float32) for _ in range(num_tokens))
            yield ((int(logits.argmax()), logits) for logits in rows)


@dataclass(frozen=True, slots=True)
class Scores:
    """What llama.cpp makes of a text and of its own greedy continuation."""

    tokens: list[int]
    """The text and the continuation."""
    logits: NDArray[np.float32]
    """After each of them, [tokens, vocab]."""


def scores(
    models: Sequence[Path],
    text: Sequence[int],
    num_tokens: int = 0,
    *,
    context: int = 0,
    kv_type: str = "f16",
    threads: int = 1,
) -> Iterator[Scores]:
    """Of each model, the logits of all positions of the text and of `num_tokens` greedy ones.

    `context` is that which llama.cpp is opened with, where a model's rotation depends on it; 0 is
    what the text needs. KV is `f16` or `f32`, flash attention off, and the end of text is not
    obeyed. Raises PeerError, PeerMissing.
    """
    request: dict[str, Any] = {"models": [str(path) for path in models], "text": list(text)}
    request |= {"num_tokens": num_tokens, "kv_type": kv_type, "threads": threads}
    request |= {"context": context or len(text) + num_tokens}
    with tempfile.TemporaryFile() as output:
        _run("scores", request, output)
        output.seek(0)
        for _ in models:
            width = int.from_bytes(output.read(4), "little")
            rows = len(text) + num_tokens
            raw = output.read(4 * rows * width)
            logits = np.frombuffer(raw, np.float32).reshape(rows, width)
            chosen = logits[len(text) - 1 : rows - 1].argmax(axis=1) if num_tokens else []
            yield Scores([*text, *map(int, chosen)], logits)


def losses(
    model: Path, windows: Sequence[Sequence[int]], *, threads: int = 2
) -> NDArray[np.float64]:
    """What llama.cpp loses on every token but the first of each window (all of one length), in
    nats.

    f64 [windows, tokens - 1]; KV is f16, flash attention off. Raises PeerError, PeerMissing.
    """
    request = {"model": str(model), "windows": windows, "threads": threads}
    with tempfile.TemporaryFile() as output:
        _run("losses", request, output)
        output.seek(0)
        return np.frombuffer(output.read(), np.float64).reshape(len(windows), -1)


def cross_entropy(logits: NDArray[np.float32], tokens: Sequence[int]) -> NDArray[np.float64]:
    """Nats by which each row [vocab] f32 misses its token: f64 [n]."""
    rows = logits.astype(np.float64)
    highest = rows.max(axis=1)
    totals = highest + np.log(np.exp(rows - highest[:, None]).sum(axis=1))
    found: NDArray[np.float64] = totals - rows[np.arange(len(rows)), list(tokens)]
    return found


def quantise(source: Path, target: Path, kind: str, *, threads: int = 2) -> None:
    """Write `source` in one of FILE_TYPES by llama.cpp's own quantiser; quantised sources too.

    Raises PeerError, PeerMissing.
    """
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
        [sys.executable, str(Path(__file__).resolve()), command],
        input=json.dumps(request).encode(),
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
    longest = max(map(len, request["prompts"]))
    run = _Run(request, longest, longest + request["num_tokens"])
    output.write(run.vocab_size.to_bytes(4, "little"))
    for prompt in request["prompts"]:
        run.clear()
        ids = prompt
        for _ in range(request["num_tokens"]):
            logits = run.decode(ids)[-1]
            output.write(logits.tobytes())
            ids = [int(logits.argmax())]
        output.flush()


def _serve_scores(request: dict[str, Any], output: IO[bytes]) -> None:
    text, num_tokens = request["text"], request["num_tokens"]
    for model in request["models"]:
        batch = min(len(text), MOST_BATCHED)
        one = request | {"model": model}
        with closing(_Run(one, batch, request["context"], all_logits=True)) as run:
            output.write(run.vocab_size.to_bytes(4, "little"))
            logits = np.empty((1, run.vocab_size), np.float32)
            for start in range(0, len(text), batch):
                logits = run.decode(text[start : start + batch])
                output.write(logits.tobytes())
            for _ in range(num_tokens):
                logits = run.decode([int(logits[-1].argmax())])
                output.write(logits.tobytes())


def _serve_losses(request: dict[str, Any], output: IO[bytes]) -> None:
    length = len(request["windows"][0])
    run = _Run(request, length, length, all_logits=True)
    for window in request["windows"]:
        run.clear()
        output.write(cross_entropy(run.decode(window)[:-1], window[1:]).tobytes())


class _Run:
    """A model open in llama.cpp, which takes up to `batch` tokens at a time."""

    def __init__(
        self, request: dict[str, Any], batch: int, context: int, *, all_logits: bool = False
    ) -> None:
        import llama_cpp as llama

        self.llama: Any = llama
        model = self._open(request["model"])
        self.vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
        params = llama.llama_context_default_params()
        params.n_ctx = context
        params.n_batch = params.n_ubatch = batch
        params.n_threads = params.n_threads_batch = request["threads"]
        params.type_k = params.type_v = TENSOR_TYPES[request.get("kv_type", "f16").upper()]
        params.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_DISABLED  # as in llama_cpp.Llama()
        self.model = model
        self.context = llama.llama_init_from_model(model, params)
        if not self.context:
            raise SystemExit("cannot make a context")
        self.batch = llama.llama_batch_init(batch, 0, 1)
        self.all_logits = all_logits
        self.length = 0

    def _open(self, path: str) -> Any:
        self.llama.llama_backend_init()
        params = self.llama.llama_model_default_params()
        params.n_gpu_layers = 0
        model = self.llama.llama_model_load_from_file(path.encode(), params)
        if not model:
            raise SystemExit(f"cannot load {path}")
        return model

    def close(self) -> None:
        """Let go of the model."""
        self.llama.llama_batch_free(self.batch)
        self.llama.llama_free(self.context)
        self.llama.llama_model_free(self.model)

    def clear(self) -> None:
        """Forget all tokens."""
        self.llama.llama_memory_clear(self.llama.llama_get_memory(self.context), True)
        self.length = 0

    def decode(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits after these tokens: of each, or [1, vocab] of the last."""
        batch = self.batch
        batch.n_tokens = len(ids)
        for row, token in enumerate(ids):
            batch.token[row], batch.pos[row] = token, self.length + row
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, 0
            batch.logits[row] = self.all_logits or row == len(ids) - 1
        if self.llama.llama_decode(self.context, batch):
            raise SystemExit("llama_decode failed")
        self.length += len(ids)
        place = self.llama.llama_get_logits(self.context)
        num_rows = len(ids) if self.all_logits else 1
        return np.ctypeslib.as_array(place, (num_rows, self.vocab_size))


def _serve_quantise(request: dict[str, Any], output: IO[bytes]) -> None:
    import llama_cpp as llama

    params = llama.llama_model_quantize_default_params()
    params.nthread = request["threads"]
    params.ftype = FILE_TYPES[request["kind"]]
    params.allow_requantize = True
    if request["kind"] in TENSOR_TYPES:
        params.pure = True
        params.token_embedding_type = params.output_tensor_type = TENSOR_TYPES[request["kind"]]
    paths = (request["source"].encode(), request["target"].encode())
    if llama.llama_model_quantize(*paths, ctypes.byref(params)):
        raise SystemExit(f"cannot quantise {request['source']} to {request['kind']}")


if __name__ == "__main__":
    # Logits own the real standard output; whatever the library prints goes to standard error.
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    commands = {
        "greedy": _serve_greedy,
        "losses": _serve_losses,
        "quantise": _serve_quantise,
        "scores": _serve_scores,
    }
    commands[sys.argv[1]](json.load(sys.stdin), pipe)
    pipe.flush()
