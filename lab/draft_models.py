"""Drafting with the model's own first layers, alone: against plain decoding, and against every
fixed exit and length.

    python benchmarks/early_exit.py [MODEL] [--tokens 96] [--rounds 3] [--grid] [--market]
                                    [--families chat stories] [--threads N]

Six families of prompts, each past the reply's end; all ways take turns, and medians over rounds of
seconds a token are compared. `--grid` lets every exit with chains of 1 to 4 write for as many
rounds, and the best three of them beside the adaptive one for three times as many more, of which
the best is compared with it: luck in being found best counts little then. `--market` adds early
exits to the default drafters, and compares that with them alone. Replies are checked to be equal.
Nothing else is asserted.
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
from edgespec.control.cost_curve import CostCurve
from edgespec.drafting.market.market import Market
from edgespec.drafting.model.early_exit import EarlyExitDrafter
from edgespec.drafting.registry import make_drafter
from edgespec.engine.engine import Engine
from edgespec.engine.request import Reply
from edgespec.memory.plan.footprint import ADAPTER_ITEM
from edgespec.memory.plan.settings import BUILT_IN_DRAFTERS

FAMILIES: dict[str, tuple[float, tuple[str, ...]]] = {
    "stories, greedy": (0.0, ("Tell me a short story about a {}.", "Write about a lost {}.")),
    "stories, 0.8": (0.8, ("Tell me a story about the {}.", "Write a tale of a brave {}.")),
    "chat, greedy": (0.0, ("How can I look after my {}?", "Why is a {} important?")),
    "chat, 0.8": (0.8, ("What do you like about a {}?", "Give me advice for a new {}.")),
    "repetition": (0.0, ("Write the word {} again and again: {} {} {} {} {} {}",)),
    "fields as JSON": (0.0, ("Extract name and age as JSON: {} is 5. Sue is 6.",)),
}
TOPICS = ("dog", "boat", "garden", "king", "robot", "farm", "kite", "bear", "school", "drum")
"""One a round, so that no reply was written before: n-grams would remember it."""
LENGTHS = (1, 2, 3, 4)
MEMORY = "1GiB"
"""The same for plans that are compared."""


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
    for way_out in adaptive.exits if grid else ():
        for length in LENGTHS:
            spec = engine.file.spec
            drafter = Fixed([way_out], spec.vocab_size, adaptive._head_size, spec.num_layers)
            drafter.length = length
            market = Market([drafter])
            market.attach(engine._target.own, controller.curve.table)
            name = f"exit {way_out.layer}{'a' * way_out.adapted}, {length}"
            found[name] = market, Eager(engine.plan.max_nodes), True
    return found


def market_ways(engine: Engine) -> dict[str, Way]:
    """Plain decoding, the default drafters, and these with early exits, which the engine has."""
    own, controller = engine._session.market, engine._controller
    few = Market([make_drafter(name, 2**20) for name in BUILT_IN_DRAFTERS])
    few.attach(engine._target.own, controller.curve.table)
    curve = CostCurve(engine.cost_curve(), engine.plan.max_nodes)
    return {
        "plain": (own, controller, False),
        "n-grams": (few, Controller(curve, engine.plan.max_nodes), True),
        "adaptive": (own, controller, True),
    }


def write(engine: Engine, way: Way, family: str, tokens: int, turn: int) -> list[Reply]:
    """All replies of a family in a round."""
    temperature, prompts = FAMILIES[family]
    engine._session.market, engine._controller, speculation = way
    return [
        engine.generate(
            prompt.replace("{}", TOPICS[turn % len(TOPICS)]),
            max_tokens=tokens,
            temperature=temperature,
            seed=turn,
            ignore_eos=True,
            speculation=speculation,
        )
        for prompt in prompts
    ]


def seconds_of(
    engine: Engine, family: str, tokens: int, turns: range, every: dict[str, Way]
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds a token of each way in these rounds, and tokens a step in the last of them."""
    seconds: dict[str, list[float]] = {name: [] for name in every}
    steps: dict[str, float] = {}
    for turn in turns:
        texts, names = set(), list(every)
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            replies = write(engine, every[name], family, tokens, turn)
            texts.add(repr([reply.token_ids for reply in replies]))
            stats = [reply.stats for reply in replies]
            seconds[name].append(statistics.mean(1.0 / stat.tokens_per_second for stat in stats))
            steps[name] = statistics.mean(stat.tokens_per_step for stat in stats)
        assert len(texts) == 1, f"{family}: the replies differ"
    return seconds, steps


