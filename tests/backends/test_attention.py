"""Attention over prefix and ancestors: the description of trees, and results against the reference.

By itself, on any shape, against float64; and through whole one-layer models, against the reference.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config
from numpy.typing import NDArray

from edgespec.backends.base import Target
from edgespec.backends.native.kernels import table
from edgespec.backends.native.kernels.attention.grouped_query import describe_tree
from edgespec.backends.passes import TokenTree
from edgespec.memory.plan.settings import KV_TYPES
from edgespec.models.open_model import open_model
from tests.support.attending import Attending, exact, kept
from tests.support.gguf_models import write_gguf
from tests.support.targets import cosines, open_target, tokens
from tests.support.token_trees import parents, path_to, token_trees


@given(shapes=st.lists(parents(20), min_size=1, max_size=4), length=st.integers(0, 900))
@settings(deadline=None)
def test_describe_tree(shapes: list[list[int]], length: int) -> None:
    """Positions, and the slots each node sees as a leading run and a list, in order of position."""
    total = sum(map(len, shapes))
    nodes = np.full((total + 1, table.NODE_COLUMNS), -1, np.int32)
    extra = np.full(total * total, -1, np.int32)
    first = 0
    for part, shape in enumerate(shapes):
        tree = TokenTree(np.zeros(len(shape), np.int32), np.array(shape, np.int16))
        places = np.arange(len(tree), dtype=np.int32)
        end = describe_tree(tree.parents, places, places, part, first, length, nodes, extra)
        assert end == length + len(tree)
        for node in range(len(tree)):
            path, own = path_to(tree, node), nodes[first + node]
            assert own[table.POSITION] == length + len(path) - 1
            assert own[table.PART] == part
            last = nodes[first + node + 1, table.EXTRA_START]
            others = extra[own[table.EXTRA_START] : last].tolist()
            seen = [*range(length), *(length + above for above in path)]
            assert [*range(own[table.RUN]), *others] == seen
            assert others == [] or others[0] > own[table.RUN]  # what stands in a row is in the run
        first += len(tree)
        length += 7


@pytest.mark.parametrize("shape", [[-1], [-1, 0, 1, 2], [-1, 0, 0, 0], [-1, 0, 1, 0, 3]], ids=str)
def test_describe_chains_without_lists(shape: list[int]) -> None:
    """Nodes of the first chain need no list, however long a prompt is."""
    count = len(shape)
    nodes = np.zeros((count + 1, table.NODE_COLUMNS), np.int32)
    places, extra = np.arange(count, dtype=np.int32), np.zeros(count * count, np.int32)
    describe_tree(np.array(shape, np.int16), places, places, 0, 0, 0, nodes, extra)
    chain = next((node for node in range(count) if shape[node] != node - 1), count)
    assert nodes[:chain, table.RUN].tolist() == list(range(1, chain + 1))
    assert nodes[chain, table.EXTRA_START] == 0


HEADS: dict[str, dict[str, Any]] = {
    "one head": {"heads": 1, "kv_heads": 1},
    "each its own keys": {"heads": 4, "kv_heads": 4},
    "all share keys": {"heads": 8, "kv_heads": 1},
    "groups of three": {"heads": 6, "kv_heads": 2, "head_dim": 16},
    "groups of 32": {"heads": 32, "kv_heads": 1, "head_dim": 16},
    "heads of 8": {"heads": 8, "kv_heads": 4},
    "heads of 24": {"heads": 4, "kv_heads": 2, "head_dim": 24},
    "heads of 128": {"heads": 2, "kv_heads": 1, "head_dim": 128},
}
_FOLDER = TemporaryDirectory(prefix="edgespec-attention-")


@cache
def _target(backend: str, heads: str) -> Target:
    path = Path(_FOLDER.name) / f"{heads}.gguf"
    if not path.exists():
        write_gguf(path, layers=1, **HEADS[heads])
    return open_target(backend, path)


GROUPS = [(1, 1), (1, 3), (2, 2), (3, 1), (4, 2), (7, 1), (32, 1)]
"""Heads that share keys, and heads that have some."""


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Any heads, widths, prefixes that end near borders of blocks and spans, and trees."""
    group, kv_heads = draw(
        st.sampled_from([(1, 1), (1, 3), (2, 2), (3, 1), (4, 2), (7, 1), (32, 1)])
    )
    near = draw(st.sampled_from([0, 16, 240, 500, 760, 1010]))
    return {
        "heads": group * kv_heads,
        "kv_heads": kv_heads,
        "head_dim": draw(st.sampled_from([2, 8, 20, 64, 80, 96, 128])),
        "kv_type": draw(st.sampled_from(KV_TYPES)),
        "prefix": near + draw(st.integers(0, 40)),
        "shape": draw(parents(33)),
        "sharpness": draw(st.sampled_from([0.0, 1.0, 8.0])),
        "seed": draw(st.integers(0, 99)),
    }


