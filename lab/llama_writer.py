"""llama.cpp writing greedy replies, with llama-cpp-python's prompt lookup or without, in a process
of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edgespec.system.child_process import Child, serve
from edgespec.tools.bench.llamacpp import CRASH_ADVICE


class LlamaWriter(Child):
    """One model open in `llama_cpp.Llama`; raises PeerError.

    `lookup` is `LlamaPromptLookupDecoding` with 10 tokens and n-grams of up to 3.
    """

    def __init__(self, model: Path, context: int, threads: int, *, lookup: bool) -> None:
        request = {"model": str(model), "context": context, "threads": threads, "lookup": lookup}
        name = "lab.llama_writer"
        super().__init__(name, request, name="llama.cpp", crash_advice=CRASH_ADVICE)

    def write(self, prompt: Sequence[int], num_tokens: int) -> float:
        """Tokens a second after the first, which the prompt's time is in."""
        speed: float = self.ask({"prompt": list(prompt), "num_tokens": num_tokens})
        return speed


def _start(request: dict[str, Any]) -> tuple[Any, Callable[[Any], Any]]:
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    draft = LlamaPromptLookupDecoding(max_ngram_size=3, num_pred_tokens=10)
    model = Llama(
        request["model"],
        n_ctx=request["context"],
        n_threads=request["threads"],
        n_threads_batch=request["threads"],
        draft_model=draft if request["lookup"] else None,
        logits_all=request["lookup"],
        verbose=False,
    )

    def write(question: dict[str, Any]) -> float:
        num_tokens, start = question["num_tokens"], 0.0
        replies = model.generate(question["prompt"], temp=0.0, top_k=1)
        for number, _ in enumerate(replies):
            if number == 0:
                start = time.perf_counter()
            if number == num_tokens - 1:
                break
        seconds = time.perf_counter() - start
        replies.close()
        return float((num_tokens - 1) / seconds)

    return None, write


if __name__ == "__main__":
    serve(_start)
