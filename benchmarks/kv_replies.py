"""How many greedy replies int8 and q4 keys and values leave as they are with f16.

    python benchmarks/kv_replies.py [MODEL] (--text FILE | --questions FILE.jsonl[.gz])
                                    [--replies 100] [--tokens 200]

Prompts are pieces of 300 characters of a text, which the model continues past every end of text, or
first turns of Spec-Bench's questions, which it answers until it ends its reply. A reply counts as
identical when all its tokens are. "First": the median place of the first token that differs, among
the replies that do.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
from edgespec.memory.plan.settings import KV_TYPES

PIECE, STRIDE = 300, 1200


def pieces(path: Path, number: int) -> list[str]:
    """So many prompts from a text, not next to each other."""
    text = path.read_text("utf-8")
    found = [text[first : first + PIECE] for first in range(0, len(text) - PIECE, STRIDE)][:number]
    if len(found) < number:
        raise SystemExit(f"{path} has room for {len(found)} prompts, and {number} were asked for")
    return found


def first_turns(path: Path, number: int) -> list[str]:
    """The shortest questions, so that they fit any context."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        turns = [json.loads(line)["turns"][0] for line in lines]
    return sorted(turns, key=len)[:number]


def replies(
    model: str | None, kv_type: str, prompts: list[str], tokens: int, raw: bool
) -> list[list[int]]:
    """Token ids of each reply."""
    with edgespec.load(model, kv_type=kv_type, backend="native") as engine:
        return [
            engine.generate(
                prompt, max_tokens=tokens, temperature=0.0, raw=raw, ignore_eos=raw
            ).token_ids
            for prompt in prompts
        ]


def line(kv_type: str, wanted: list[list[int]], found: list[list[int]]) -> str:
    pairs = list(zip(wanted, found, strict=True))
    same = sum(a == b for a, b in pairs)
    places = [
        next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
        for a, b in pairs
        if a != b
    ]
    first = f"{statistics.median(places):.0f}" if places else "-"
    lengths = statistics.mean(len(a) for a, _ in pairs)
    return (
        f"{kv_type:<6}{same:>10}{len(pairs):>6}{same / len(pairs):>8.0%}{lengths:>9.0f}{first:>8}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", nargs="?")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", type=Path)
    source.add_argument("--questions", type=Path)
    parser.add_argument("--replies", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=200)
    options = parser.parse_args()
    raw = options.text is not None
    prompts = (
        pieces(options.text, options.replies)
        if raw
        else first_turns(options.questions, options.replies)
    )
    first, *others = KV_TYPES
    wanted = replies(options.model, first, prompts, options.tokens, raw)
    print(f"{'KV':<6}{'identical':>10}{'of':>6}{'':>8}{'tokens':>9}{'first':>8}")
    for kv_type in others:
        found = replies(options.model, kv_type, prompts, options.tokens, raw)
        print(line(kv_type, wanted, found), flush=True)


if __name__ == "__main__":
    main()
