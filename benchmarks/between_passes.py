"""What a pass takes, and what is between two passes: sampling, text, books, Python.

    python benchmarks/between_passes.py [MODEL] [--backend native] [--tokens 250] [--rounds 4]

Plain decoding of one text, medians in microseconds; the second round and later ones count.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec

PROMPT = "Tell me a story about a dog."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--backend", default="native")
    parser.add_argument("--tokens", type=int, default=250)
    parser.add_argument("--rounds", type=int, default=4)
    asked = parser.parse_args()
    with edgespec.load(asked.model, backend=asked.backend) as engine:
        target, times = engine.scheduler.target, list[tuple[float, float]]()
        forward = target.forward

        def timed(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            logits = forward(*arguments, **options)
            times.append((begin, time.perf_counter()))
            return logits

        target.forward = timed  # type: ignore[method-assign]
        for turn in range(asked.rounds):
            times.clear()
            engine.generate(
                PROMPT,
                max_tokens=asked.tokens,
                temperature=0,
                ignore_eos=True,
                speculation=False,
            )
            passes = statistics.median(end - begin for begin, end in times)
            between = statistics.median(
                after[0] - before[1] for before, after in zip(times, times[1:], strict=False)
            )
            if turn:
                print(f"pass {1e6 * passes:6.0f} us, between passes {1e6 * between:5.0f} us")


if __name__ == "__main__":
    main()
