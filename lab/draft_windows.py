"""What does a draft model lose that keeps only the ends of a long text?

    python -m lab.draft_windows [MODEL] --bench FOLDER [--draft-models edgespec-draft,edgespec-tiny]
        [--windows 64,128,256,off] [--prompts 8] [--tokens 64]

BENCH holds spec_bench.jsonl.gz, of whose `rag` and `summarization` prompts those are taken that
nearly fill the model's context. Chains of four drafts, greedy; tokens a step are counts, and a
model that drafts for itself shows what the window alone costs. `MiB` are keys and values of a
sequence in f16, which the plan counts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import edgespec
from edgespec.backends.passes import TokenTree
from edgespec.drafting.model.small_model import DraftModelDrafter
from edgespec.drafting.tree import StepOutcome, TopTokens
from edgespec.engine.engine import Engine
from edgespec.loading.draft_model import DraftModel
from edgespec.memory.plan.kv_sizes import kv_bytes
from edgespec.system.size import MIB
from edgespec.verification.sampling import SamplingParams
from lab.harness import MODEL, Asked, Rows, Script, names, option, read_lines, tokens
from lab.lookahead import best_path

NODES = 4
REPLY_ROOM = 130
script = Script(__doc__)


def steps_of(engine: Engine, drafter: DraftModelDrafter, ids: list[int], num_tokens: int) -> int:
    """Steps that a reply of at least so many tokens takes, times what it is longer."""
    sequence = engine.scheduler.slots[0].sequence
    sequence.truncate(0)
    sequence.prefill(np.array(ids[:-1], np.int32))
    drafter.reset(ids)
    written = steps = 0
    while written < num_tokens:
        tree = drafter.propose(NODES)
        made = sequence.forward(TokenTree(tree.tokens, tree.parents))
        likeliest = np.asarray(made.logits).argmax(axis=1).astype(np.int32)
        path = best_path(tree, likeliest.tolist())
        new = [*tree.tokens[path[1:]].tolist(), int(likeliest[path[-1]])]
        sequence.commit(path)
        top = TopTokens(likeliest[:, None], np.zeros((len(tree), 1), np.float32))
        drafter.observe(StepOutcome(tree, path, new[-1], new, top))
        drafter.extend(new)
        written, steps = written + len(new), steps + 1
    return steps


@script.command(
    MODEL,
    option("--bench", type=Path, required=True),
    option("--draft-models", type=names, default=["edgespec-draft", "edgespec-tiny"]),
    option("--windows", type=names, default=["off", "256", "128", "64"]),
    option("--prompts", type=int, default=8),
    tokens(64),
)
def windows(asked: Asked) -> Rows:
    """Tokens a step of each draft model with each window."""
    for draft in asked.draft_models:
        for window in asked.windows:
            options = {"draft_model": draft, "draft_window": window, "overlap": "off"}
            with edgespec.load(asked.model, threads=1, max_nodes=NODES + 1, **options) as engine:
                (other,) = (one for one in engine._drafting if isinstance(one, DraftModel))
                assert other._target is not None
                small, vocab = other._target.own, engine.file.spec.vocab_size
                room = engine.plan.context_length - REPLY_ROOM
                texts = []
                for question in read_lines(asked.bench / "spec_bench.jsonl.gz"):
                    if question["category"] in ("rag", "summarization"):
                        ids = engine.encode(question["turns"][0])
                        if room * 3 // 4 <= len(ids) <= room:
                            texts.append(ids)
                steps = 0
                for ids in texts[:: max(len(texts) // asked.prompts, 1)][: asked.prompts]:
                    drafter = DraftModelDrafter(small, vocab, slides=other.slides(engine.plan))
                    drafter.begin(SamplingParams(temperature=0.0, seed=0))
                    steps += steps_of(engine, drafter, ids, asked.tokens)
                held = kv_bytes(other.file.spec, other._target.context_length) / MIB
                yield {
                    "draft model": draft,
                    "window": window,
                    "tokens/step": f"{asked.prompts * asked.tokens / steps:.3f}",
                    "MiB": f"{held:.2f}",
                }


if __name__ == "__main__":
    script.run()
