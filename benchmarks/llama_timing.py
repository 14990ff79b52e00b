"""llama.cpp in a process of its own, timed from within: forward passes, decoding, prefill.

A child process, so that the two engines' thread pools never share one, and a crash of a build that
does not suit the processor is told as that.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import numpy as np

REPEATS = 5
_ENVIRONMENT = dict(os.environ)
"""As the user set it: EdgeSpec's own thread settings, made later, are not for llama.cpp."""


class LlamaProcess:
    """One model open in llama.cpp; answers are lists of seconds. A context manager."""

    def __init__(self, model: Path, threads: int, room: int) -> None:
        request = json.dumps({"model": str(model), "threads": threads, "room": room})
        self._child = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), request],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self.build: str = self._answer()["build"]

    def forward(self, n: int, past: int) -> list[float]:
        return self._ask({"do": "forward", "n": n, "past": past})

    def prefill(self, n: int) -> list[float]:
        return self._ask({"do": "prefill", "n": n, "past": 0})

    def decode(self, n: int, past: int) -> list[float]:
        return self._ask({"do": "decode", "n": n, "past": past})

    def _ask(self, question: dict[str, Any]) -> list[float]:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(question) + "\n")
        self._child.stdin.flush()
        seconds: list[float] = self._answer()["seconds"]
        return seconds

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            code = self._child.wait()
            what = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise SystemExit(f"llama.cpp ended with {what}; its last words are above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Server:
    """The child's side: one context, sequences that start anew with each question."""

    def __init__(self, request: dict[str, Any]) -> None:
        import llama_cpp as llama

        self.llama: Any = llama
        self._silence = llama.llama_log_callback(lambda level, text, data: None)
        llama.llama_log_set(self._silence, ctypes.c_void_p(0))
        llama.llama_backend_init()
        params = llama.llama_model_default_params()
        params.n_gpu_layers = 0
        model = llama.llama_model_load_from_file(request["model"].encode(), params)
        if not model:
            raise SystemExit(f"llama.cpp cannot load {request['model']}")
        settings = llama.llama_context_default_params()
        settings.n_ctx = request["room"]
        settings.n_batch = settings.n_ubatch = 512
        settings.n_threads = settings.n_threads_batch = request["threads"]
        self.context = llama.llama_init_from_model(model, settings)
        if not self.context:
            raise SystemExit("llama.cpp cannot make a context")
        self.vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
        self.memory = llama.llama_get_memory(self.context)
        self.batch = llama.llama_batch_init(512, 0, 1)
        self.build = llama.llama_print_system_info().decode().strip()

    def answer(self, question: dict[str, Any]) -> list[float]:
        n, past = question["n"], question["past"]
        self.llama.llama_memory_seq_rm(self.memory, 0, 0, -1)
        for start in range(0, past, 512):
            self._pass(range(start, min(start + 512, past)), last_only=True)
        if question["do"] == "prefill":
            return [self._pass(range(n), last_only=True)]
        if question["do"] == "decode":
            return [self._decode(n, past)]
        seconds = []
        for _ in range(REPEATS):
            self.llama.llama_memory_seq_rm(self.memory, 0, past, -1)
            seconds.append(self._pass(range(past, past + n), last_only=False))
        return seconds[1:]

    def _pass(self, places: range, *, last_only: bool) -> float:
        """Seconds of one llama_decode over these positions."""
        batch = self.batch
        batch.n_tokens = len(places)
        for row, place in enumerate(places):
            batch.token[row] = 3 + (37 * place + 5) % (self.vocab_size - 3)
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


def _serve() -> None:
    # Answers own the real standard output; whatever the library prints goes to standard error.
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    server = _Server(json.loads(sys.argv[1]))
    print(json.dumps({"build": server.build}), file=pipe, flush=True)
    for line in sys.stdin:
        print(json.dumps({"seconds": server.answer(json.loads(line))}), file=pipe, flush=True)


if __name__ == "__main__":
    _serve()
