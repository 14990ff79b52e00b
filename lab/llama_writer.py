"""llama.cpp writing replies, with llama-cpp-python's prompt lookup or without, in a process of its
own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edgespec.system.child_process import Child, serve
from edgespec.tools.bench.llamacpp import CRASH_ADVICE
from lab.foreign_writers import WIDTH, Found, compare_rows


class LlamaWriter(Child):
    """One model open in `llama_cpp.Llama`; raises PeerError.

    `lookup` is `LlamaPromptLookupDecoding` with 10 tokens and n-grams of up to 3.
    """

    def __init__(self, model: Path, context: int, threads: int, *, lookup: bool) -> None:
        request = {"model": str(model), "context": context, "threads": threads, "lookup": lookup}
        name = "lab.llama_writer"
        super().__init__(name, request, name="llama.cpp", crash_advice=CRASH_ADVICE)

    def write(self, prompt: Sequence[int], num_tokens: int, temperature: float = 0.0) -> Found:
        """Its tokens, how many of them were accepted drafts, and tokens a second after the first,
        which the prompt's time is in.
        """
        question = {"prompt": list(prompt), "tokens": num_tokens, "temperature": temperature}
        written: Found = self.ask(question)
        return written

    def rows(self, ids: Sequence[int]) -> Found:
        """`compare_rows` of the last tokens; with `lookup` only, which keeps all logits."""
        found: Found = self.ask({"rows": list(ids)})
        return found


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

    def answer(question: dict[str, Any]) -> Found:
        return _rows(model, question["rows"]) if "rows" in question else _write(model, question)

    return None, answer


def _write(model: Any, question: dict[str, Any]) -> Found:
    tokens, passes, start = list[int](), 0, 0.0
    evaluate = type(model).eval

    def counted(batch: Sequence[int]) -> None:
        nonlocal passes
        passes += 1
        evaluate(model, batch)

    model.eval = counted
    model.reset()  # no part of an earlier prompt
    temperature = question["temperature"]
    settings = {"temp": temperature, "top_k": 40 if temperature else 1, "repeat_penalty": 1.0}
    replies = model.generate(question["prompt"], **settings)
    for token in replies:
        tokens.append(int(token))
        start = start or time.perf_counter()
        if len(tokens) == question["tokens"]:
            break
    seconds = time.perf_counter() - start
    replies.close()
    accepted = len(tokens) - passes
    return {"tokens": tokens, "accepted": accepted, "speed": (len(tokens) - 1) / seconds}


def _rows(model: Any, ids: list[int]) -> Found:
    model.reset()
    past = len(ids) - WIDTH
    model.eval(ids[:past])
    model.eval(ids[past:])
    beside = model.scores[past : len(ids)].copy()
    model.n_tokens = past
    for token in ids[past:]:
        model.eval([token])
    return compare_rows(model.scores[past : len(ids)], beside)


if __name__ == "__main__":
    serve(_start)
