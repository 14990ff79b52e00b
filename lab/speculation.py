"""What does speculation bring, and what does it cost where nothing can be foretold?

    python -m lab.speculation replies [MODEL] [--tokens 200] [--rounds 7]
    python -m lab.speculation hostile [MODEL] [--drafters auto|all] [--rounds 9]
    python -m lab.speculation questions QUESTIONS.jsonl[.gz] [MODEL] [--per-category 4] \\
        [--temperatures 0,0.8] [--server llama-server]
    python -m lab.speculation batch [MODEL] [--sizes 2,4,8]
    python -m lab.speculation busy [MODEL] [--sizes 4,8]

The same replies with speculation and without, in turns. Ratios are of speeds, with / without, pair
by pair. What drafters learnt in earlier rounds is forgotten before each reply.
"""

from __future__ import annotations

import os
import statistics
import time
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import edgespec
from edgespec.drafting.registry import DRAFTERS
from edgespec.engine.engine import Engine
from edgespec.engine.reply import Reply
from edgespec.system.size import format_size
from lab.harness import (
    MODEL,
    Asked,
    Rows,
    Script,
    Spread,
    alternate,
    forget,
    names,
    numbers,
    option,
    ratios,
    rounds,
    start_anew,
    stored_bytes,
    tokens,
)
from lab.llama_server import LOOKUPS
from lab.questions import measure
from tests.support.equality import prompts

