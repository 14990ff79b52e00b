"""The reference backend and llama.cpp on the same random model of every architecture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.backends.passes import TokenTree
from edgespec.backends.reference import ReferenceTarget, arithmetic, experts, layer
from edgespec.models.open_model import open_model
from tests.support import llama_peer
from tests.support.random_models import MODELS, text, write
from tests.support.targets import PLAN, cosines

SHORT, LONG = (96, 24), (160, 64)
"""Tokens of a text, beyond every window, and of its greedy continuation."""
LEAST_COSINE, LEAST_WHERE_ROUTERS_TIE, FEW = 0.9999, 0.98, 0.1
"""Of every position's logits. llama.cpp rounds what F16 matrices multiply to f16, so that routers
that nearly tie choose other experts at a few positions; files of F32 have none.
"""
MARGINS = {"F32": 1e-3, "F16": 1e-2}
"""Logits that are nearer than this, by their spread, tie."""
CASES = [
    *(pytest.param(name, "F32", 0, id=f"{name}-F32") for name in MODELS),
    *(pytest.param(name, "F16", 0, id=f"{name}-F16", marks=pytest.mark.slow) for name in MODELS),
    pytest.param("phi3", "F32", 400, id="phi3-F32, in a long context"),
]


def table_gelu(values: arithmetic.Vector) -> arithmetic.Vector:
    """GELU as llama.cpp looks it up: of numbers rounded to f16, rounded to f16."""
    rounded = values.astype(np.float16).astype(np.float32)
    found = arithmetic.gelu(rounded).astype(np.float16).astype(np.float32)
    limited: arithmetic.Vector = np.where(np.abs(values) < 10, found, np.maximum(values, 0))
    return limited


@pytest.mark.skipif(not llama_peer.installed(), reason="llama-cpp-python is not installed")
@pytest.mark.parametrize(("name", "kind", "context"), CASES)
def test_logits_and_greedy_text_are_the_peers(
    name: str, kind: str, context: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every position; where other tokens are chosen, both engines nearly tie."""
    for module in (layer, experts):
        monkeypatch.setattr(module, "gelu", table_gelu)
    recipe = MODELS[name]()
    path = write(recipe, tmp_path / "model.gguf", type=kind)
    length, continued = LONG if kind == "F16" else SHORT
    ids = text(recipe, length)
    context = context or length + continued
    try:
        [theirs] = llama_peer.scores([path], ids, continued, context=context, kv_type="f32")
    except llama_peer.PeerMissing as error:
        pytest.skip(str(error))
    ours = logits(path, theirs.tokens, context)
    found = cosines(ours, theirs.logits)
    if kind == "F16" and "_exps." in "".join(recipe.tensors):
        assert found.min() >= LEAST_WHERE_ROUTERS_TIE
        found = found[found > np.quantile(found, FEW)]
    assert found.min() >= LEAST_COSINE
    settled = cosines(ours, theirs.logits) >= LEAST_COSINE
    for one, two in zip(ours[settled], theirs.logits[settled], strict=True):
        best, other = int(one.argmax()), int(two.argmax())
        gap = min(one[best] - one[other], two[other] - two[best])
        assert gap <= MARGINS[kind] * two.std()


def logits(path: Path, ids: list[int], context: int) -> Any:
    """The reference backend's for all of them, [tokens, vocab]."""
    plan = replace(PLAN, backend="reference", context_length=context, kv_type="f32")
    with open_model(path) as file:
        target = ReferenceTarget(file, replace(plan, max_nodes=context))
    with target:
        return target.own.forward(TokenTree.chain(ids)).logits
