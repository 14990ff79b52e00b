"""What every backend refuses, and what opening, growing and closing leave behind."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from edgespec.backends.base import Target
from edgespec.backends.native.kernels import table
from edgespec.backends.native.kernels.matmul import tile
from edgespec.backends.pass_times import curve_sizes, pass_times
from edgespec.backends.passes import TokenTree
from edgespec.errors import BackendError, ContextOverflowError, UnsupportedModelError
from edgespec.memory.plan.kv_sizes import KV_BLOCK, kv_bytes
from edgespec.memory.plan.settings import KV_TYPES
from edgespec.models.open_model import open_model
from tests.support.gguf_models import write_gguf
from tests.support.targets import (
    BACKENDS,
    FEW_MODELS,
    MAX_NODES,
    OPENERS,
    PLAN,
    TYPES,
    VOCAB,
    assert_same,
    decode,
    fitting,
    model_path,
    open_target,
    score,
    shared_target,
    tokens,
)


def _tree(ids: list[int], parents: list[int]) -> TokenTree:
    return TokenTree(np.array(ids, np.int32), np.array(parents, np.int16))


@pytest.fixture(params=BACKENDS)
def target(request: pytest.FixtureRequest) -> Target:
    """Six committed tokens and a pass of four nodes that waits for its commit."""
    opened = shared_target(request.param, "llama-F32")
    opened.own.truncate(0)
    opened.own.prefill(tokens(6))
    opened.own.forward(fitting(opened, _tree([1, 2, 3, 4], [-1, 0, 0, 1])))
    return opened


WRONG_USE: dict[str, Callable[[Target], object]] = {
    "no nodes": lambda t: t.own.forward(_tree([], [])),
    "too many nodes": lambda t: t.own.forward(TokenTree.chain(tokens(MAX_NODES + 1))),
    "two roots": lambda t: t.own.forward(_tree([1, 2], [-1, -1])),
    "no root": lambda t: t.own.forward(_tree([1, 2], [0, 0])),
    "parent after child": lambda t: t.own.forward(_tree([1, 2, 3], [-1, 2, 0])),
    "its own parent": lambda t: t.own.forward(_tree([1, 2], [-1, 1])),
    "negative token": lambda t: t.own.forward(_tree([-1], [-1])),
    "token past the vocabulary": lambda t: t.own.forward(_tree([VOCAB], [-1])),
    "negative token in a prompt": lambda t: t.own.prefill([1, -1]),
    "token past the vocabulary in a prompt": lambda t: t.own.prefill([1, VOCAB]),
    "commit past the pass": lambda t: t.own.commit([0, 4]),
    "commit a negative node": lambda t: t.own.commit([-1]),
    "commit without the root": lambda t: t.own.commit([1, 3]),
    "commit siblings": lambda t: t.own.commit([0, 1, 2] if t.capabilities.trees else [0, 2]),
    "commit twice the same node": lambda t: t.own.commit([0, 0]),
    "commit upwards": lambda t: t.own.commit([3, 1, 0]),
    "commit twice": lambda t: (t.own.commit([0]), t.own.commit([0])),
    "commit after truncate": lambda t: (t.own.truncate(3), t.own.commit([0])),
    "commit after a prompt": lambda t: (t.own.prefill([1]), t.own.commit([0])),
    "commit after a failed pass": lambda t: (_fail(t), t.own.commit([0, 1, 3])),
    "truncate forwards": lambda t: t.own.truncate(7),
    "truncate below zero": lambda t: t.own.truncate(-1),
    "restore something else": lambda t: t.own.restore("a snapshot"),
}


def _fail(target: Target) -> None:
    """A pass that breaks inside the backend."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(target, "_forward", _interrupt)
        target.own.forward(_tree([1], [-1]))


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("use", WRONG_USE.values(), ids=WRONG_USE.keys())
def test_wrong_use(target: Target, use: Callable[[Target], object]) -> None:
    with pytest.raises(BackendError):
        use(target)
    target.own.truncate(0)  # and the target still works
    assert score(target, tokens(3)).shape == (3, VOCAB)


