"""The sibling of a draft head is as wide as its model's sibling, and drafts what that drafts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec.backends.native.target import NativeTarget
from edgespec.backends.passes import TokenTree
from edgespec.memory.plan.head_sizes import HEAD_CHUNK, HEAD_NODES
from edgespec.models.draft_heads import open_head
from edgespec.models.open_model import open_model
from lab.models import write_sibling
from tests.support.heads import eagle3_keys, eagle3_tensors, write_eagle3, write_model
from tests.support.targets import PLAN

DEPTH, FFN = 4, 1024
PLACES = range(2, 9, 3)


def drafted(model: Path, head: Path) -> list[NDArray[np.float32]]:
    """The logits of chains that begin at several places of a text, one row a draft."""
    ids = np.random.default_rng(0).integers(3, 500, 20, dtype=np.int32)
    plan = replace(PLAN, backend="native", context_length=64, prefill_chunk=32)
    own_plan = replace(plan, max_nodes=HEAD_NODES, prefill_chunk=HEAD_CHUNK)
    rows = []
    with open_model(model) as file, open_head(head, file.spec) as head_file:
        target = NativeTarget(file, plan)
        head_target = target.open_head(head_file, own_plan)
        drafting = head_target.own
        left = target.own.forward(TokenTree.chain(ids[:16])).hidden
        assert left is not None
        left = left.copy()
        for end in PLACES:
            drafting.truncate(0)
            found = drafting.forward(TokenTree.chain(ids[1 : end + 1], left[:end]))
            drafting.commit(range(end))
            for _ in range(DEPTH):
                assert found.hidden is not None
                rows.append(found.logits[-1].copy())
                token = np.array([rows[-1].argmax()], np.int32)
                found = drafting.forward(TokenTree.chain(token, found.hidden[-1:].copy()))
                drafting.commit(range(1))
    return rows


@pytest.mark.parametrize("own_vocabulary", [True, False])
def test_the_sibling_of_a_head_drafts_the_same(tmp_path: Path, own_vocabulary: bool) -> None:
    model = write_model("llama", tmp_path / "model.gguf", type="Q8_0")
    tensors = eagle3_tensors(model)
    if not own_vocabulary:
        del tensors["d2t"], tensors["output.weight"]
    keys = eagle3_keys(tensors, layers=4)
    head = write_eagle3(tmp_path / "head.gguf", tensors, keys, type="Q8_0")
    write_sibling(tmp_path / "wide-model.gguf", model, 6, FFN)
    write_sibling(tmp_path / "wide-head.gguf", head, 6, FFN)
    with (
        open_model(tmp_path / "wide-model.gguf") as file,
        open_head(tmp_path / "wide-head.gguf", file.spec) as wide,
    ):
        assert [layer.ffn.width for layer in wide.spec.layers] == [FFN]
    small = drafted(model, head)
    large = drafted(tmp_path / "wide-model.gguf", tmp_path / "wide-head.gguf")
    assert len(small) == len(PLACES) * DEPTH
    np.testing.assert_array_equal(small, large)
