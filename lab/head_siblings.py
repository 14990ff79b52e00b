"""Whether the sibling of a draft head drafts what the head drafts.

    python -m lab.models sibling WIDE.gguf
    python -m lab.models sibling WIDE-HEAD.gguf --of HEAD.gguf
    python -m lab.head_siblings WIDE.gguf WIDE-HEAD.gguf --of MODEL --head HEAD.gguf

An EAGLE-3 head and its sibling, each beside its own model, draft chains greedily at places of a
text. Exit code 1: a logit of theirs is not the same.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.target import NativeTarget
from edgespec.backends.passes import TokenTree
from edgespec.memory.plan.head_sizes import HEAD_CHUNK, HEAD_NODES
from edgespec.models.draft_heads import open_head
from edgespec.models.open_model import open_model
from edgespec.models.registry import resolve
from lab.harness import Asked, Rows, Script, option
from tests.support.targets import PLAN

DEPTH = 4
script = Script(__doc__)


@script.command(
    option("model", type=Path),
    option("sibling_head", type=Path),
    option("--of", type=Path, metavar="MODEL", help="the bundled one if left out"),
    option("--head", type=Path, required=True),
    option("--chains", type=int, default=24),
)
def compare(asked: Asked) -> Rows:
    """Logits of the same drafts."""
    small = drafted(asked.of or resolve(), asked.head, asked.chains)
    large = drafted(asked.model, asked.sibling_head, asked.chains)
    changed = sum(not np.array_equal(one, other) for one, other in zip(small, large, strict=True))
    yield {"drafts": len(small), "with other logits": changed}
    script.check(changed == 0, f"{changed} drafts with other logits")


def drafted(model: Path, head: Path, chains: int) -> list[NDArray[np.float32]]:
    """The logits of chains that begin behind one to eight tokens of texts, one row a draft."""
    rng, rows = np.random.default_rng(0), list[NDArray[np.float32]]()
    plan = replace(PLAN, backend="native", context_length=64, prefill_chunk=32)
    own_plan = replace(plan, max_nodes=HEAD_NODES, prefill_chunk=HEAD_CHUNK)
    with open_model(model) as file, open_head(head, file.spec) as head_file:
        target = NativeTarget(file, plan)
        head_target = target.open_head(head_file, own_plan)
        for chain in range(chains):
            ids = rng.integers(3, file.spec.vocab_size, HEAD_NODES + 1, dtype=np.int32)
            left = target.own.forward(TokenTree.chain(ids)).hidden
            assert left is not None
            left, own, end = left.copy(), head_target.own, 1 + chain % HEAD_NODES
            own.truncate(0)
            found = own.forward(TokenTree.chain(ids[1 : end + 1], left[:end]))
            own.commit(range(end))
            for _ in range(DEPTH):
                assert found.hidden is not None
                rows.append(found.logits[-1].copy())
                token = np.array([rows[-1].argmax()], np.int32)
                found = own.forward(TokenTree.chain(token, found.hidden[-1:].copy()))
                own.commit(range(1))
    return rows


if __name__ == "__main__":
    script.run()