class Example:
    """Random keys, values and queries of a prefix and a tree, as a case says."""

    def __init__(self, case: dict[str, Any]) -> None:
        rng = np.random.default_rng(case["seed"])
        self.heads, self.kv_heads, self.head_dim = (
            case[name] for name in ("heads", "kv_heads", "head_dim")
        )
        self.kv_type, self.prefix, self.shape = case["kv_type"], case["prefix"], case["shape"]
        count = self.prefix + len(self.shape)
        shape = (count, self.kv_heads, self.head_dim)
        self.keys, self.values = rng.standard_normal((2, *shape), dtype=np.float32)
        queries = (len(self.shape), self.heads, self.head_dim)
        scale = case["sharpness"] / np.sqrt(self.head_dim)
        self.queries = rng.standard_normal(queries, dtype=np.float32) * np.float32(scale)

    def path(self, node: int) -> list[int]:
        """Slots of a node's ancestors and its own."""
        path = [node]
        while self.shape[path[0]] >= 0:
            path.insert(0, self.shape[path[0]])
        return [self.prefix + each for each in path]

    def run(self, threads: int = 1, **changes: Any) -> NDArray[np.float32]:
        """`changes` are further arguments of `Attending`."""
        sizes = (self.heads, self.kv_heads, self.head_dim, self.kv_type)
        attending = Attending(*sizes, threads=threads, **changes)
        attending.put(0, self.keys, self.values)
        attending.length = self.prefix
        return attending.attend(self.shape, self.queries)

    def alone(self, node: int, **changes: Any) -> NDArray[np.float32]:
        """A node's row as plain decoding computes it: after its path, with no other node."""
        sizes = (self.heads, self.kv_heads, self.head_dim, self.kv_type)
        attending = Attending(*sizes, max_nodes=1, **changes)
        slots = [*range(self.prefix), *self.path(node)]
        attending.put(0, self.keys[slots], self.values[slots])
        attending.length = len(slots) - 1
        return attending.attend([-1], self.queries[node : node + 1])[0]


