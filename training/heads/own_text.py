"""What a model writes itself, as a token stream: text that its drafters will have to draft.

The replies are written by EdgeSpec's own engine, so every architecture that it runs will do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from edgespec import Engine

END_OF_TEXT, TURN_START, TURN_END = 0, 1, 2  # the ids of `training.data.SPECIAL_TOKENS`
MOST_PROMPT, MOST_REPLY = 320, 160
FEWEST_READ, MOST_READ = 8, 64  # tokens of a plain text that are given
AT_ONCE, PART = 16, 32
TEMPERATURES = (0.0, 0.8, 0.8, 1.0)


def documents(folder: Path, name: str) -> list[tuple[NDArray[np.uint16], NDArray[np.bool_]]]:
    """Return the documents of a stream: ids, and which of them are to be written."""
    ids = np.load(folder / f"{name}.ids.npy")
    asked = np.load(folder / f"{name}.asked.npy")
    ends = np.flatnonzero(ids == END_OF_TEXT) + 1
    starts = [0, *ends[:-1].tolist()]
    return [(ids[a:b], asked[a:b]) for a, b in zip(starts, ends.tolist(), strict=True)]


def prompt_of(
    ids: NDArray[np.uint16], asked: NDArray[np.bool_], rng: np.random.Generator
) -> list[int] | None:
    """Return the document up to one of its replies, or the beginning of a plain text."""
    starts = np.flatnonzero(asked[1:] & ~asked[:-1]) + 1
    if len(starts):
        at = int(rng.choice(starts))
    elif len(ids) > FEWEST_READ:
        at = int(rng.integers(FEWEST_READ, min(len(ids), MOST_READ)))
    else:
        return None
    prompt: list[int] = ids[:at].tolist()
    return prompt if len(prompt) <= MOST_PROMPT else None


def prompts(folder: Path, names: list[str], seed: int) -> Iterator[list[int]]:
    """Yield prompts of the streams in a seeded order, the streams in turns, without end."""
    rng = np.random.default_rng(seed)
    texts = [documents(folder, name) for name in names]
    while True:
        for one in texts:
            prompt = prompt_of(*one[rng.integers(len(one))], rng)
            if prompt is not None:
                yield prompt


def write(
    engine: Engine, asked_for: Iterator[list[int]], temperature: float, seed: int
) -> tuple[list[int], list[bool]]:
    """Return a part of a stream, ids and which of them the model wrote; greedy at temperature 0."""
    given = [next(asked_for) for _ in range(PART)]
    replies = engine.generate_batch(
        given,
        max_tokens=MOST_REPLY,
        temperature=temperature,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        seed=seed,
        speculation=False,
        max_batch=AT_ONCE,
    )
    ids: list[int] = []
    written: list[bool] = []
    for prompt, reply in zip(given, replies, strict=True):
        ends, is_talk = reply.finish_reason == "stop", TURN_START in prompt
        own = reply.token_ids + [TURN_END] * (ends and is_talk)
        ids += prompt + own + [END_OF_TEXT]
        written += [False] * len(prompt) + [True] * len(own) + [ends and not is_talk]
    return ids, written


def load(folder: Path, name: str) -> tuple[NDArray[np.uint16], NDArray[np.bool_]]:
    """Return what a stream holds so far."""
    if not (folder / f"{name}.ids.npy").exists():
        return np.empty(0, np.uint16), np.empty(0, np.bool_)
    return np.load(folder / f"{name}.ids.npy"), np.load(folder / f"{name}.asked.npy")


def save(folder: Path, name: str, ids: NDArray[np.uint16], asked: NDArray[np.bool_]) -> None:
    """Replace a stream."""
    for part, values in (("ids", ids), ("asked", asked)):
        unfinished = folder / f"{name}.{part}.part.npy"
        np.save(unfinished, values)
        os.replace(unfinished, folder / f"{name}.{part}.npy")


def extend(
    engine: Engine,
    folder: Path,
    name: str,
    sources: list[str],
    num_tokens: int,
    temperatures: tuple[float, ...] = TEMPERATURES,
) -> None:
    """Let the stream `name` grow until `num_tokens` or more are written by the model.

    It holds replies to prompts from the streams `sources`, those of a part at one of the
    temperatures. It may be stopped at any time, and goes on with other prompts.
    """
    ids, asked = load(folder, name)
    asked_for = prompts(folder, sources, len(ids))
    while asked.sum() < num_tokens:
        seed = len(ids)
        more, written = write(engine, asked_for, temperatures[seed % len(temperatures)], seed)
        ids = np.concatenate((ids, np.array(more, np.uint16)))
        asked = np.concatenate((asked, np.array(written, np.bool_)))
        save(folder, name, ids, asked)
        print(f"{name}: {len(ids):,} tokens, {asked.sum():,} of them written", flush=True)
