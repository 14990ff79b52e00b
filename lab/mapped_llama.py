"""llama.cpp on a mapped file, fed tokens that are given.

Weights stay as they are in the file (nothing is repacked, which would need memory of its own), so
that the kernel may drop any page and read it again: this is how llama.cpp runs what does not fit.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

import llama_cpp as llama

_BATCH = 64


class Mapped:
    """One model and context; closed with the process."""

    def __init__(self, model: str, threads: int, context: int) -> None:
        self._silence = llama.llama_log_callback(lambda *_: None)
        llama.llama_log_set(self._silence, ctypes.c_void_p(0))
        llama.llama_backend_init()
        params: Any = llama.llama_model_default_params()
        params.n_gpu_layers, params.use_extra_bufts = 0, False
        params.load_mode = llama.LLAMA_LOAD_MODE_MMAP
        self._model = llama.llama_model_load_from_file(model.encode(), params)
        settings: Any = llama.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = context, _BATCH, _BATCH
        settings.n_threads = settings.n_threads_batch = threads
        self._context = llama.llama_init_from_model(self._model, settings) if self._model else None
        if not self._context:
            raise SystemExit(f"llama.cpp cannot open {model}")

    def feed(self, ids: list[int]) -> float:
        """Seconds of one pass over these tokens."""
        start = time.perf_counter()
        tokens = (ctypes.c_int32 * len(ids))(*ids)
        if llama.llama_decode(self._context, llama.llama_batch_get_one(tokens, len(ids))):
            raise SystemExit("llama_decode failed")
        llama.llama_synchronize(self._context)
        return time.perf_counter() - start


def main() -> None:
    """Reads {"model", "threads", "context", "prompt", "reply"}; prints the seconds of each token of
    the reply but the last, which nothing follows.
    """
    asked = json.load(sys.stdin)
    peer = Mapped(asked["model"], asked["threads"], asked["context"])
    for first in range(0, len(asked["prompt"]), _BATCH):
        peer.feed(asked["prompt"][first : first + _BATCH])
    print(json.dumps([peer.feed([token]) for token in asked["reply"][:-1]]))


if __name__ == "__main__":
    main()
