"""What would a window of parallel guesses bring, as lookahead decoding has one?

    python -m lab.lookahead [MODEL] --bench FOLDER [--windows 0,4,8,16] [--prompts 13] [--tokens 96]

BENCH holds spec_bench.jsonl.gz. "Break the Sequential Dependency of LLM Inference Using Lookahead
Decoding" spends nodes of every pass on guesses at the next `window` tokens, which the model puts
right pass by pass; what it says of them goes to the pool that `jacobi` drafts from. Here guesses
are a branch of the tree beside eight drafted tokens. Tokens a step are counts; `speed` is by the
cost of passes of a 336M model in Q8_0 (T(8) is 1.5 T(1)), against plain decoding, and drafting is
free.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

import edgespec
from edgespec.backends.passes import TokenTree
from edgespec.backends.sequence import KvSequence
from edgespec.drafting.base import Drafter
from edgespec.drafting.registry import make_drafter
from edgespec.drafting.tree import DraftTree, StepOutcome, TopTokens
from edgespec.system.size import MIB
from lab.harness import MODEL, Asked, Rows, Script, numbers, option, read_lines

NODES = 8
CURVE = {1: 13.2, 2: 13.9, 4: 16.2, 8: 19.7, 16: 26.6, 32: 40.4}
"""Milliseconds; the last as if the slope stayed."""
script = Script(__doc__)


def with_window(tree: DraftTree, window: list[int]) -> DraftTree:
    """The guesses as one more branch of a tree."""
    size, more = len(tree), len(window)
    parents = [0, *range(size, size + more - 1)] if more else []
    return DraftTree(
        np.concatenate((tree.tokens, np.array(window, np.int32))),
        np.concatenate((tree.parents, np.array(parents, np.int16))),
        np.ones(size + more, np.float32),
        np.ones(size + more, np.uint8),
    )


def best_path(tree: DraftTree, likeliest: list[int]) -> list[int]:
    """The longest path that says what the model does."""
    paths, best = {0: [0]}, [0]
    for node in range(1, len(tree)):
        parent = int(tree.parents[node])
        if parent in paths and int(tree.tokens[node]) == likeliest[parent]:
            paths[node] = [*paths[parent], node]
            best = max(best, paths[node], key=len)
    return best


def replied(
    sequence: KvSequence, drafter: Drafter, ids: list[int], window: int, num_tokens: int
) -> Counter[int]:
    """How many steps had so many nodes; the tokens written are counted at 0."""
    rng = np.random.default_rng(0)
    sequence.truncate(0)
    sequence.prefill(np.array(ids[:-1], np.int32))
    drafter.reset(ids)
    guesses = rng.choice(ids, window).tolist()
    passes: Counter[int] = Counter()
    while passes[0] < num_tokens:
        tree = with_window(drafter.propose(NODES), guesses)
        made = sequence.forward(TokenTree(tree.tokens, tree.parents))
        likeliest = np.asarray(made.logits).argmax(axis=1).astype(np.int32)
        path = best_path(tree, likeliest.tolist())
        new = [*tree.tokens[path[1:]].tolist(), int(likeliest[path[-1]])]
        sequence.commit(path)
        top = TopTokens(likeliest[:, None], np.zeros((len(tree), 1), np.float32))
        drafter.observe(StepOutcome(tree, path, new[-1], new, top))
        drafter.extend(new)
        chain = [likeliest[0], *likeliest[len(tree) - window :]] if window else []
        ahead = [int(token) for token in chain[len(new) :]]
        guesses = (ahead + rng.choice(ids, window).tolist())[:window]
        passes[len(tree)] += 1
        passes[0] += len(new)
    return passes


@script.command(
    MODEL,
    option("--bench", type=Path, required=True),
    option("--windows", type=numbers, default=[0, 4, 8, 16]),
    option("--prompts", type=int, default=13),
    option("--tokens", type=int, default=96),
)
def lookahead(asked: Asked) -> Rows:
    """One prompt of each category of Spec-Bench, or more."""
    with edgespec.load(asked.model, max_nodes=NODES + max(asked.windows) + 1) as engine:
        sequence = engine.scheduler.slots[0].sequence
        prompts: dict[str, list[list[int]]] = {}
        for question in read_lines(asked.bench / "spec_bench.jsonl.gz"):
            ids = engine.encode(question["turns"][0])
            of = prompts.setdefault(question["category"], [])
            if len(ids) < 500 and len(of) < max(asked.prompts // 13, 1):
                of.append(ids)
        for name in ("jacobi", "suffix-automaton"):
            for window in asked.windows if name == "jacobi" else [0]:
                drafter, passes = make_drafter(name, 2 * MIB), Counter[int]()
                for ids in (one for of in prompts.values() for one in of):
                    passes += replied(sequence, drafter, ids, window, asked.tokens)
                tokens = passes.pop(0)
                cost = sum(
                    count * float(np.interp(nodes, list(CURVE), list(CURVE.values())))
                    for nodes, count in passes.items()
                )
                yield {
                    "drafter": name,
                    "window": window,
                    "tokens/step": f"{tokens / passes.total():.3f}",
                    "nodes/pass": f"{sum(n * c for n, c in passes.items()) / passes.total():.1f}",
                    "speed": f"{tokens * CURVE[1] / cost:.3f}",
                }


if __name__ == "__main__":
    script.run()
