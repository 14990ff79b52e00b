"""One reply of a random model written in ten ways that must all be equal.

Without speculation on one thread from an empty cache; then by the engine's own drafters, by all
drafters there are, and by drafts that know the reply with wrong tokens strewn in, as chains and as
trees; on one thread and two, the prompt in chunks of 16 or 64 or whole; as one of a batch of two to
four; and as turns of a conversation, whose prompts go on with what the cache holds or leave it at
some earlier place, so that keys, values and states are wound back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

import edgespec
from edgespec.drafting.registry import DRAFTERS
from edgespec.engine.engine import Engine
from edgespec.engine.reply import Reply
from edgespec.loading.model_drafters import EARLY_EXIT
from tests.support.equality import Case, compared, verify_everything
from tests.support.random_models.recipe import VOCABULARY_SIZE

CONTEXT = 1024
SEQUENCES = 4
LENGTHS = (70, 12, 150, 40, 280, 24, 100, 560, 33, 200)
"""Tokens of prompts: fewer and more than windows, and than lie between checkpoints of states."""
TEMPERATURES = (0.0, 0.8)
TOKENS = (24, 32, 48)
Ways = dict[str, dict[str, Any]]
"""By a way of writing: whether it was equal, and its numbers."""
ALONE: dict[str, tuple[str, str, int | None]] = {
    "own drafters": ("one", "drafter", None),
    "own drafters, chunks of 16": ("one", "drafter", 16),
    "chain, chunks of 64": ("one", "chain", 64),
    "tree": ("one", "tree", None),
    "tree, 2 threads, chunks of 16": ("two", "tree", 16),
    "all drafters, 2 threads": ("two", "drafter", None),
}
"""Engine, kind of drafts, tokens of a chunk."""


@contextmanager
def opened(path: Path) -> Iterator[dict[str, Engine]]:
    """One thread without drafters, one with the usual ones, two threads with all drafters."""
    every = (*DRAFTERS, EARLY_EXIT)
    common: dict[str, Any] = {"backend": "native", "context": CONTEXT, "memory": "1GiB"}
    with ExitStack() as stack:

        def load(**more: Any) -> Engine:
            return stack.enter_context(edgespec.load(path, **common, **more))

        def load_two(drafters: Sequence[str]) -> Engine:
            try:
                return load(threads=2, drafters=drafters, sequences=SEQUENCES)
            except edgespec.OptionError:  # states and embeddings of layers allow no early exit
                return load(threads=2, drafters=drafters[:-1], sequences=SEQUENCES)

        engines = {
            "plain": load(threads=1, drafters="none"),
            "one": load(threads=1),
            "two": load_two(every),
        }
        verify_everything(engines["two"])
        yield engines


def cases(count: int) -> list[Case]:
    """Prompts that repeat themselves with few changes, at each temperature."""
    found = []
    for number, length in enumerate(islice(cycle(LENGTHS), count)):
        for temperature in TEMPERATURES:
            prompt = tuple(_repetitive(length, number))
            tokens = TOKENS[number % len(TOKENS)]
            found.append(Case(prompt, temperature, number + 1, tokens, ignore_eos=number % 3 > 0))
    return found


def _repetitive(length: int, seed: int) -> list[int]:
    rng = np.random.default_rng([seed, length])
    motif = rng.integers(3, VOCABULARY_SIZE, rng.integers(4, 12))
    ids = np.resize(motif, length)
    noise = rng.random(length) < 0.05
    ids[noise] = rng.integers(3, VOCABULARY_SIZE, noise.sum())
    return [int(token) for token in ids]


def written(engines: dict[str, Engine], count: int) -> Iterator[Ways]:
    """Every case in every way."""
    every = cases(count)
    expected = [case.plain(engines["plain"]) for case in every]
    batches = list(_batched(engines["two"], every))
    for number, (case, reply, together) in enumerate(zip(every, expected, batches, strict=True)):
        ways = {
            name: compared(reply, case.speculative(engines[engine], shape, chunk, reply))
            for name, (engine, shape, chunk) in ALONE.items()
        }
        ways["batch, 2 threads"] = compared(reply, together)
        ways |= _conversation(engines, case, reply, number)
        yield ways


def _batched(engine: Engine, every: Sequence[Case]) -> Iterator[Reply]:
    """In groups of two to four."""
    sizes, start = cycle((2, 3, SEQUENCES)), 0
    while start < len(every):
        group = every[start : start + next(sizes)]
        yield from engine.generate_batch([case.request(engine) for case in group])
        start += len(group)


def _conversation(engines: dict[str, Engine], case: Case, reply: Reply, number: int) -> Ways:
    """Turns after the first: one goes on, one changes the prompt, one returns to the first text."""
    first = (*case.prompt, *reply.token_ids)
    turns = {
        "continued": (*first, *_repetitive(9, number)),
        "edited": (*case.prompt[: 2 * len(case.prompt) // 3], *_repetitive(21, number + 1)),
        "returned": (*first, *_repetitive(5, number + 2)),
    }
    shapes = cycle(("chain", "tree", "drafter"))
    engine = engines[("one", "two")[number % 2]]
    case.speculative(engine, "chain", None, reply)
    ways: Ways = {}
    for (name, prompt), shape in zip(turns.items(), islice(shapes, number % 3, None), strict=False):
        turn = Case(prompt, case.temperature, case.seed, 24, ignore_eos=True)
        expected = turn.plain(engines["plain"])
        found = turn.speculative(engine, shape, None, expected, continued=True)
        ways[name] = compared(expected, found) | {"cached": found.stats.cached_tokens}
    return ways
