"""Draft heads on the native backend, against the reference backend's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from edgespec.backends.base import Target
from edgespec.backends.native.target import NativeTarget
from edgespec.backends.passes import TokenTree
from edgespec.backends.reference import ReferenceTarget
from edgespec.backends.sequence import KvSequence
from edgespec.drafting.model.head_text import HeadText
from edgespec.errors import BackendError
from edgespec.memory.plan.head_sizes import (
    HEAD_CHUNK,
    HEAD_ITEM,
    HEAD_NODES,
    DraftHeadSizes,
)
from edgespec.memory.plan.settings import Settings
from edgespec.models.draft_heads import open_head, own_head
from edgespec.models.file import ModelFile
from edgespec.models.open_model import open_model
from tests.support.heads import eagle3_keys, eagle3_tensors, write_eagle3, write_model
from tests.support.targets import PLAN, cosines

HEADS = ("qwen35", "qwen35moe", "glm4moe", "eagle3", "eagle3-normed")
CONTEXT = 256


@pytest.fixture(scope="module", params=HEADS)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """A model and its head."""
    folder, name = tmp_path_factory.mktemp("heads"), str(request.param)
    if not name.startswith("eagle3"):
        with open_model(write_model(name, folder / "model.gguf")) as file:
            yield file, own_head(file)
        return
    model = write_model("llama", folder / "model.gguf")
    tensors = eagle3_tensors(model)
    keys = eagle3_keys(tensors, layers=4)
    if name == "eagle3-normed":
        keys |= {"norm_before_fc": True, "norm_before_residual": True, "target_layers": [0, 2, 4]}
        tensors["enc.output_norm.weight"] = np.linspace(0.5, 1.5, 768, dtype=np.float32)
        del tensors["d2t"], tensors["output.weight"]  # the model's output head
    path = write_eagle3(folder / "head.gguf", tensors, keys)
    with open_model(model) as file, open_head(path, file.spec) as head:
        yield file, head


def opened(
    kind: type[NativeTarget | ReferenceTarget], files: tuple[ModelFile, ModelFile], **changes: int
) -> tuple[Target, Target]:
    name = "native" if kind is NativeTarget else "reference"
    plan = replace(PLAN, backend=name, context_length=CONTEXT, prefill_chunk=32, **changes)
    target = kind(files[0], plan)
    own = replace(plan, max_nodes=HEAD_NODES, prefill_chunk=HEAD_CHUNK)
    return target, target.open_head(files[1], own)


def tokens(count: int, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(3, 500, count, dtype=np.int32)


def said(target: Target, head: Target) -> list[NDArray[np.float32]]:
    """What the model leaves, what the head makes of it, and of a tree over its own states."""
    ids = tokens(12)
    left = target.own.forward(TokenTree.chain(ids)).hidden
    assert left is not None
    left = left.copy()
    first = head.own.forward(TokenTree.chain(ids[1:9], left[:8]))
    assert first.hidden is not None
    found = [left, first.logits.copy(), first.hidden.copy()]
    head.own.commit(range(8))
    states = np.repeat(found[2][-1:], 3, axis=0)
    tree = TokenTree(ids[9:12], np.array([-1, 0, 0], np.int16), states)
    return [*found, head.own.forward(tree).logits.copy()]


def test_native_says_what_the_reference_says(files: tuple[ModelFile, ModelFile]) -> None:
    (native, reference) = (said(*opened(kind, files)) for kind in (NativeTarget, ReferenceTarget))
    for ours, theirs in zip(native, reference, strict=True):
        assert ours.shape == theirs.shape
        assert cosines(ours, theirs).min() > 0.9999


def test_rows_do_not_depend_on_their_pass(files: tuple[ModelFile, ModelFile]) -> None:
    """Nor what the model computes on whether a head reads along."""
    target, head = opened(NativeTarget, files)
    ids = tokens(40, 1)
    found = target.own.forward(TokenTree.chain(ids[:16]))
    alone = NativeTarget(files[0], replace(PLAN, context_length=CONTEXT, prefill_chunk=32))
    plain = alone.own.forward(TokenTree.chain(ids[:16])).logits
    np.testing.assert_array_equal(found.logits, plain)
    assert found.hidden is not None
    left = found.hidden.copy()
    whole = head.own.forward(TokenTree.chain(ids[1:9], left[:8])).logits.copy()
    head.own.truncate(0)
    for place in range(8):
        one = head.own.forward(TokenTree.chain(ids[place + 1 : place + 2], left[place : place + 1]))
        np.testing.assert_array_equal(one.logits[0], whole[place])
        head.own.commit([0])
    head.own.truncate(0)
    head.own.prefill(ids[1:8], states=left[:7])
    last = head.own.forward(TokenTree.chain(ids[8:9], left[7:8])).logits
    np.testing.assert_array_equal(last[0], whole[7])


def test_all_that_is_allocated_was_planned(files: tuple[ModelFile, ModelFile]) -> None:
    target, head = opened(NativeTarget, files, threads=2, sequences=2)
    for each in (target.own, target.open_sequence()):
        each.prefill(tokens(CONTEXT - 4))
    width = len(files[1].spec.head_input.taps) * files[0].spec.dim  # type: ignore[union-attr]
    for own in (head.own, head.open_sequence()):
        states = np.zeros((CONTEXT - 4, files[1].spec.dim), np.float32)
        own.prefill(tokens(CONTEXT - 4), states=states)
    held = tuple(files[1].tensors.values())
    sizes = DraftHeadSizes(files[1].spec, held, files[0].spec)
    assert sizes.width == width
    settings = Settings(CONTEXT, 32, PLAN.max_nodes, 1 << 20, threads=2, sequences=2)
    assert isinstance(target, NativeTarget)
    assert target.allocated_bytes()[HEAD_ITEM] == sizes.size_bytes(settings)
    texts = [HeadText(head.own, width) for _ in range(2)]
    ids = 4 * files[1].spec.vocab_size if files[1].spec.token_ids else 0
    assert sizes.waiting_bytes(settings) == sum(text.size_bytes for text in texts) + ids


def test_a_head_needs_states(files: tuple[ModelFile, ModelFile]) -> None:
    _, head = opened(NativeTarget, files)
    wrong = np.zeros((3, 7), np.float32)
    for tree in (TokenTree.chain([1, 2, 3]), TokenTree.chain([1, 2, 3], wrong)):
        with pytest.raises(BackendError, match="a state for each"):
            head.own.forward(tree)


@pytest.mark.parametrize("reads", [True, False])
def test_a_text_is_followed_however_it_grows(
    files: tuple[ModelFile, ModelFile], reads: bool
) -> None:
    """By prompts, steps, trees of which a path stays, and turns that take something back."""
    target, head = opened(NativeTarget, files)
    width = DraftHeadSizes(files[1].spec, (), files[0].spec).width
    sequence, own = target.own, head.own
    text = HeadText(own, width)
    text.reads_prompts = reads
    sequence.follower = text
    ids = tokens(120, 3).tolist()
    sequence.prefill(ids[:40])
    text.catch_up(ids[40])
    for length in (40, 43, 44):
        branching = np.array([-1, 0, 1, 2, 0], np.int16)
        tree = TokenTree(np.array([*ids[length : length + 4], 7], np.int32), branching)
        sequence.forward(tree)
        sequence.commit(range(3 if length == 40 else 1))
    assert sequence.length == 45
    drafted = text.go_on(9, text.catch_up(ids[45]))  # of which nothing stays
    assert drafted.logits.shape == (1, files[1].spec.vocab_size)
    sequence.prefill(ids[45:60])
    found = text.catch_up(ids[60]).logits.copy()
    assert text.room == CONTEXT - own.length
    np.testing.assert_array_equal(found, fresh(target, own, ids[:60], ids[60], width))
    sequence.follower = text
    text.truncated(0)
    sequence.truncate(0)
    sequence.prefill(ids[:60])
    text.catch_up(ids[60])
    kept = sequence.truncate(42)  # less of a model that keeps states
    sequence.prefill(ids[70:90])
    found = text.catch_up(ids[90]).logits.copy()
    turned = fresh(target, own, [*ids[:kept], *ids[70:90]], ids[90], width)
    # The last position's state was read with a token that is no more.
    assert cosines(found, turned).min() > 0.8


def fresh(
    target: Target, own: KvSequence, ids: list[int], last: int, width: int
) -> NDArray[np.float32]:
    """What a head says after a text that it reads in one go."""
    target.own.truncate(0)
    own.truncate(0)
    text = HeadText(own, width)
    target.own.follower = text
    target.own.prefill(ids)
    return text.catch_up(last).logits.copy()
