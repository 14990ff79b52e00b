"""What does typical acceptance bring, and what does it cost the text?

    python -m lab.typical [MODEL] --bench FOLDER [--prompts 26] [--tokens 96]

BENCH holds spec_bench.jsonl.gz. The same questions with both rules, every draft verified, so tokens
a step are counts. Of the text: nats, the mean of the model's own -log p of each token (the row
`exact` has what it would write by itself), and the part of its runs of four tokens that came before
in the same reply.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import edgespec
from edgespec.engine.reply import Reply
from edgespec.errors import ContextOverflowError
from lab.harness import MODEL, Asked, Rows, Script, numbers, option, read_lines
from tests.support.equality import verify_everything

RUN = 4
SETS = ("suffix-automaton,trigram", "suffix-automaton,trigram,early-exit")
script = Script(__doc__)


def repeated(ids: list[int]) -> float:
    """The part of runs of four tokens that came before."""
    runs = [tuple(ids[place : place + RUN]) for place in range(len(ids) - RUN + 1)]
    return 1 - len(set(runs)) / max(len(runs), 1)


@script.command(
    MODEL,
    option("--bench", type=Path, required=True),
    option("--prompts", type=int, default=26),
    option("--tokens", type=int, default=96),
    option("--percents", type=numbers, default=[50, 80, 100], help="temperatures times 100"),
)
def typical(asked: Asked) -> Rows:
    """Questions spread over all categories."""
    questions = list(read_lines(asked.bench / "spec_bench.jsonl.gz"))
    questions = questions[:: max(len(questions) // asked.prompts, 1)]
    for drafters in SETS:
        with edgespec.load(asked.model, drafters=drafters, max_nodes=9) as engine:
            verify_everything(engine)
            for percent in asked.percents:
                for accept in ("exact", "typical"):
                    replies: list[Reply] = []
                    for seed, question in enumerate(questions):
                        try:
                            replies.append(
                                engine.generate(
                                    question["turns"][0],
                                    max_tokens=asked.tokens,
                                    seed=seed,
                                    temperature=percent / 100,
                                    accept=accept,
                                    logprobs=0,
                                    ignore_eos=True,
                                )  # fmt: skip
                            )
                        except ContextOverflowError:
                            continue
                    steps = sum(reply.stats.steps for reply in replies)
                    told = [one.logprob for reply in replies for one in reply.logprobs or []]
                    ids = [reply.token_ids for reply in replies]
                    yield {
                        "drafters": drafters,
                        "temperature": percent / 100,
                        "accept": accept,
                        "tokens/step": f"{sum(map(len, ids)) / steps:.3f}",
                        "nats": f"{-statistics.mean(told):.3f}",
                        "repeated": f"{statistics.mean(map(repeated, ids)):.3f}",
                    }


if __name__ == "__main__":
    script.run()
