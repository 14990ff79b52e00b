"""How many more drafts rejection sampling would accept than matching by shared noise.

    python lab/rejection_gain.py [--model MODEL] [--draft MODEL] [--tokens 64]

The target writes replies; at each of their tokens p is its distribution and q the draft model's,
both after top-k, top-p, min-p and temperature. Rejection sampling accepts a draft with probability
sum(min(p, q)) ("Fast Inference from Transformers via Speculative Decoding", section 3.1). Matching
accepts it when both models draw the same token with the same Gumbel noise, and the probability of
that is known without drawing: token x wins both races with probability 1 / sum over y of
max(p_y / p_x, q_y / q_x). Sorted by p / q, the sums are running sums.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import numpy as np
from numpy.typing import NDArray

import edgespec
from edgespec.backends.passes import TokenTree
from edgespec.engine.engine import Engine
from edgespec.verification.rejection.distribution import target_distribution
from edgespec.verification.sampling import SamplingParams

KINDS = {
    "a story": ("Tell me a story about {}.", "Once upon a time there was {}."),
    "a question": ("What is {}?", "Why do people like {}?"),
    "a list": ("Write a list of five things about {}.", "Name three kinds of {}."),
    "code": ("def describe_{}(value):", "class {}:"),
}
THINGS = ("a small dog", "the sea", "music", "an old tree", "bread")
CUTS: dict[str, dict[str, Any]] = {"none": {"top_k": 0, "top_p": 1.0, "min_p": 0.0}, "default": {}}
TEMPERATURES = (0.8, 1.0)
Floats = NDArray[np.float64]


def prompts() -> list[str]:
    """Forty, of four kinds."""
    return [
        form.format(thing.replace(" ", "_") if kind == "code" else thing)
        for kind, forms in KINDS.items()
        for form in forms
        for thing in THINGS
    ]


def logits_of(engine: Engine, ids: list[int], first: int) -> NDArray[np.float32]:
    """What the engine's model says after each token of a text from number `first` on."""
    sequence, step, rows = engine.scheduler.target.own, engine.plan.max_nodes, []
    sequence.truncate(0)
    sequence.prefill(ids[:first])
    for start in range(first, len(ids), step):
        part = ids[start : start + step]
        rows.append(sequence.forward(TokenTree.chain(part)).logits.copy())
        sequence.commit(range(len(part)))
    return np.concatenate(rows)


def dense(row: NDArray[np.float32], params: SamplingParams) -> Floats:
    """The distribution over the whole vocabulary that a token is drawn from."""
    tokens, shares = target_distribution(row, [], params, 0)
    found = np.zeros(len(row))
    found[tokens] = shares
    return found


def matching(target: Floats, draft: Floats) -> float:
    """The probability that both draw the same token with the same noise."""
    both = (target > 0) & (draft > 0)
    ratio = np.full(len(target), np.inf)
    ratio[draft > 0] = target[draft > 0] / draft[draft > 0]
    order = np.argsort(-ratio, kind="stable")
    above, below = np.cumsum(target[order]), np.cumsum(draft[order][::-1])[::-1] - draft[order]
    total = np.empty(len(target))
    with np.errstate(divide="ignore", invalid="ignore"):
        total[order] = above / target[order] + below / draft[order]
    return float((1.0 / total[both]).sum())


def main() -> None:
    """Print mean acceptance by temperature and cuts."""
    parser = argparse.ArgumentParser(description="acceptance by matching and by rejection")
    parser.add_argument("--model", default="edgespec-tiny")
    parser.add_argument("--draft", default="edgespec-draft")
    parser.add_argument("--tokens", type=int, default=64)
    asked = parser.parse_args()
    print("| temperature | cuts | tokens | matching | rejection | gain | least, most of a kind |")
    with edgespec.load(asked.model) as engine, edgespec.load(asked.draft) as drafter:
        kinds = [kind for kind, forms in KINDS.items() for _ in forms for _ in THINGS]
        for temperature in TEMPERATURES:
            for name, cuts in CUTS.items():
                params = SamplingParams(temperature=temperature, **cuts)
                shares: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
                for seed, (kind, prompt) in enumerate(zip(kinds, prompts(), strict=True)):
                    ids = engine.encode(prompt)
                    options: dict[str, Any] = {"temperature": temperature, "seed": seed, **cuts}
                    reply = engine.generate(ids, max_tokens=asked.tokens, **options)
                    text = [*ids, *reply.token_ids]
                    pair = [logits_of(one, text[:-1], len(ids) - 1) for one in (engine, drafter)]
                    for rows in zip(*pair, strict=True):
                        p, q = (dense(row, params) for row in rows)
                        shares[kind].append((matching(p, q), float(np.minimum(p, q).sum())))
                means = [np.mean(found, axis=0) for found in shares.values()]
                gains = [ours[1] / ours[0] - 1 for ours in means]
                every = [pair for found in shares.values() for pair in found]
                match, reject = (statistics.fmean(values) for values in zip(*every, strict=True))
                print(
                    f"| {temperature} | {name} | {len(every)} | {match:.3f} | {reject:.3f} "
                    f"| {reject / match - 1:+.1%} | {min(gains):+.1%}, {max(gains):+.1%} |"
                )


if __name__ == "__main__":
    main()
