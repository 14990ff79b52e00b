"""Is the text the same with each drafter, with all of them, alone and in a batch? Counts the cases
in which it is not.

    python benchmarks/equality_drafters.py [MODEL] [--prompts 300] [--tokens 48] [--out FILE.jsonl]

For each prompt at temperature 0 and 0.8, with two seeds, every other one past its reply's end, one
reply is written without speculation on one thread. Then the same reply on two threads, alone and as
one of eight in a batch: without drafters, with every drafter and with all together, every draft
being verified, paying or not; and in a batch with speculation as it pays. Token ids, text and the
reason for ending must be equal. Results go to a file as they come; a run that was stopped goes on
where it was. Exit code 1: a mismatch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice, product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
from benchmarks.equality import Case, compared, prompts, report, verify_everything
from edgespec.drafting.registry import DRAFTERS
from edgespec.engine.engine import Engine
from edgespec.engine.reply import Reply
from edgespec.loading.model_drafters import EARLY_EXIT
from edgespec.memory.plan.settings import BUILT_IN_DRAFTERS

TEMPERATURES = (0.0, 0.8)
SEEDS = (1, 2)
BATCH = 8


def groups(num_prompts: int, max_tokens: int) -> Iterator[tuple[Case, ...]]:
    """Eight prompts at a time, alike in all else."""
    every = list(islice(prompts(), num_prompts))
    for first, temperature, seed in product(range(0, len(every), BATCH), TEMPERATURES, SEEDS):
        texts = every[first : first + BATCH]
        yield tuple(
            Case(text, temperature, seed, max_tokens, ignore_eos=bool(number % 2))
            for number, text in enumerate(texts)
        )


def check(
    group: tuple[Case, ...], plain: Engine, paying: Engine, drafting: dict[str, Engine]
) -> list[dict[str, Any]]:
    """Compare all ways of writing each reply: way -> whether it was equal and its numbers."""
    expected = [case.plain(plain) for case in group]
    ways: dict[str, list[Reply]] = {f"as it pays, {BATCH} at once": together(group, paying)}
    for name, engine in drafting.items():
        ways[f"{name}, alone"] = [
            case.speculative(engine, "drafter", None, reply)
            for case, reply in zip(group, expected, strict=True)
        ]
        ways[f"{name}, {BATCH} at once"] = together(group, engine)
    return [
        {way: compared(reply, replies[number]) for way, replies in ways.items()}
        for number, reply in enumerate(expected)
    ]


def together(group: tuple[Case, ...], engine: Engine) -> list[Reply]:
    return engine.generate_batch([case.request(engine) for case in group])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--prompts", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--out", type=Path, default=Path("equality_drafters.jsonl"))
    options = parser.parse_args()
    done: dict[str, list[dict[str, Any]]] = {}
    if options.out.exists():
        for line in options.out.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            done[record["group"]] = record["found"]
    wanted = {repr(group): group for group in groups(options.prompts, options.tokens)}
    batch = {"sequences": BATCH, "context": 1024}
    with ExitStack() as stack, options.out.open("a", encoding="utf-8") as out:

        def load(**more: Any) -> Engine:
            return stack.enter_context(edgespec.load(options.model, **more))

        plain, paying = load(threads=1, drafters="none"), load(threads=2, **batch)
        every = ",".join((*DRAFTERS, EARLY_EXIT))
        names = {name: name for name in ("none", *DRAFTERS, EARLY_EXIT)} | {
            "early-exit and default": ",".join((*BUILT_IN_DRAFTERS, EARLY_EXIT)),
            "all together": every,
        }
        drafting = {way: load(threads=2, drafters=name, **batch) for way, name in names.items()}
        for engine in drafting.values():
            verify_everything(engine)
        for number, (key, group) in enumerate(wanted.items(), 1):
            if key not in done:
                done[key] = check(group, plain, paying, drafting)
                out.write(json.dumps({"group": key, "found": done[key]}) + "\n")
                out.flush()
            if sys.stderr.isatty():
                print(f"\r{number * BATCH} replies", end="", file=sys.stderr)
    sys.exit(1 if report([ways for key in wanted for ways in done[key]]) else 0)


if __name__ == "__main__":
    main()
