"""Every architecture on the native backend: the reference's logits, and the same bits whatever else
is in a pass.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec.backends.native.target import NativeTarget
from edgespec.backends.passes import TokenTree
from edgespec.backends.reference import ReferenceTarget
from edgespec.memory.plan.plan import Plan
from edgespec.models.open_model import open_model
from tests.support.random_models import MODELS, write
from tests.support.targets import PLAN

PARTS = list(MODELS)
LENGTH = 150
"""Tokens: more than any window here."""


@pytest.fixture(scope="module", params=PARTS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("architectures")
    path = folder / f"{request.param}.gguf"
    write(MODELS[request.param](), path)
    return path


def plan(**changes: object) -> Plan:
    settings = {"backend": "native", "context_length": 512, "max_nodes": 16} | changes
    return replace(PLAN, **settings)  # type: ignore[arg-type]


def ids(count: int, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(3, 400, count).astype(np.int32)


def native_logits(path: Path, tokens: NDArray[np.int32], chunk: int) -> NDArray[np.float32]:
    found = []
    with open_model(path) as file, NativeTarget(file, plan()) as target:
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            found.append(target.own.forward(TokenTree.chain(part)).logits.copy())
            target.own.commit(range(len(part)))
    return np.concatenate(found)


def test_logits_are_the_references(model: Path) -> None:
    tokens = ids(LENGTH)
    with open_model(model) as file, ReferenceTarget(file, plan(backend="reference")) as oracle:
        oracle.own.prefill(tokens[: LENGTH - 16])
        expected = oracle.own.forward(TokenTree.chain(tokens[LENGTH - 16 :])).logits
    found = native_logits(model, tokens, 16)
    for row, other in zip(found[-16:], expected, strict=True):
        cosine = row @ other / (np.linalg.norm(row) * np.linalg.norm(other))
        assert cosine > 0.9999


def test_chunks_do_not_change_the_bits(model: Path) -> None:
    tokens = ids(70)
    whole = native_logits(model, tokens, 16)
    for chunk in (1, 5):
        other = native_logits(model, tokens, chunk)
        np.testing.assert_array_equal(other.view(np.uint32), whole.view(np.uint32))
