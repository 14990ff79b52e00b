"""llama.cpp writing replies that its own grammar of a JSON schema binds, in another process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from edgespec.system.child_process import Child, PeerError, serve
from edgespec.tools.bench.llamacpp import CRASH_ADVICE

LONGEST_S = 20.0
"""Of a reply: its grammars can take seconds for a token."""


class Written(NamedTuple):
    """A reply, and what it took with its prompt."""

    text: str
    num_tokens: int
    ended: bool
    wall_s: float
    processor_s: float


class LlamaGrammars:
    """One model open in `llama_cpp.Llama`, opened again where a grammar brings it down."""

    def __init__(self, model: Path, context: int, threads: int) -> None:
        """Raises PeerError where it is not installed."""
        self._request = {"model": str(model), "context": context, "threads": threads}
        self._child = self._open()

    def _open(self) -> Child:
        return Child(__name__, self._request, name="llama.cpp", crash_advice=CRASH_ADVICE)

    def write(
        self, prompt: Sequence[int], schema: str | None, num_tokens: int, seed: int, **sampling: Any
    ) -> Written | str:
        """A reply, or why there is none."""
        question = {"prompt": list(prompt), "schema": schema, "num_tokens": num_tokens}
        try:
            found = self._child.ask(question | {"seed": seed, "sampling": sampling})
        except PeerError as error:
            self._child.close()
            self._child = self._open()
            return str(error)
        return found if isinstance(found, str) else Written(*found)

    def close(self) -> None:
        self._child.close()


def _start(request: dict[str, Any]) -> tuple[Any, Callable[[Any], Any]]:
    from llama_cpp import Llama, LlamaGrammar

    model = Llama(
        request["model"],
        n_ctx=request["context"],
        n_threads=request["threads"],
        n_threads_batch=request["threads"],
        verbose=False,
    )

    def write(question: dict[str, Any]) -> Any:
        try:
            grammar = None
            if question["schema"] is not None:
                grammar = LlamaGrammar.from_json_schema(question["schema"], verbose=False)
            began = time.perf_counter(), time.process_time()
            model.set_seed(question["seed"])
            model.reset()
            replies = model.generate(question["prompt"], grammar=grammar, **question["sampling"])
            tokens, ended = list[int](), False
            for token in replies:
                if grammar is not None and token == model.token_eos():
                    ended = True
                    break
                tokens.append(token)
                late = time.perf_counter() - began[0] > LONGEST_S
                if len(tokens) == question["num_tokens"] or late:
                    break
            spent = time.perf_counter() - began[0], time.process_time() - began[1]
            replies.close()
        except Exception as error:  # of its translation of schemas, which raises what it likes
            return f"{type(error).__name__}: {error}"
        return model.detokenize(tokens).decode(errors="replace"), len(tokens), ended, *spent

    return None, write


if __name__ == "__main__":
    serve(_start)