@settings(max_examples=10 if config.DISABLE_JIT else 60, deadline=None)
@given(case=cases(), data=st.data())
def test_against_float64(case: dict[str, Any], data: st.DataObject) -> None:
    """Any shape on any number of threads, and each row the same bits as alone."""
    example = Example(case)
    ours = example.run()
    group = example.heads // example.kv_heads
    keys = kept(example.kv_type, example.keys, keys=True)
    values = kept(example.kv_type, example.values, keys=False)
    node = data.draw(st.integers(0, len(example.shape) - 1), label="node")
    seen = [*range(example.prefix), *example.path(node)]
    for head in range(example.heads):
        one, two = keys[seen, head // group], values[seen, head // group]
        expected = exact(one, two, example.queries[node, head])
        error = 2e-5 if example.kv_type == "f16" else 2e-3
        np.testing.assert_allclose(ours[node, head], expected, rtol=0, atol=error)
    threads = data.draw(st.integers(2, 5), label="threads")
    np.testing.assert_array_equal(example.run(threads).view(np.uint32), ours.view(np.uint32))
    alone = example.alone(node)
    np.testing.assert_array_equal(alone.view(np.uint32), ours[node].view(np.uint32))


@settings(max_examples=5 if config.DISABLE_JIT else 30, deadline=None)
@given(case=cases(), data=st.data())
def test_latent_rows(case: dict[str, Any], data: st.DataObject) -> None:
    """Keys whose first numbers are the values: the same bits however a row was reached."""
    latent = data.draw(st.sampled_from([32, 128]), label="latent")
    sizes = {"kv_heads": 1, "head_dim": latent + 16, "kv_type": "f16"}
    example = Example(case | sizes)
    ours = example.run(latent=latent)
    keys = kept("f16", example.keys, keys=True)
    node = data.draw(st.integers(0, len(example.shape) - 1), label="node")
    seen = keys[[*range(example.prefix), *example.path(node)], 0]
    for head in range(example.heads):
        expected = exact(seen, seen[:, :latent], example.queries[node, head])
        np.testing.assert_allclose(ours[node, head], expected, rtol=0, atol=2e-5)
    threads = data.draw(st.integers(2, 5), label="threads")
    other = example.run(threads, latent=latent)
    np.testing.assert_array_equal(other.view(np.uint32), ours.view(np.uint32))
    alone = example.alone(node, latent=latent)
    np.testing.assert_array_equal(alone.view(np.uint32), ours[node].view(np.uint32))


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_moved_positions_are_what_they_were(kv_type: str) -> None:
    """To a block that another position is in, across blocks and tiles."""
    rng = np.random.default_rng(0)
    keys, values = rng.standard_normal((2, 300, 2, 20), dtype=np.float32)
    queries = rng.standard_normal((1, 6, 20), dtype=np.float32)
    straight, moved = Attending(6, 2, 20, kv_type), Attending(6, 2, 20, kv_type)
    order = [*range(250), 262, 263, 270, 299]
    straight.put(0, keys[order], values[order])
    moved.put(0, keys, values)
    for target, source in enumerate(order):
        if source != target:
            moved.move(source, target)
    rows = []
    for attending in (straight, moved):
        attending.length = len(order) - 1
        rows.append(attending.attend([-1], queries))
    np.testing.assert_array_equal(rows[0], rows[1])


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 1e30])
def test_a_sibling_spoils_nothing(kv_type: str, bad: float) -> None:
    """Numbers past what a cache can hold stay with the node that has them."""
    case = {"heads": 4, "kv_heads": 2, "head_dim": 16, "kv_type": kv_type, "prefix": 20}
    example = Example({**case, "shape": [-1, 0, 0, 2], "sharpness": 1.0, "seed": 0})
    before = example.run()
    example.keys[21], example.values[21] = bad, bad
    after = example.run()
    for node in (0, 2, 3):
        np.testing.assert_array_equal(after[node], before[node])


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-7, 1e-3, 1e3])
def test_sizes_of_keys_and_values(kv_type: str, size: float) -> None:
    """Down to nothing: results are finite, and as near as the cache's numbers are."""
    case = {"heads": 4, "kv_heads": 2, "head_dim": 40, "kv_type": kv_type, "prefix": 30}
    example = Example({**case, "shape": [-1], "sharpness": 1.0, "seed": 0})
    example.keys *= np.float32(size)
    example.values *= np.float32(size)
    ours = example.run()[0]
    keys = kept(kv_type, example.keys, keys=True)
    values = kept(kv_type, example.values, keys=False)
    for head in range(4):
        expected = exact(keys[:, head // 2], values[:, head // 2], example.queries[0, head])
        np.testing.assert_allclose(ours[head], expected, rtol=0, atol=max(5e-4 * size, 1e-12))


@pytest.mark.parametrize("heads", HEADS)
@settings(max_examples=12, deadline=None)
@given(tree=token_trees(20), prefix=st.integers(0, 70))
def test_against_the_reference(heads: str, tree: TokenTree, prefix: int) -> None:
    logits = []
    for backend in ("native", "reference"):
        target = _target(backend, heads)
        target.own.truncate(0)
        target.own.prefill(tokens(prefix))
        logits.append(target.own.forward(tree).logits.copy())
    assert cosines(*logits).min() >= 0.99999
    np.testing.assert_allclose(*logits, atol=2e-3)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_sharp_scores(threads: int, tmp_path: Path) -> None:
    """Queries and keys ten times the usual size: nearly all weight on one position."""
    path = write_gguf(tmp_path / "sharp.gguf", arch="qwen2", head_dim=32, rope_base=1e6)
    _enlarge(path, "attn_norm.weight", 10.0)
    tree, logits = TokenTree.chain(tokens(12, 1)), []
    for backend in ("native", "reference"):
        with open_target(backend, path, threads=threads) as target:
            target.own.prefill(tokens(50))
            logits.append(target.own.forward(tree).logits.copy())
    assert np.all(np.isfinite(logits[0]))
    assert cosines(*logits).min() >= 0.9999


def _enlarge(path: Path, name: str, factor: float) -> None:
    """Multiply the f32 tensors of this name in the file."""
    with open_model(path) as file:
        places = [info for info in file.tensors.values() if info.name.endswith(name)]
    assert places
    for info in places:
        values = np.memmap(path, np.float32, "r+", info.offset, info.shape)
        values *= np.float32(factor)
        values.flush()