STORY = "Tell me a short story about a dog."
REPLIES: dict[str, tuple[str, dict[str, Any]]] = {
    "story, temperature 0.8": (STORY, {"temperature": 0.8}),
    "story, greedy": (STORY, {"temperature": 0.0}),
    "repeated phrase": (
        "the red ball and the blue box and " * 12,
        {"temperature": 0.0, "raw": True},
    ),
    "fields as JSON": (
        "Extract name and age as JSON: Tom is 5. Sue is 6.",
        {"temperature": 0.0},
    ),
}
NOISE: dict[str, Any] = {"temperature": 4.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""So hot that whatever was drafted is wrong."""
GREEDY = {"temperature": 0.0}
PERIOD, LENGTH = 37, 256
BATCH_PROMPTS = [
    STORY,
    "Say it again and again: a red ball, a blue box, a red ball, a blue box, a red ball.",
    "Why is the sky blue?",
    "Extract name and age as JSON: Tom is 5. Sue is 6. Ann is 7. Bob is 8.",
    "Hello!",
    "Write a poem about rain that falls on the roof of an old house by the sea.",
    "List the days of the week.",
    "Once upon a time there was a king who had three daughters, and the youngest of them",
]
DRAFTER_SET = option("--drafters", default="auto")
SIZES = option("--sizes", type=numbers, default=[2, 4, 8], help="replies at once")
script = Script(__doc__)


def temperatures(text: str) -> list[float]:
    """The type of an option that is temperatures by commas."""
    return [float(part) for part in text.split(",")]


@script.command(MODEL, tokens(200), rounds(7))
def replies(asked: Asked) -> Rows:
    """Four usual replies."""
    with edgespec.load(asked.model) as engine:
        _note_curve(engine)
        for name, (prompt, options) in REPLIES.items():
            found = _pairs(engine, prompt, asked, seed=5, **options)
            yield {"reply": name} | found


@script.command(
    MODEL,
    DRAFTER_SET,
    tokens(128),
    rounds(9),
    option("--context", type=int, default=1024),
    option("--only", default="", help="texts whose names hold this"),
)
def hostile(asked: Asked) -> Rows:
    """Texts that nobody can foretell, or that mislead. Exit code 1: stores beyond their plan."""
    names = ",".join(DRAFTERS) if asked.drafters == "all" else asked.drafters
    with TemporaryDirectory() as folder:
        os.environ["EDGESPEC_DATA"] = folder  # the user's own history stays as it is
        with edgespec.load(asked.model, drafters=names, context=asked.context) as engine:
            _note_curve(engine)
            most_bytes = 0
            for name, (prompt, options) in _hostile_texts(engine, asked.tokens).items():
                if asked.only in name:
                    row = _pairs(engine, prompt, asked, **options)
                    most_bytes = max(most_bytes, stored_bytes(engine))
                    yield {"text": name} | row | {"holds": format_size(stored_bytes(engine))}
            planned = engine.plan.drafter_bytes
            told = f"stores held {format_size(most_bytes)}, planned {format_size(planned)}"
            script.check(most_bytes <= planned, told)


def _hostile_texts(engine: Engine, num_tokens: int) -> dict[str, tuple[Any, dict[str, Any]]]:
    """By name: a prompt and how the reply to it is drawn."""
    rng = np.random.default_rng(1)
    drawn = rng.integers(300, engine.file.spec.vocab_size, LENGTH).tolist()
    same, pair = drawn[:1] * LENGTH, drawn[:2] * (LENGTH // 2)
    period = (drawn[:PERIOD] * (LENGTH // PERIOD + 1))[:LENGTH]
    full = (drawn * (engine.plan.context_length // LENGTH + 1))[: engine.plan.context_length]
    found: dict[str, tuple[Any, dict[str, Any]]] = {}
    for name, prompt in {
        "random prompt": drawn,
        "identical tokens": same,
        "alternating": pair,
        "period of 37": period,
    }.items():
        found |= {f"{name}, random reply": (prompt, NOISE), f"{name}, greedy": (prompt, GREEDY)}
    end = full[: -num_tokens // 2]
    return found | {
        "to the end of the context": (end, NOISE),
        "past it, sliding window": (end, NOISE | {"on_overflow": "sliding"}),
        "empty prompt": (engine.encode("", raw=True) or drawn[:1], {}),
        "story": (STORY, {}),
        "story, greedy": (STORY, GREEDY),
    }


def _pairs(engine: Engine, prompt: Any, asked: Asked, **options: Any) -> dict[str, Any]:
    """Decoding with speculation over decoding without, and the same of whole replies."""
    options = {"max_tokens": asked.tokens, "ignore_eos": True, "seed": 1} | options
    taken: dict[bool, list[float]] = {True: [], False: []}
    last: dict[bool, Reply] = {}

    def write(speculation: bool) -> float:
        forget(engine)
        start = time.perf_counter()
        reply = last[speculation] = engine.generate(prompt, speculation=speculation, **options)
        taken[speculation].append(time.perf_counter() - start)
        return reply.stats.tokens_per_second

    speeds = alternate(
        {"with": partial(write, True), "without": partial(write, False)}, asked.rounds
    )
    if last[True].token_ids != last[False].token_ids:
        raise SystemExit("speculation changed a text")
    count = len(speeds["with"])
    return {
        "with, tokens/s": statistics.median(speeds["with"]),
        "without": statistics.median(speeds["without"]),
        "ratio": ratios(speeds["with"], speeds["without"]),
        "of whole replies": ratios(taken[False][-count:], taken[True][-count:]),
        "tokens/step": last[True].stats.tokens_per_step,
    }


@script.command(
    option("questions", type=Path),
    MODEL,
    option("--per-category", type=int, default=4),
    tokens(96),
    rounds(3),
    option("--temperatures", type=temperatures, default=[0.0], help="by commas"),
    option("--threads", type=int, default=2),
    option("--context", type=int, help="tokens; the plan's choice if left out"),
    DRAFTER_SET,
    option("--draft-model", help="for ours, and for llama.cpp's server in a mode of its own"),
    option("--no-peer", action="store_true", help="leave llama.cpp out"),
    option("--server", help="llama.cpp's; llama-cpp-python if left out"),
    option("--modes", type=names, default=list(LOOKUPS), help="of the server to draft, by commas"),
    option("--minutes", type=float, help="stop after so many; --out goes on from there"),
    option("--out", type=Path, help="keep what is finished here, and go on from it"),
)
def questions(asked: Asked) -> Rows:
    """Spec-Bench's categories, beside llama.cpp plain and with its own ways to draft.

    Past the reply's end, the first turn of each question in the model's chat template; of a
    question that does not fit the context the middle is left out. Speeds are those of decoding, a
    figure of a question is the median of its rounds, and of a category that of its questions.
    """
    return measure(asked, script)


@script.command(MODEL, tokens(64), rounds(3), SIZES, DRAFTER_SET)
def batch(asked: Asked) -> Rows:
    """Eight replies one after another and in batches, prompts included; texts must be equal.

    `samples` are replies to one prompt at temperature 0.8, whose beginning is stored once;
    `prompts` are as many prompts of different lengths.
    """
    most = max(asked.sizes)
    with edgespec.load(asked.model, context=512, sequences=most, drafters=asked.drafters) as engine:
        _note_curve(engine)
        for kind in ("prompts", "samples"):
            for speculation in (False, True):
                yield from _batch_rows(engine, kind, speculation, asked)


def _batch_rows(engine: Engine, kind: str, speculation: bool, asked: Asked) -> Rows:
    last: dict[int, list[Reply]] = {}

    def write(size: int) -> float:
        start_anew(engine)
        texts = BATCH_PROMPTS if kind == "prompts" else BATCH_PROMPTS[:1] * len(BATCH_PROMPTS)
        options = {"max_tokens": asked.tokens, "speculation": speculation}
        requests = [
            engine.request(text, seed=seed * (kind == "samples") + 1, **options)
            for seed, text in enumerate(texts)
        ]
        start = time.perf_counter()
        last[size] = engine.generate_batch(requests, max_batch=size)
        written = sum(len(reply.token_ids) for reply in last[size])
        return written / (time.perf_counter() - start)

    sizes = (1, *asked.sizes)
    speeds = alternate({str(size): partial(write, size) for size in sizes}, asked.rounds)
    texts = {size: [reply.text for reply in found] for size, found in last.items()}
    if any(found != texts[1] for found in texts.values()):
        raise SystemExit("a batch changed a text")
    for size in sizes:
        steps = [reply.stats.tokens_per_step for reply in last[size]]
        yield {
            "what": f"{kind}, {'speculation' if speculation else 'plain'}, {size} at once",
            "tokens/s": Spread.of(speeds[str(size)]),
            "/ one at a time": ratios(speeds[str(size)], speeds["1"]),
            "tokens/step": statistics.mean(steps),
        }


@script.command(MODEL, tokens(64), rounds(3), SIZES, DRAFTER_SET)
def busy(asked: Asked) -> Rows:
    """What speculation brings to a batch with work waiting.

    Greedy replies past their ends to 32 + N prompts, N at once, until the last has been begun.
    """
    most = max(asked.sizes)
    with edgespec.load(asked.model, context=512, sequences=most, drafters=asked.drafters) as engine:
        for size in asked.sizes:
            texts = list(islice(prompts(), 0, (32 + size) * 7, 7))
            accepted: list[float] = []

            def write(
                speculation: bool,
                size: int = size,
                texts: list[str] = texts,
                accepted: list[float] = accepted,
            ) -> float:
                forget(engine)
                start = time.perf_counter()
                options: dict[str, Any] = {"max_batch": size, "max_tokens": asked.tokens}
                options |= {"temperature": 0.0, "ignore_eos": True, "speculation": speculation}
                stream = engine.stream_batch(texts, **options)
                while not all(one.began for one in stream.generations):
                    next(stream)
                seconds = time.perf_counter() - start
                stream.close()
                stats = [reply.stats for reply in stream.replies]
                written = sum(one.output_tokens for one in stats)
                if speculation:
                    accepted.append(sum(one.accepted for one in stats) / written)
                return written / seconds

            members = {"with": partial(write, True), "without": partial(write, False)}
            speeds = alternate(members, asked.rounds)
            yield {
                "replies at once": size,
                "with, tokens/s": Spread.of(speeds["with"]),
                "ratio": ratios(speeds["with"], speeds["without"]),
                "drafted": f"{statistics.mean(accepted):.0%}",
            }


def _note_curve(engine: Engine) -> None:
    curve = engine.cost_curve().items()
    script.note("T(n), ms: " + "  ".join(f"{size}: {1e3 * one:.2f}" for size, one in curve))


if __name__ == "__main__":
    script.run()
