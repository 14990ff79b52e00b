"""N-grams, the model's own first layers and a draft model: each alone, and all in one market.

    python benchmarks/choosing.py [MODEL] [--draft-model edgespec-draft] [--tokens 40] [--rounds 3]
                                  [--families chat json] [--threads N]

Chats, stories, extraction and rewriting, greedy and at temperature 0.8, each past the reply's end
and with other words each round, so that no reply was written before. All ways and plain decoding
take turns; the first round is to learn in. Printed are tokens a second and the median of the
rounds' ratios to plain decoding, and how all together does against the best alone. Replies are
checked to be equal. Nothing else is asserted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
from benchmarks.early_exit import TOPICS
from edgespec.engine.engine import Engine
from edgespec.loading.model_drafters import EARLY_EXIT
from edgespec.memory.plan.settings import BUILT_IN_DRAFTERS

FAMILIES: dict[str, tuple[str, ...]] = {
    "chat": ("How can I look after my {}?", "What do you like about a {}?"),
    "stories": ("Tell me a short story about a {}.", "Write about a lost {}."),
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
MEMORY = "3GiB"
"""For four engines in one process, the plans' own."""
ALONE = {
    "n-grams": (BUILT_IN_DRAFTERS, False),
    "early exit": ((EARLY_EXIT,), False),
    "draft model": ((), True),
}
WAYS = ALONE | {"all": ((*BUILT_IN_DRAFTERS, EARLY_EXIT), True)}
"""Drafters, and whether the draft model is one of them."""


def write(
    engine: Engine,
    prompts: tuple[str, ...],
    temperature: float,
    tokens: int,
    turn: int,
    plain: bool,
) -> tuple[float, list[list[int]]]:
    """Seconds a token of these replies, and their tokens."""
    replies = [
        engine.generate(
            prompt.replace("{}", TOPICS[turn % len(TOPICS)]),
            max_tokens=tokens,
            temperature=temperature,
            seed=turn,
            ignore_eos=True,
            speculation=not plain,
        )
        for prompt in prompts
    ]
    seconds = statistics.mean(1.0 / reply.stats.tokens_per_second for reply in replies)
    return seconds, [reply.token_ids for reply in replies]


def rows(
    engines: dict[str, Engine], families: list[str], tokens: int, rounds: int
) -> Iterator[str]:
    """A line for each family and temperature."""
    names = ["plain", *engines]
    for family in families:
        for temperature in TEMPERATURES:
            seconds: dict[str, list[float]] = {name: [] for name in names}
            for turn in range(rounds + 1):
                texts = set()
                for place in range(len(names)):
                    name = names[(turn + place) % len(names)]
                    engine = engines.get(name) or engines["n-grams"]
                    spent, ids = write(
                        engine, FAMILIES[family], temperature, tokens, turn, name == "plain"
                    )
                    texts.add(repr(ids))
                    seconds[name] += [spent] * bool(turn)
                assert len(texts) == 1, f"{family}: the replies differ"
            ratio = {name: _ratio(seconds["plain"], seconds[name]) for name in engines}
            plain_speed = 1.0 / statistics.median(seconds["plain"])
            line = f"{f'{family}, {temperature:g}':<16}{plain_speed:>8.0f}"
            for name in engines:
                line += f"{1 / statistics.median(seconds[name]):>9.0f} {ratio[name]:.2f}x"
            best = max(ALONE, key=lambda name: ratio[name])
            line += f"   {_ratio(seconds[best], seconds['all']):.2f}x ({best})"
            yield line


def _ratio(one: list[float], other: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--draft-model", default="edgespec-draft")
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--threads", type=int)
    asked = parser.parse_args()
    with ExitStack() as stack:
        engines = {}
        for name, (drafters, has_model) in WAYS.items():
            model = asked.draft_model if has_model else None
            options = {"memory": MEMORY, "threads": asked.threads, "draft_model": model}
            engines[name] = stack.enter_context(
                edgespec.load(asked.model, drafters=drafters, **options)
            )
        curve = engines["n-grams"].cost_curve()
        print("T(n), ms:", {nodes: round(1e3 * spent, 2) for nodes, spent in curve.items()})
        head = "".join(f"{name:>15}" for name in WAYS)
        print(f"{'':<16}{'plain/s':>8}{head}   all against the best alone")
        for line in rows(engines, asked.families, asked.tokens, asked.rounds):
            print(line, flush=True)


if __name__ == "__main__":
    main()
