"""Gemma 4's assistants on the native backend, against the reference backend's: heads that read the
model's keys and values.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec.backends.base import Target
from edgespec.backends.native.target import NativeTarget
from edgespec.backends.passes import TokenTree
from edgespec.backends.reference import ReferenceTarget
from edgespec.drafting.model.waiting_states import LentText
from edgespec.errors import BackendError
from edgespec.memory.plan.head_sizes import HEAD_ITEM, DraftHeadSizes, head_settings
from edgespec.memory.plan.settings import Settings
from edgespec.models.draft_heads import open_head
from edgespec.models.file import ModelFile
from edgespec.models.open_model import open_model
from tests.support.assistants import WINDOW, assistant_recipe, write_assistant
from tests.support.heads import write_model
from tests.support.targets import PLAN, cosines

CONTEXT, DEPTH = 640, 4
KV_HEADS = {"gemma4": None, "gemma4-moe": [2, 2, 1]}
Files = tuple[ModelFile, ModelFile]


@pytest.fixture(scope="module", params=KV_HEADS)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """A model and its assistant."""
    folder, name = tmp_path_factory.mktemp("assistants"), str(request.param)
    path = write_assistant(folder / "assistant.gguf", assistant_recipe(KV_HEADS[name]))
    with (
        open_model(write_model(name, folder / "model.gguf")) as file,
        open_head(path, file.spec) as head,
    ):
        yield file, head


def opened(
    kind: type[NativeTarget | ReferenceTarget], files: Files, **changes: int | str
) -> tuple[Target, Target]:
    name = "native" if kind is NativeTarget else "reference"
    chunk = replace(PLAN, backend=name, context_length=CONTEXT, prefill_chunk=32)
    plan = replace(chunk, **changes)  # type: ignore[arg-type]
    target = kind(files[0], plan)
    own = head_settings(Settings(CONTEXT, 32, PLAN.max_nodes, 0), files[1].spec)
    more = {"max_nodes": own.max_nodes, "prefill_chunk": own.prefill_chunk}
    return target, target.open_head(files[1], replace(plan, **more))


def tokens(count: int, seed: int = 0) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(3, 500, count).tolist()
    return found


def drafted(target: Target, head: Target, ids: list[int], length: int) -> NDArray[np.float32]:
    """The logits of a chain after the first `length` tokens of a text."""
    target.own.truncate(0)
    text = LentText(head.own, target.spec.dim)
    text.attach(target.own)
    target.own.prefill(ids[:length])
    assert text.room == CONTEXT - length
    found = text.catch_up(ids[length])
    rows = [found.logits[0].copy()]
    for token in ids[length + 1 : length + DEPTH]:
        found = text.go_on(token, found)
        rows.append(found.logits[0].copy())
    return np.stack(rows)


@pytest.mark.parametrize("length", [1, WINDOW, 41])
def test_native_says_what_the_reference_says(files: Files, length: int) -> None:
    """Within a window, at its edge, and past it."""
    ids = tokens(length + DEPTH)
    native, reference = (
        drafted(*opened(kind, files), ids, length) for kind in (NativeTarget, ReferenceTarget)
    )
    assert cosines(native, reference).min() > 0.9999


@pytest.mark.parametrize("length", [512, 513])
def test_spans_are_whole_where_they_end(files: Files, length: int) -> None:
    """The first position after a span of attention sees that span alone."""
    ids = tokens(length + DEPTH, 5)
    whole = drafted(*opened(NativeTarget, files), ids, length)
    few = drafted(*opened(NativeTarget, files, threads=2, prefill_chunk=64), ids, length)
    np.testing.assert_array_equal(whole, few)
    assert np.isfinite(whole).all()


def test_what_is_not_committed_is_not_seen(files: Files) -> None:
    """Nodes that were rejected, and positions that were taken back."""
    target, head = opened(NativeTarget, files)
    ids = tokens(64, 2)
    expected = drafted(target, head, ids, 48)
    text = LentText(head.own, target.spec.dim)
    text.attach(target.own)
    target.own.truncate(0)
    target.own.prefill([*ids[:47], 9, 8, 7])
    assert target.own.truncate(47) == 47
    assert text.room  # the states of those before still wait
    parents = np.array([-1, 0, 0], np.int16)
    target.own.forward(TokenTree(np.array([ids[47], 5, 6], np.int32), parents))
    target.own.commit([0])
    np.testing.assert_array_equal(text.catch_up(ids[48]).logits[0], expected[0])
    target.own.truncate(0)
    assert not text.room


@pytest.mark.parametrize("kv_type", ["f16", "int8", "q4"])
def test_keys_are_read_as_they_are_kept(files: Files, kv_type: str) -> None:
    ids = tokens(60, 3)
    found = drafted(*opened(NativeTarget, files, kv_type=kv_type), ids, 40)
    exact = drafted(*opened(NativeTarget, files, kv_type="f16"), ids, 40)
    least = {"f16": 1.0 - 1e-6, "int8": 0.99, "q4": 0.8}[kv_type]
    assert cosines(found, exact).min() > least


def test_rows_do_not_depend_on_their_pass(files: Files) -> None:
    target, head = opened(NativeTarget, files)
    ids = tokens(50, 4)
    one = drafted(target, head, ids, 40)
    rng = np.random.default_rng(0)
    states = rng.standard_normal((3, target.spec.dim), dtype=np.float32)
    tree = TokenTree(np.array(ids[40:43], np.int32), np.array([-1, 0, 0], np.int16), states)
    together = head.own.forward(tree).logits.copy()
    for place in range(3):
        alone = TokenTree.chain(ids[40 + place : 41 + place], states[place : place + 1])
        np.testing.assert_array_equal(head.own.forward(alone).logits[0], together[place])
    assert np.isfinite(one).all()


def test_all_that_is_allocated_was_planned(files: Files) -> None:
    target, head = opened(NativeTarget, files, threads=2, sequences=2)
    assert isinstance(target, NativeTarget)
    sizes = DraftHeadSizes(files[1].spec, tuple(files[1].tensors.values()), files[0].spec)
    settings = Settings(CONTEXT, 32, PLAN.max_nodes, 1 << 20, threads=2, sequences=2)
    assert target.allocated_bytes()[HEAD_ITEM] == sizes.size_bytes(settings)
    texts = [LentText(head.own, sizes.width) for _ in range(2)]
    assert sizes.waiting_bytes(settings) == sum(text.size_bytes for text in texts)


@pytest.mark.parametrize("kind", [NativeTarget, ReferenceTarget])
def test_a_head_needs_a_text_to_read(
    files: Files, kind: type[NativeTarget | ReferenceTarget]
) -> None:
    target, head = opened(kind, files)
    state = np.zeros((1, target.spec.dim), np.float32)
    tree = TokenTree.chain([5], state)
    with pytest.raises(BackendError, match="no such text"):
        head.own.forward(tree)
    head.own.lender = target.own
    with pytest.raises(BackendError, match="no such text"):
        head.own.forward(tree)
    target.own.prefill([5])
    head.own.forward(tree)
    head.own.lender = head.own
    with pytest.raises(BackendError, match="no such text"):
        head.own.forward(tree)
