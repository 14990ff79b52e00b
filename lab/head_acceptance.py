"""How often a draft head's tokens are right, by depth, on replies of several kinds.

    python -m lab.head_acceptance [MODEL] [--draft-model HEAD] [--temperatures 0 0.8]

Every reply is written without speculation; then the head drafts a chain of five at each of its
tokens, from what the model left there. A draft counts where all before it were right. Without a
head in a file of its own, the model's is used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

import edgespec
from edgespec.drafting.model.head_drafter import HeadDrafter
from edgespec.drafting.tree import NO_PATH
from edgespec.engine.engine import Engine
from edgespec.verification.sampling import SamplingParams
from lab.draft_models import FAMILIES, TOPICS
from lab.harness import MODEL, Asked, Rows, Script, option, tokens

DEPTH = 5


script = Script(__doc__)


@script.command(
    MODEL,
    option("--draft-model", help="an EAGLE-3 head; otherwise the model's own head"),
    option("--temperatures", nargs="+", type=float, default=[0.0, 0.8]),
    option("--topics", type=int, default=4, help="for each prompt"),
    tokens(48),
)
def by_depth(asked: Asked) -> Rows:
    """Acceptance by depth and kind of reply."""
    options: dict[str, Any] = {"drafters": "mtp", "backend": "native", "memory": "3GiB"}
    if asked.draft_model:
        options |= {"drafters": "none", "draft_model": asked.draft_model}
    with edgespec.load(asked.model, **options) as engine:
        for family, prompts in FAMILIES.items():
            for temperature in asked.temperatures:
                right, drafted = np.zeros(DEPTH, np.int64), np.zeros(DEPTH, np.int64)
                for seed, topic in enumerate(TOPICS[: asked.topics]):
                    for prompt in prompts:
                        text = prompt.replace("{}", topic)
                        found = judged(engine, text, temperature, seed, asked.tokens)
                        for depth, (tried, hits) in found.items():
                            drafted[depth] += tried
                            right[depth] += hits
                row: dict[str, Any] = {"kind": family, "temperature": temperature}
                row["tokens"] = int(drafted[0])
                for depth in range(DEPTH):
                    row[f"depth {depth + 1}"] = f"{right[depth] / max(drafted[depth], 1):.2f}"
                row["right in a row"] = f"{right.sum() / max(drafted[0], 1):.2f}"
                yield row


def judged(
    engine: Engine, prompt: str, temperature: float, seed: int, max_tokens: int
) -> dict[int, tuple[int, int]]:
    """Drafts asked for and right, by depth."""
    options: dict[str, Any] = {"max_tokens": max_tokens, "seed": seed, "temperature": temperature}
    reply = engine.generate(prompt, speculation=False, **options)
    slot = engine.scheduler.slots[0]
    drafter = next(one for one in _drafters(slot.market) if isinstance(one, HeadDrafter))
    sampling = SamplingParams(temperature=temperature, seed=reply.stats.seed)
    ids, start = list(slot.ids), reply.stats.prompt_tokens
    sequence = slot.sequence
    sequence.truncate(0)
    drafter.begin(sampling)
    sequence.prefill(ids[: start - 1])
    drafter.reset(ids[:start])
    counts: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for place in range(start, len(ids)):
        drafter._path, drafter._num_drafts = NO_PATH, 0
        token = ids[place - 1]
        for depth in range(min(DEPTH, len(ids) - place)):
            if not drafter._draw(depth, *drafter._row(token, depth)):
                break
            token = int(drafter._drafts[depth, 0])
            counts[depth][0] += 1
            if token != ids[place + depth]:
                break
            counts[depth][1] += 1
        sequence.prefill(ids[place - 1 : place])
        drafter.extend(ids[place : place + 1])
    return {depth: (asked, hits) for depth, (asked, hits) in counts.items()}


def _drafters(market: Any) -> Iterator[Any]:
    for source in market._sources:
        yield source.drafter


if __name__ == "__main__":
    script.run()
