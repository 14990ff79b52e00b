"""What a text of a million tokens costs the drafters, and whether they hold their caps.

    python benchmarks/million_tokens.py [--tokens 1000000] [--drafters all] [--bytes 2097152]

Each drafter reads the text 16 tokens at a time, as after steps that accept many drafts, and is
asked for 8 nodes after every 64 tokens. `us/token` is reading, `us/draft` proposing, each the mean;
`worst ms` the longest that one reading of 16 tokens took: where a store forgets and is built anew.
`holds` is the most that was held, of --bytes. Exit code 1: a drafter held more.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from edgespec.drafting.registry import DRAFTERS
from edgespec.system.size import MIB, format_size
from edgespec.tools.replay.lanes import make

PIECE, BETWEEN, NODES = 16, 64, 8
Text = NDArray[np.int32]
TEXTS: dict[str, Callable[[int, np.random.Generator], Text]] = {
    "random": lambda n, rng: rng.integers(0, 50_000, n, np.int32),
    "identical": lambda n, rng: np.full(n, 7, np.int32),
    "alternating": lambda n, rng: np.arange(n, dtype=np.int32) % 2,
    "repeat of 1,000": lambda n, rng: np.resize(rng.integers(0, 50_000, 1000, np.int32), n),
}


def feed(name: str, text: Text, max_bytes: int) -> tuple[float, float, float, int]:
    """Seconds of all reading, of all proposing, of the longest reading; most bytes held."""
    drafter = make(name, max_bytes)
    drafter.reset(text[:PIECE])
    pieces = [text[place : place + PIECE].tolist() for place in range(PIECE, len(text), PIECE)]
    reading = proposing = longest = 0.0
    most_bytes = 0
    for number, piece in enumerate(pieces):
        start = time.perf_counter()
        drafter.extend(piece)
        read = time.perf_counter()
        reading += read - start
        longest = max(longest, read - start)
        if number % (BETWEEN // PIECE) == 0:
            drafter.propose(NODES)
            proposing += time.perf_counter() - read
            most_bytes = max(most_bytes, drafter.size_bytes)
    return reading, proposing, longest, most_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--drafters", default="all")
    parser.add_argument("--bytes", type=int, default=2 * MIB)
    asked = parser.parse_args()
    print(f"{'drafter':18}{'text':18}{'us/token':>9}{'us/draft':>10}{'worst ms':>10}{'holds':>11}")
    most_bytes = 0
    for name in DRAFTERS if asked.drafters == "all" else asked.drafters.split(","):
        feed(name, np.arange(1000, dtype=np.int32) % 9, asked.bytes)  # compiles
        for kind, text_of in TEXTS.items():
            text = text_of(asked.tokens, np.random.default_rng(1))
            reading, proposing, longest, held = feed(name, text, asked.bytes)
            most_bytes = max(most_bytes, held)
            print(
                f"{name:18}{kind:18}{1e6 * reading / asked.tokens:9.2f}"
                f"{1e6 * proposing * BETWEEN / asked.tokens:10.1f}{1e3 * longest:10.2f}"
                f"{format_size(held):>11}",
                flush=True,
            )
    print(f"held {most_bytes} bytes at most, of {asked.bytes}")
    sys.exit(1 if most_bytes > asked.bytes else 0)


if __name__ == "__main__":
    main()