@pytest.mark.parametrize("backend", BACKENDS)
def test_context_overflow(backend: str) -> None:
    ids = tokens(24)
    with open_target(backend, "llama-F32", context_length=24) as target:
        with pytest.raises(ContextOverflowError, match="25 tokens.*holds 24"):
            target.own.prefill(tokens(25))
        assert target.own.length == 0
        target.own.prefill(ids[:20])
        with pytest.raises(ContextOverflowError, match="20 committed and 5 new"):
            target.own.forward(TokenTree.chain(tokens(5)))
        full = score(target, ids[20:])
        target.own.commit([0, 1, 2, 3])
        with pytest.raises(ContextOverflowError):
            target.own.forward(TokenTree.chain([1]))
        target.own.truncate(20)
        assert_same(target, score(target, ids[20:]), full)


@pytest.mark.parametrize("backend", BACKENDS)
def test_closed_target_refuses(backend: str) -> None:
    target = open_target(backend, "llama-F32")
    target.own.prefill(tokens(3))
    target.close()
    target.close()  # twice is once
    for use in (lambda: target.own.forward(TokenTree.chain([1])), lambda: target.own.prefill([1])):
        with pytest.raises(BackendError, match="closed"):
            use()


@pytest.mark.parametrize("backend", BACKENDS)
def test_cost_curve_commits_nothing(backend: str) -> None:
    target = shared_target(backend, "llama-Q8_0")
    target.own.truncate(0)
    target.own.prefill(tokens(5))
    before = score(target, tokens(2, 1))
    curve = pass_times(target)
    assert tuple(curve) == curve_sizes(target)
    assert min(curve.values()) > 0
    assert target.own.length == 5
    assert_same(target, score(target, tokens(2, 1)), before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_targets_open_at_once(backend: str) -> None:
    ids, expected = tokens(12), {}
    for model in ("llama-Q8_0", "qwen3-F16"):
        with open_target(backend, model) as alone:
            expected[model] = decode(alone, ids)
    with open_target(backend, "llama-Q8_0") as one, open_target(backend, "qwen3-F16") as two:
        pairs = [(decode(one, ids[i : i + 1]), decode(two, ids[i : i + 1])) for i in range(12)]
    assert_same(one, np.concatenate([left for left, _ in pairs]), expected["llama-Q8_0"])
    assert_same(two, np.concatenate([right for _, right in pairs]), expected["qwen3-F16"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_targets_in_two_threads(backend: str) -> None:
    ids, models = tokens(40), ("llama-Q8_0", "llama-Q4_0")
    expected, found = {}, {}
    for model in models:
        with open_target(backend, model) as alone:
            expected[model] = decode(alone, ids)

    def run(model: str) -> None:
        with open_target(backend, model, threads=2) as target:
            found[model] = decode(target, ids)

    workers = [threading.Thread(target=run, args=(model,)) for model in models]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for model in models:
        np.testing.assert_array_equal(found[model], expected[model])


@pytest.mark.parametrize("backend", BACKENDS)
def test_open_and_close_without_growth(backend: str) -> None:
    """Each open target holds about 3 MB here; twenty leaked ones would be 60."""
    process, sizes = psutil.Process(), []
    for _ in range(21):
        with open_target(backend, "llama-Q8_0", context_length=2048) as target:
            target.own.prefill(tokens(1))
            score(target, tokens(4))
        gc.collect()
        sizes.append(process.memory_info().rss)
    assert sizes[-1] - sizes[0] < 4 << 20


@pytest.mark.parametrize("backend", BACKENDS)
def test_cancelled_prompt_keeps_whole_chunks(backend: str) -> None:
    """Interrupted between two chunks: what was done stays, and the rest can follow."""
    prompt, after = tokens(30), tokens(3, 1)
    target = shared_target(backend, "llama-F32")
    target.own.truncate(0)
    target.own.prefill(prompt)
    expected = score(target, after)
    target.own.truncate(0)

    def interrupt(done: int, total: int) -> None:
        if done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        target.own.prefill(prompt, chunk=10, progress=interrupt)
    assert target.own.length == 20
    target.own.prefill(prompt[20:])
    assert_same(target, score(target, after), expected)


@pytest.mark.parametrize("model", FEW_MODELS)
def test_arena_grows_across_blocks(model: str) -> None:
    """A tree whose nodes lie in two blocks, and a path of it that is moved over the border."""
    length = KV_BLOCK - 6
    tree = _tree(tokens(12, 1).tolist(), [-1, 0, 0, 2, 1, 3, 5, 2, 6, 8, 9, 0])
    path = [0, 2, 3, 5, 6, 8, 9, 10]
    settings = {"context_length": 600, "prefill_chunk": 250}
    after = tokens(4, 2)
    with open_target("native", model, **settings) as target:
        target.own.prefill(tokens(length))
        logits = target.own.forward(tree).logits.copy()
        target.own.commit(path)
        behind = score(target, after)
        target.own.truncate(length)
        assert_same(target, logits[path], decode(target, tree.tokens[path]))
        assert_same(target, behind, score(target, after))
        target.own.prefill(tokens(300, 3))
        kept = target.own.snapshot()
        expected = score(target, after)
        target.own.truncate(10)
        target.own.prefill(tokens(530, 4))
        target.own.restore(kept)
        assert_same(target, score(target, after), expected)


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_allocated_as_planned(kv_type: str) -> None:
    """KV grows with the conversation, is given back when it shrinks, and ends as planned."""
    changes = {"context_length": 600, "prefill_chunk": 200, "kv_type": kv_type}
    with open_target("native", "llama-F32", **changes) as target:
        held = []
        for _ in range(3):
            target.own.prefill(tokens(200))
            held.append(target.allocated_bytes()["KV cache"])  # type: ignore[attr-defined]
        assert held == [kv_bytes(target.spec, count, kv_type) for count in (200, 400, 600)]
        target.own.truncate(10)
        assert target.allocated_bytes()["KV cache"] == held[0]  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", TYPES)
def test_tiles_stay_inside_the_logits(kind: str) -> None:
    """Padding rows of the last tile are written too, so there must be room for them."""
    for max_nodes in range(1, 34):
        with open_target("native", f"llama-{kind}", max_nodes=max_nodes, context_length=64) as made:
            room = made._scratch.logits.shape[0]  # type: ignore[attr-defined]
            for count in range(1, max_nodes + 1):
                sizes = made._tiles.for_nodes(count)[table.NUM_TYPES :]  # type: ignore[attr-defined]
                largest = int(sizes.max())
                loops = largest == tile.INTEGER_SIZES[-1]  # and writes no more than it is told
                written = count if loops else -(-count // largest) * largest
                assert written <= room, (count, max_nodes)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"dim": 72, "heads": 4, "ffn": 96}, "embeddings that are 72 wide"),
        ({"arch": "qwen3", "head_dim": 8}, "normed heads that are 8 wide"),
        ({"dim": 48, "heads": 3, "kv_heads": 3, "ffn": 33}, "33 columns"),
    ],
)
def test_native_refuses_odd_widths(changes: dict[str, Any], found: str, tmp_path: Path) -> None:
    """The reference runs them; the native kernels would leave the last columns out."""
    path = write_gguf(tmp_path / "odd.gguf", **changes)
    with pytest.raises(UnsupportedModelError, match=found):
        open_target("native", path)
    with open_target("reference", path) as target:
        assert np.all(np.isfinite(score(target, tokens(3))))


def test_reference_refuses_unknown_kv_types() -> None:
    with pytest.raises(BackendError, match="int8 KV"):
        open_target("reference", "llama-F32", kv_type="int8")


@pytest.mark.parametrize("backend", BACKENDS)
def test_loading_reports_progress(backend: str) -> None:
    calls: list[tuple[int, int]] = []
    with open_model(model_path("llama-Q8_0")) as file:
        OPENERS[backend](file, PLAN, lambda done, total: calls.append((done, total))).close()
    done = [call[0] for call in calls]
    assert done == sorted(done)
    assert 0 < done[-1] <= calls[-1][1]
