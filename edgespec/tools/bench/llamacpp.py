"""llama.cpp on the same file, timed from within: forward passes, decoding, prefill.

Through llama-cpp-python's low-level API, on the processor alone, with f16 KV, in a process of its
own.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from edgespec.system.child_process import Child, serve
from edgespec.tools.bench.curve import token_at, turn

CRASH_ADVICE = (
    "; builds compiled for AMX do where the system refuses it: build llama-cpp-python from source "
    "with CFLAGS and CXXFLAGS set to -mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
)
_BATCH = 512


class LlamaProcess(Child):
    """One model open in llama.cpp; answers are lists of seconds. Raises PeerError."""

    def __init__(self, model: Path, threads: int, room: int) -> None:
        request = {"model": str(model), "threads": threads, "room": room}
        super().__init__(__name__, request, name="llama.cpp", crash_advice=CRASH_ADVICE)
        self.build: str = self.greeting["build"]

    def forward(self, n: int, past: int) -> list[float]:
        """Passes over n tokens on top of `past` others, with logits for all n."""
        return self._seconds("forward", n, past)

    def prefill(self, n: int) -> list[float]:
        """n tokens from an empty cache up to the last one's logits."""
        return self._seconds("prefill", n, 0)

    def decode(self, n: int, past: int) -> list[float]:
        """n greedy tokens on top of `past` others, each fed back."""
        return self._seconds("decode", n, past)

    def _seconds(self, what: str, n: int, past: int) -> list[float]:
        seconds: list[float] = self.ask({"do": what, "n": n, "past": past})
        return seconds


class _Server:
    """The child's side: one context, whose first positions stay from one question to the next."""

    def __init__(self, request: dict[str, Any]) -> None:
        import llama_cpp as llama

        self.llama: Any = llama
        self._silence = llama.llama_log_callback(lambda *_: None)
        llama.llama_log_set(self._silence, ctypes.c_void_p(0))
        llama.llama_backend_init()
        params = llama.llama_model_default_params()
        params.n_gpu_layers = 0
        model = llama.llama_model_load_from_file(request["model"].encode(), params)
        if not model:
            raise SystemExit(f"it cannot load {request['model']}")
        settings = llama.llama_context_default_params()
        settings.n_ctx = request["room"]
        settings.n_batch = settings.n_ubatch = _BATCH
        settings.n_threads = settings.n_threads_batch = request["threads"]
        self.context = llama.llama_init_from_model(model, settings)
        if not self.context:
            raise SystemExit(f"it cannot make a context of {request['room']} tokens")
        self.vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
        self.memory = llama.llama_get_memory(self.context)
        self.batch = llama.llama_batch_init(_BATCH, 0, 1)
        self.filled = 0
        """Positions from the first on that hold the tokens every question starts with."""
        self.has_states = bool(
            llama.llama_model_is_hybrid(model) or llama.llama_model_is_recurrent(model)
        )
        """States can't go back to an earlier position: they are copied at `filled`."""
        self.copy: Any = None

    def answer(self, question: dict[str, Any]) -> list[float]:
        n, past = question["n"], question["past"]
        if question["do"] == "prefill":
            self._keep(0)
            return [self._pass(range(n), last_only=True)]
        self._fill(past)
        if question["do"] == "decode":
            return [self._decode(n, past)]
        return turn(partial(self._forward, n, past))

    def _forward(self, n: int, past: int) -> float:
        self._keep(past)
        return self._pass(range(past, past + n), last_only=False)

    def _fill(self, past: int) -> None:
        self._keep(min(past, self.filled))
        if self.filled == past:
            return
        for start in range(self.filled, past, _BATCH):
            self._pass(range(start, min(start + _BATCH, past)), last_only=True)
        self.filled = past
        if self.has_states:
            size = self.llama.llama_state_seq_get_size(self.context, 0)
            self.copy = (ctypes.c_uint8 * size)()
            self.llama.llama_state_seq_get_data(self.context, self.copy, size, 0)

    def _keep(self, positions: int) -> None:
        if not self.has_states:
            self.llama.llama_memory_seq_rm(self.memory, 0, positions, -1)
            self.filled = min(self.filled, positions)
            return
        self.llama.llama_memory_seq_rm(self.memory, 0, -1, -1)
        if positions == self.filled > 0:
            self.llama.llama_state_seq_set_data(self.context, self.copy, len(self.copy), 0)
        else:
            self.filled = 0

    def _pass(self, places: range, *, last_only: bool) -> float:
        """Seconds of one llama_decode over these positions."""
        batch = self.batch
        batch.n_tokens = len(places)
        for row, place in enumerate(places):
            batch.token[row] = token_at(place, self.vocab_size)
            batch.pos[row] = place
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = 0
            batch.logits[row] = not last_only or row == len(places) - 1
        return self._run()

    def _run(self) -> float:
        start = time.perf_counter()
        if self.llama.llama_decode(self.context, self.batch):
            raise SystemExit("llama_decode failed")
        self.llama.llama_synchronize(self.context)
        return time.perf_counter() - start

    def _decode(self, n: int, past: int) -> float:
        """Seconds of n greedy tokens, each fed back."""
        import numpy as np

        batch, token = self.batch, 5
        start = time.perf_counter()
        for place in range(past, past + n):
            batch.n_tokens = 1
            batch.token[0], batch.pos[0], batch.logits[0] = token, place, True
            batch.n_seq_id[0] = 1
            batch.seq_id[0][0] = 0
            self._run()
            logits = self.llama.llama_get_logits_ith(self.context, -1)
            token = int(np.ctypeslib.as_array(logits, (self.vocab_size,)).argmax())
        return time.perf_counter() - start


def _start(request: dict[str, Any]) -> tuple[dict[str, str], Callable[[Any], Any]]:
    server = _Server(request)
    return {"build": server.llama.llama_print_system_info().decode().strip()}, server.answer


if __name__ == "__main__":
    serve(_start)
