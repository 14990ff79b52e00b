"""Is a reply the same alone and in a batch? Counts every case in which it is not.

    python benchmarks/batch_equality.py [MODEL] [--prompts 200] [--tokens 48] [--sizes 1,8]

Each prompt at temperature 0 and 0.8, every other one past the reply's end, is written by `generate`
without speculation; then all of them in batches of each size, drafted by every drafter alone and by
all together, with all drafts verified, paying or not. Token ids, text and the reason for ending
must be equal. Exit code 1: a mismatch.
"""

from __future__ import annotations

import argparse
import os
import sys
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
from benchmarks.equality import prompts, same
from edgespec.engine import Engine
from edgespec.opening import DRAFTERS
from edgespec.reply import Reply, Request

TEMPERATURES = (0.0, 0.8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--sizes", default="1,8")
    asked = parser.parse_args()
    sizes = [int(size) for size in asked.sizes.split(",")]
    with edgespec.load(asked.model, drafters="none") as engine:
        wanted = _requests(engine, asked.prompts, asked.tokens)
        expected = [_alone(engine, request) for request in wanted]
    print(f"{'drafters':<18}{'at once':>8}{'replies':>9}{'mismatches':>12}{'tokens/step':>13}")
    wrong = 0
    for drafters in ("none", *DRAFTERS, ",".join(DRAFTERS)):
        with edgespec.load(
            asked.model, drafters=drafters, sequences=max(sizes), context=1024
        ) as engine:
            verify_everything(engine)
            for size in sizes:
                found = engine.generate_batch(wanted, max_batch=size)
                different = sum(
                    not same(one, other) for one, other in zip(expected, found, strict=True)
                )
                steps = sum(reply.stats.steps for reply in found)
                tokens = sum(reply.stats.output_tokens for reply in found)
                name = drafters if "," not in drafters else "all together"
                print(f"{name:<18}{size:>8}{len(found):>9}{different:>12}{tokens / steps:>13.2f}")
                wrong += different
    print(f"mismatches={wrong}")
    sys.exit(1 if wrong else 0)


def _requests(engine: Engine, count: int, max_tokens: int) -> list[Request]:
    return [
        engine.request(
            prompt,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=number,
            ignore_eos=bool(number % 2),
        )
        for temperature in TEMPERATURES
        for number, prompt in enumerate(islice(prompts(), count))
    ]


def _alone(engine: Engine, request: Request) -> Reply:
    return engine.generate(
        request.prompt_ids,
        max_tokens=request.max_tokens,
        temperature=request.sampling.temperature,
        seed=request.sampling.seed,
        ignore_eos=request.ignore_eos,
        speculation=False,
    )


def verify_everything(engine: Engine) -> None:
    """Let the allotment believe that passes of any size take a second."""
    engine.allotment.curve.table[:] = 1.0
    engine.allotment.curve.update = lambda *_: None  # type: ignore[method-assign]


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        os.environ["EDGESPEC_DATA"] = folder  # the user's own history stays as it is
        main()
