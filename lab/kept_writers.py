"""Engines that write greedy replies to prompts of token ids, past their ends, in each of their ways
to draft.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import edgespec
from edgespec.drafting.registry import DRAFTERS
from edgespec.loading.model_drafters import EARLY_EXIT
from edgespec.models.registry import resolve
from edgespec.system.child_process import PeerError
from lab import foreign_writers, llama_server
from lab.foreign_writers import DRAFT_MODEL, ENGINES, LOOKUP, PLAIN, ROWS, WIDTH, Found, Request
from lab.foreign_writers import compare_rows as compare_rows
from lab.harness import Asked
from lab.llama_writer import LlamaWriter
from tests.support.equality import verify_everything
from tests.support.passes import Passes

OURS, OVER_LLAMA = "EdgeSpec", "EdgeSpec on llama.cpp"
SERVER, LIBRARY = "llama.cpp's server", "llama-cpp-python"
AS_IT_PAYS, EVERY_DRAFT = "as it pays", "every draft"
OURS_MODES: dict[str, dict[str, Any]] = {
    PLAIN: {},
    AS_IT_PAYS: {},
    EVERY_DRAFT: {"drafters": ",".join(DRAFTERS)},
    EARLY_EXIT: {"drafters": ",".join((*DRAFTERS, EARLY_EXIT))},
}
"""What an engine is loaded with; in the last two every draft is verified, paying or not."""
CONTEXT = 1024
Ids = list[int]
Writer = Callable[[str, Sequence[Ids], Asked], Iterator[Found]]
"""The reply to each prompt in one mode: its tokens, and how many of them were accepted drafts."""


def _native(mode: str, prompts: Sequence[Ids], asked: Asked) -> Iterator[Found]:
    return _ours("native", mode, prompts, asked)


def _over_llama(mode: str, prompts: Sequence[Ids], asked: Asked) -> Iterator[Found]:
    return _ours("llamacpp", mode, prompts, asked)


def _ours(backend: str, mode: str, prompts: Sequence[Ids], asked: Asked) -> Iterator[Found]:
    settings: dict[str, Any] = {"threads": asked.threads, "context": CONTEXT}
    if mode == DRAFT_MODEL:
        settings["draft_model"] = asked.draft_model
    else:
        settings |= OURS_MODES[mode]
    with edgespec.load(asked.model, backend=backend, **settings) as engine:
        if mode not in (PLAIN, AS_IT_PAYS):
            verify_everything(engine)
        options: dict[str, Any] = {"max_tokens": asked.tokens, "ignore_eos": True}
        options |= {"temperature": 0.0, "speculation": mode != PLAIN}
        for ids in prompts:
            reply = engine.generate(ids, **options)
            yield {"tokens": reply.token_ids, "accepted": reply.stats.accepted}


def _server(mode: str, prompts: Sequence[Ids], asked: Asked) -> Iterator[Found]:
    arguments = llama_server.arguments(mode, resolve(asked.draft_model))
    with llama_server.server(
        asked.server, resolve(asked.model), arguments, asked.threads
    ) as address:
        for ids in prompts:
            answer = llama_server.ask(address, ids, asked.tokens)
            yield {"tokens": answer.tokens, "accepted": answer.accepted}


def _library(mode: str, prompts: Sequence[Ids], asked: Asked) -> Iterator[Found]:
    drafts = mode != PLAIN
    with LlamaWriter(resolve(asked.model), CONTEXT, asked.threads, lookup=drafts) as writer:
        for ids in prompts:
            yield writer.rows(ids) if mode == ROWS else writer.write(ids, asked.tokens)


def _foreign(engine: str) -> Writer:
    def write(mode: str, prompts: Sequence[Ids], asked: Asked) -> Iterator[Found]:
        model, draft = str(resolve(asked.model)), str(resolve(asked.draft_model))
        folder = str(Path(asked.folder).absolute())
        request = Request(
            engine, mode, model, draft, folder, asked.threads, asked.tokens, list(prompts)
        )
        command = [asked.python, "-P", foreign_writers.__file__]  # no module here hides theirs
        with TemporaryFile() as said, TemporaryFile() as question:
            question.write(json.dumps(request._asdict()).encode())
            question.seek(0)
            with subprocess.Popen(
                command, stdin=question, stdout=subprocess.PIPE, stderr=said
            ) as process:
                assert process.stdout is not None
                try:
                    yield from map(json.loads, process.stdout)
                except BaseException:  # no more is wanted; one that ends by itself says how
                    process.terminate()
                    raise
            if process.wait() > 0:
                said.seek(0)
                lines = said.read().decode(errors="replace").strip().splitlines()
                raise PeerError((lines or [f"exit code {process.returncode}"])[-1])

    return write


def _rows(prompts: Sequence[Ids], asked: Asked) -> Iterator[Found]:
    with edgespec.load(asked.model, threads=asked.threads, context=CONTEXT) as engine:
        passes = Passes(engine.scheduler.target)
        for ids in prompts:
            passes.truncate()
            passes.prefill(ids[:-WIDTH])
            beside = passes.score(ids[-WIDTH:]).copy()
            alone = beside.copy()
            for place, token in enumerate(ids[-WIDTH:]):
                alone[place] = passes.score([token])[0]
                passes.commit(1)
            yield compare_rows(alone, beside)


WRITERS: dict[str, tuple[Writer, tuple[str, ...]]] = {
    OURS: (_native, (AS_IT_PAYS, EVERY_DRAFT, EARLY_EXIT, DRAFT_MODEL)),
    OVER_LLAMA: (_over_llama, (AS_IT_PAYS, EVERY_DRAFT)),
    SERVER: (_server, llama_server.MODES),
    LIBRARY: (_library, (LOOKUP,)),
} | {engine: (_foreign(engine), modes) for engine, (_, modes) in ENGINES.items()}
"""Who writes, and its ways to draft; `plain` is one more."""
ROW_WRITERS: dict[str, Callable[[Sequence[Ids], Asked], Iterator[Found]]] = {
    OURS: _rows,
    LIBRARY: lambda prompts, asked: _library(ROWS, prompts, asked),
} | {
    engine: (lambda prompts, asked, engine=engine: _foreign(engine)(ROWS, prompts, asked))
    for engine in ENGINES
    if engine.startswith("transformers")
}
