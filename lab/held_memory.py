"""All that a session can hold, held, to compare plans with; imports what a session does."""

from __future__ import annotations

from typing import Any

import numpy as np

import edgespec
from edgespec.backends.passes import TokenTree
from edgespec.system.resident_memory import peak_resident_bytes, resident_bytes

REPLY_TOKENS = 32
THREADS = 1
"""More would wait for each other where other programs run."""


def fill(model: str, backend: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Plan and peak of one session, in bytes, and what was resident after each of its stages."""
    with edgespec.load(model, backend=backend, threads=THREADS, **settings) as engine:
        stages = {"loaded": resident_bytes()}
        if engine.file.chat_template:
            with engine.chat() as chat:
                chat.send("Hello.", max_tokens=4)
        _fill(engine)
        stages["filled"] = resident_bytes()
        branch(engine)
        stages["branched"] = resident_bytes()
        return {
            "planned": engine.plan.planned_bytes,
            "peak": peak_resident_bytes(),
            "stages": stages,
            "items": {item.name: item.size_bytes for item in engine.plan.footprint.items},
        }


def _fill(engine: edgespec.Engine) -> None:
    """Write a reply at the end of every sequence's context; no two begin alike."""
    words = "The cat sat by the river and told a story about the sea, again and again. "
    line = engine.tokenizer.encode(words, add_bos=False)
    prompt = (line * (engine.plan.context_length // len(line) + 1))[: _room(engine)]
    prompts = [[number + 5, *prompt] for number in range(engine.plan.sequences)]
    options: dict[str, Any] = {"max_tokens": REPLY_TOKENS, "ignore_eos": True, "seed": 1}
    if len(prompts) > 1:
        engine.generate_batch(prompts, **options)
    else:
        engine.generate(prompts[0], **options)


def _room(engine: edgespec.Engine) -> int:
    """Tokens of a prompt that leave room for its first, a reply and a tree."""
    return engine.plan.context_length - 1 - REPLY_TOKENS - engine.plan.max_nodes


def branch(engine: edgespec.Engine) -> None:
    """Score a root with as many children as a pass takes, on top of each sequence."""
    width = engine.plan.max_nodes
    tree = TokenTree(np.arange(width, dtype=np.int32), np.zeros(width, np.int16))
    tree.parents[0] = -1
    if not engine.scheduler.target.capabilities.trees:
        tree = TokenTree.chain(np.arange(width, dtype=np.int32))
    for session in engine.scheduler.slots:
        engine.scheduler.target.forward(((session.sequence, tree),))
        session.sequence.commit([0])
