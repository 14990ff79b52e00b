"""What speculation brings, and costs: the same replies with it and without, in turns.

    python benchmarks/speculation.py [MODEL] [--tokens 200] [--rounds 7]

Medians over the rounds of one process; ratio: with / without. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
from benchmarks.forgetting import forget
from edgespec.engine.reply import Reply

PROMPTS = {
    "story, temperature 0.8": ("Tell me a short story about a dog.", 0.8, False),
    "story, greedy": ("Tell me a short story about a dog.", 0.0, False),
    "repeated phrase": ("the red ball and the blue box and " * 12, 0.0, True),
    "fields as JSON": ("Extract name and age as JSON: Tom is 5. Sue is 6.", 0.0, False),
}
"""By name: the prompt, the temperature, and whether it is sent without the chat template."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    with edgespec.load(asked.model) as engine:
        print("T(n), ms:", {n: round(1e3 * s, 2) for n, s in engine.cost_curve().items()})
        for name, (prompt, temperature, raw) in PROMPTS.items():
            replies: dict[bool, list[Reply]] = {True: [], False: []}
            for turn in range(asked.rounds):
                for speculation in (True, False) if turn % 2 else (False, True):
                    forget(engine)
                    replies[speculation].append(
                        engine.generate(
                            prompt,
                            max_tokens=asked.tokens,
                            temperature=temperature,
                            seed=5,
                            speculation=speculation,
                            ignore_eos=True,
                            raw=raw,
                        )
                    )
            on, off = (
                statistics.median(reply.stats.tokens_per_second for reply in replies[key])
                for key in (True, False)
            )
            last = replies[True][-1].stats
            print(
                f"{name:24} with {on:6.0f} tokens/s  without {off:6.0f}  ratio {on / off:.3f}  "
                f"tokens/step {last.tokens_per_step:.2f}  estimated {last.estimated_speedup:.2f}"
            )


if __name__ == "__main__":
    main()
