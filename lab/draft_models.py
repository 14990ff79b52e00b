"""Drafts that take passes of a model: its own first layers, or another model.

    python -m lab.draft_models alone [MODEL] [--grid] [--families chat stories]
    python -m lab.draft_models together [MODEL] [--draft-model edgespec-draft] [--families chat]

`alone`: early exits against plain decoding and, with `--grid`, against every fixed exit with chains
of 1 to 4. `together`: n-grams, early exits, a draft model, each alone, and all in one market.
Prompts are past the reply's end and with other words each round, so that no reply was written
before. All ways take turns, and replies are checked to be equal.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import edgespec
from edgespec.drafting.market.market import Market
from edgespec.drafting.model.early_exit import EarlyExitDrafter
from edgespec.engine.engine import Engine
from edgespec.loading.model_drafters import EARLY_EXIT
from edgespec.memory.plan.settings import BUILT_IN_DRAFTERS
from lab.harness import (
    MODEL,
    THREADS,
    Asked,
    Rows,
    Script,
    alternate,
    market_of,
    option,
    ratios,
    rounds,
    tokens,
)
from tests.support.equality import Eager

FAMILIES: dict[str, tuple[str, ...]] = {
    "stories": ("Tell me a short story about a {}.", "Write about a lost {}."),
    "chat": ("How can I look after my {}?", "What do you like about a {}?"),
    "repetition": ("Write the word {} again and again: {} {} {} {} {} {}",),
    "json": (
        "Extract name and age as JSON: {} is 5. Sue is 6.",
        "Extract the animal and the place as JSON: The {} went to the old farm by the river.",
    ),
    "rewriting": (
        "Correct the mistake: The {} go to the beach every day.",
        "Write in the past tense: The {} stands near the door and waits for the rain to end.",
    ),
}
TEMPERATURES = (0.0, 0.8)
TOPICS = ("dog", "boat", "garden", "king", "robot", "farm", "kite", "bear", "school", "drum")
"""One a round, so that no reply was written before: n-grams would remember it."""
LENGTHS = (1, 2, 3, 4)
MEMORY = "3GiB"
"""The same for plans that are compared, and for four engines in one process."""
SETS: dict[str, tuple[tuple[str, ...], bool]] = {
    "n-grams": (BUILT_IN_DRAFTERS, False),
    "early exit": ((EARLY_EXIT,), False),
    "draft model": ((), True),
    "all": ((*BUILT_IN_DRAFTERS, EARLY_EXIT), True),
}
"""Drafters, and whether the draft model is one of them."""
COMMON = (
    option("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES)),
    tokens(40),
    rounds(3),
    THREADS,
)
Way = Callable[[], tuple[Engine, bool]]
"""Makes an engine ready to write this way: the engine, and whether with speculation."""
script = Script(__doc__)


class Fixed(EarlyExitDrafter):
    """Always the same exit and as many drafts, asked at every step."""

    costly = False
    length = 1

    def _draw_chain(self, longest: int) -> None:
        token = self._last
        for depth in range(min(longest, self.length)):
            if not self._draw(depth, *self._row(token, depth)):
                return
            token = int(self._drafts[depth, 0])


@script.command(MODEL, option("--grid", action="store_true", help="all fixed exits"), *COMMON)
def alone(asked: Asked) -> Rows:
    """Early exits alone; with --grid beside the best fixed exit of each family."""
    with edgespec.load(
        asked.model, memory=MEMORY, threads=asked.threads, drafters=EARLY_EXIT
    ) as engine:
        ways = _fixed_ways(engine) if asked.grid else {}
        ways |= {"plain": lambda: (engine, False), "adaptive": _own_way(engine)}
        for name, found in _families(ways, asked):
            fixed = {
                statistics.median(seconds): way
                for way, seconds in found.items()
                if way.startswith("exit")
            }
            best = fixed[min(fixed)] if fixed else None
            row: dict[str, Any] = {
                "family": name,
                "plain, tokens/s": 1 / statistics.median(found["plain"]),
                "adaptive / plain": ratios(found["plain"], found["adaptive"]),
            }
            if best:
                row |= {"best fixed": best}
                row |= {"best / plain": ratios(found["plain"], found[best])}
                row |= {"adaptive / best": ratios(found[best], found["adaptive"])}
            yield row


def _own_way(engine: Engine) -> Way:
    market, controller = market_of(engine), engine.scheduler.controller

    def ready() -> tuple[Engine, bool]:
        engine.scheduler.slots[0].market, engine.scheduler.controller = market, controller
        return engine, True

    return ready


def _fixed_ways(engine: Engine) -> dict[str, Way]:
    """Every exit with chains of each length; what is drafted is verified."""
    adaptive, spec = market_of(engine)._sources[0].drafter, engine.file.spec
    assert isinstance(adaptive, EarlyExitDrafter)
    found: dict[str, Way] = {}
    for way_out in adaptive.exits:
        for length in LENGTHS:
            drafter = Fixed([way_out], spec.vocab_size, adaptive._head_size, spec.num_layers)
            drafter.length = length
            market = Market([drafter])
            market.attach(engine.scheduler.target.own, engine.scheduler.controller.curve.table)

            def ready(market: Market = market) -> tuple[Engine, bool]:
                engine.scheduler.slots[0].market = market
                engine.scheduler.controller = Eager(engine.plan.max_nodes)
                return engine, True

            found[f"exit {way_out.layer}{'a' * way_out.adapted}, {length}"] = ready
    return found


@script.command(MODEL, option("--draft-model", default="edgespec-draft"), *COMMON)
def together(asked: Asked) -> Rows:
    """N-grams, early exits and a draft model, each alone, and all in one market."""
    with ExitStack() as stack:
        ways: dict[str, Way] = {}
        for name, (drafters, has_model) in SETS.items():
            engine = stack.enter_context(
                edgespec.load(
                    asked.model,
                    memory=MEMORY,
                    threads=asked.threads,
                    drafters=drafters,
                    draft_model=asked.draft_model if has_model else None,
                )
            )
            ways[name] = partial(_ready, engine, True)
            ways.setdefault("plain", partial(_ready, engine, False))
        for name, found in _families(ways, asked):
            every = {way: ratios(found["plain"], found[way]) for way in SETS}
            _, best = max((every[way].median, way) for way in SETS if way != "all")
            yield {
                "family": name,
                "plain, tokens/s": 1 / statistics.median(found["plain"]),
                **every,
                "all / best alone": ratios(found[best], found["all"]),
                "which is": best,
            }


def _ready(engine: Engine, speculation: bool) -> tuple[Engine, bool]:
    return engine, speculation


def _families(
    ways: Mapping[str, Way], asked: Asked
) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """(family and temperature, seconds a token of each way by round)."""
    for family in asked.families:
        for temperature in TEMPERATURES:
            written: dict[tuple[int, str], set[str]] = {}
            turns = dict.fromkeys(ways, -1)

            def write(
                name: str,
                family: str = family,
                temperature: float = temperature,
                written: dict[tuple[int, str], set[str]] = written,
                turns: dict[str, int] = turns,
            ) -> float:
                engine, speculation = ways[name]()
                turns[name] += 1
                seconds = []
                for prompt in FAMILIES[family]:
                    reply = engine.generate(
                        prompt.replace("{}", TOPICS[turns[name] % len(TOPICS)]),
                        max_tokens=asked.tokens,
                        temperature=temperature,
                        seed=turns[name],
                        ignore_eos=True,
                        speculation=speculation,
                    )
                    texts = written.setdefault((turns[name], prompt), set())
                    texts.add(repr(reply.token_ids))
                    if len(texts) > 1:
                        raise SystemExit(f"{family}: the replies differ")
                    seconds.append(1.0 / reply.stats.tokens_per_second)
                return statistics.mean(seconds)

            found = alternate({name: partial(write, name) for name in ways}, asked.rounds)
            yield f"{family}, {temperature:g}", found


if __name__ == "__main__":
    script.run()
