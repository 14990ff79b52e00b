"""Is the text the same when a draft model works while the target verifies? Counts every case in
which it is not.

    python benchmarks/equality_overlap.py DRAFT.gguf [MODEL] [--prompts 200] [--tokens 16]

For each prompt, at temperature 0 and 0.8, one reply is written without speculation; then the same
reply with the draft model's thread working ahead, alone, beside each other drafter, and beside all
of them. Every draft is verified, paying or not, and every pass of either model takes up to 2 ms
longer by chance, so that drafts come early, late and too late. Exit code 1: a mismatch.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
from benchmarks.equality import Case, compared, prompts, report
from edgespec.backends.native.target import NativeTarget
from edgespec.drafting.registry import DRAFTERS
from edgespec.engine.engine import Engine

TEMPERATURES = (0.0, 0.8)
LONGEST_S = 2e-3


def delay_passes(seed: int) -> None:
    """Let every pass of every native model take longer by chance."""
    forward, rng = NativeTarget._forward, random.Random(seed)

    def late(self: NativeTarget, *arguments: Any) -> Any:
        if rng.random() < 0.5:
            time.sleep(rng.random() * LONGEST_S)
        return forward(self, *arguments)

    NativeTarget._forward = late  # type: ignore[method-assign]


def check(case: Case, plain: Engine, drafting: dict[str, Engine]) -> dict[str, Any]:
    """Compare all ways of writing a reply: way -> whether it was equal, and its numbers."""
    expected = case.plain(plain)
    return {
        name: compared(expected, case.speculative(engine, "drafter", None, expected))
        for name, engine in drafting.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("draft")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=16)
    options = parser.parse_args()
    sets = {"alone": "none"} | {name: name for name in (*DRAFTERS, "early-exit")}
    sets["all"] = ",".join((*DRAFTERS, "early-exit"))
    with ExitStack() as opened:
        plain = opened.enter_context(edgespec.load(options.model, threads=1))
        drafting = {
            name: opened.enter_context(
                edgespec.load(
                    options.model,
                    threads=1,
                    backend="native",
                    drafters=drafters,
                    draft_model=options.draft,
                    overlap="on",
                )  # fmt: skip
            )
            for name, drafters in sets.items()
        }
        delay_passes(seed=3)
        found = [
            check(
                Case(text, temperature, number, options.tokens, bool(number % 2)), plain, drafting
            )
            for number, text in enumerate(islice(prompts(), options.prompts))
            for temperature in TEMPERATURES
        ]
    sys.exit(1 if report(found) else 0)


if __name__ == "__main__":
    main()