def rows(
    engine: Engine, families: list[str], tokens: int, rounds: int, every: dict[str, Way]
) -> Iterator[str]:
    """A line for each family."""
    fixed = {name: way for name, way in every.items() if name.startswith("exit")}
    for family in families:
        few = {name: way for name, way in every.items() if name not in fixed}
        turns = range(1, rounds + 1)
        seconds_of(engine, family, tokens, range(1), few)  # to learn in
        if fixed:
            tried, _ = seconds_of(engine, family, tokens, turns, every)
            best = sorted(fixed, key=lambda name: statistics.median(tried[name]))[:3]
            few |= {name: fixed[name] for name in best}
            turns = range(rounds + 1, 4 * rounds + 1)
        seconds, steps = seconds_of(engine, family, tokens, turns, few)
        usual = {name: statistics.median(values) for name, values in seconds.items()}
        ratios = [one / two for one, two in zip(seconds["plain"], seconds["adaptive"], strict=True)]
        line = (
            f"{family:<18}{1 / usual['plain']:>8.0f}{1 / usual['adaptive']:>10.0f}"
            f"{usual['plain'] / usual['adaptive']:>8.2f}x ({min(ratios):.2f}-{max(ratios):.2f})"
            f"{steps['adaptive']:>8.2f}"
        )
        if "n-grams" in usual:
            pairs = zip(seconds["n-grams"], seconds["adaptive"], strict=True)
            both = [one / two for one, two in pairs]
            line += (
                f"{usual['plain'] / usual['n-grams']:>10.2f}x{statistics.median(both):>10.2f}x "
                f"({min(both):.2f}-{max(both):.2f})"
            )
        if fixed:
            name = min(best, key=lambda name: usual[name])
            both = [one / two for one, two in zip(seconds[name], seconds["adaptive"], strict=True)]
            line += f"   {name:>10} {usual['plain'] / usual[name]:.2f}x"
            line += f" {statistics.median(both):>8.2f}x ({min(both):.2f}-{max(both):.2f})"
        yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--families", nargs="+", default=[""], help="parts of their names")
    parser.add_argument("--grid", action="store_true")
    parser.add_argument("--market", action="store_true")
    asked = parser.parse_args()
    plain = edgespec.plan(asked.model, memory=MEMORY, threads=asked.threads, drafters="trigram")
    names = (*BUILT_IN_DRAFTERS, "early-exit") if asked.market else ("early-exit",)
    with edgespec.load(asked.model, memory=MEMORY, threads=asked.threads, drafters=names) as engine:
        exact = engine.plan.footprint.exact
        same = plain.footprint.exact == {
            name: size for name, size in exact.items() if name != ADAPTER_ITEM
        }
        print(f"weights {exact['weights'] / 2**20:.1f} MiB; exact items as without: {same}")
        print("T(n), ms:", {n: round(1e3 * s, 2) for n, s in engine.cost_curve().items()})
        head = f"{'':<18}{'plain/s':>8}{'drafted/s':>10}{'ratio':>9} (spread){'a step':>12}"
        head += "   best fixed, ratio, adaptive against it" if asked.grid else ""
        print(head + ("   n-grams   against them" if asked.market else ""))
        drafter = engine._session.market._sources[-1].drafter
        every = market_ways(engine) if asked.market else ways(engine, asked.grid)
        families = [family for family in FAMILIES if any(part in family for part in asked.families)]
        for line in rows(engine, families, asked.tokens, asked.rounds, every):
            print(line, flush=True)
        if isinstance(drafter, EarlyExitDrafter) and not asked.grid:
            print("left last after layer", drafter.layer, "of", engine.file.spec.num_layers)


if __name__ == "__main__":
    main()
