"""Drafting with the model's own first layers, alone: against plain decoding, and against every
fixed exit and length.

    python benchmarks/early_exit.py [MODEL] [--tokens 96] [--rounds 3] [--grid] [--threads N]

Five families of prompts, each past the reply's end; all ways take turns, and medians over rounds of
seconds a token are compared. `--grid` adds every exit with chains of 1 to 4. Replies are checked to
be equal. Nothing else is asserted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
from benchmarks.equality import Eager
from edgespec.control.controller import Controller
from edgespec.drafting import Market
from edgespec.drafting.early_exit import EarlyExitDrafter
from edgespec.engine import Engine
from edgespec.reply import Reply

FAMILIES: dict[str, tuple[float, tuple[str, ...]]] = {
    "stories, greedy": (0.0, ("Tell me a short story about a dog.", "Write about a lost key.")),
    "stories, 0.8": (0.8, ("Tell me a story about the sea.", "Write a tale of a brave mouse.")),
    "chat, greedy": (0.0, ("How can I sleep better?", "Why is friendship important?")),
    "chat, 0.8": (0.8, ("What do you like about snow?", "Give me advice for a new school.")),
    "fields as JSON": (0.0, ("Extract name and age as JSON: Tom is 5. Sue is 6.",)),
}
LENGTHS = (1, 2, 3, 4)
MEMORY = "1GiB"
"""The same for plans that are compared."""


class Fixed(EarlyExitDrafter):
    """Always the same exit and as many drafts."""

    length = 1

    def _draw_chain(self, longest: int) -> None:
        token = self._last
        for depth in range(min(longest, self.length)):
            if not self._draw(depth, *self._row(token, depth)):
                return
            token = int(self._drafts[depth, 0])


Way = tuple[Market, Controller, bool]
"""Who drafts, who says how much of it is verified, and whether there is speculation at all."""


def ways(engine: Engine, grid: bool) -> dict[str, Way]:
    """Ways of writing by name."""
    own, controller = engine._session.market, engine._controller
    found: dict[str, Way] = {
        "plain": (own, controller, False), "adaptive": (own, controller, True)
    }  # fmt: skip
    adaptive = own._sources[0].drafter
    assert isinstance(adaptive, EarlyExitDrafter)
    for exit_layer in adaptive.layers if grid else ():
        for length in LENGTHS:
            vocab_size = engine.file.spec.vocab_size
            drafter = Fixed([exit_layer], vocab_size, adaptive._head_size)
            drafter.length = length
            market = Market([drafter])
            market.attach(engine._target.own, controller.curve.table)
            found[f"exit {exit_layer}, {length}"] = market, Eager(engine.plan.max_nodes), True
    return found


def write(engine: Engine, way: Way, family: str, tokens: int) -> list[Reply]:
    """All replies of a family."""
    temperature, prompts = FAMILIES[family]
    engine._session.market, engine._controller, speculation = way
    return [
        engine.generate(
            prompt,
            max_tokens=tokens,
            temperature=temperature,
            seed=5,
            ignore_eos=True,
            speculation=speculation,
        )
        for prompt in prompts
    ]


def rows(engine: Engine, tokens: int, rounds: int, grid: bool) -> Iterator[str]:
    """A line for each family."""
    every = ways(engine, grid)
    for family in FAMILIES:
        seconds: dict[str, list[float]] = {name: [] for name in every}
        steps: dict[str, float] = {}
        texts = set()
        for turn in range(rounds + 1):
            for name, way in every.items():
                replies = write(engine, way, family, tokens)
                texts.add(repr([reply.token_ids for reply in replies]))
                if turn:  # the first is to learn in
                    stats = [reply.stats for reply in replies]
                    seconds[name].append(
                        statistics.mean(1.0 / stat.tokens_per_second for stat in stats)
                    )
                    steps[name] = statistics.mean(stat.tokens_per_step for stat in stats)
        assert len(texts) == 1, f"{family}: the replies differ"
        usual = {name: statistics.median(values) for name, values in seconds.items()}
        ratios = [one / two for one, two in zip(seconds["plain"], seconds["adaptive"], strict=True)]
        line = (
            f"{family:<18}{1 / usual['plain']:>8.0f}{1 / usual['adaptive']:>10.0f}"
            f"{usual['plain'] / usual['adaptive']:>8.2f}x ({min(ratios):.2f}-{max(ratios):.2f})"
            f"{steps['adaptive']:>8.2f}"
        )
        fixed = {name: value for name, value in usual.items() if name.startswith("exit")}
        if fixed:
            best = min(fixed, key=lambda name: fixed[name])
            line += f"   {best:>10} {usual['plain'] / fixed[best]:.2f}x"
            line += f" {fixed[best] / usual['adaptive']:>8.2f}x"
        yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--grid", action="store_true")
    asked = parser.parse_args()
    plain = edgespec.plan(asked.model, memory=MEMORY, threads=asked.threads, drafters="trigram")
    with edgespec.load(
        asked.model, memory=MEMORY, threads=asked.threads, drafters="early-exit"
    ) as engine:
        exact = engine.plan.footprint.exact
        same = all(exact[name] == size for name, size in plain.footprint.exact.items())
        print(f"weights {exact['weights'] / 2**20:.1f} MiB; exact items as without: {same}")
        print("T(n), ms:", {n: round(1e3 * s, 2) for n, s in engine.cost_curve().items()})
        head = f"{'':<18}{'plain/s':>8}{'drafted/s':>10}{'ratio':>9} (spread){'a step':>12}"
        print(head + ("   best fixed, ratio, adaptive against it" if asked.grid else ""))
        for line in rows(engine, asked.tokens, asked.rounds, asked.grid):
            print(line, flush=True)
        drafter = engine._session.market._sources[0].drafter
        if isinstance(drafter, EarlyExitDrafter) and not asked.grid:
            print("left last after layer", drafter.layer, "of", engine.file.spec.num_layers)


if __name__ == "__main__":
    main()
