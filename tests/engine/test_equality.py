"""Promise 2: speculation never changes the text. The full matrix is lab/equality.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.engine.engine import Engine
from tests.support.equality import SHAPES, SMALL_CHUNK, Case, same
from tests.support.gguf_models import CHATML, write_gguf

MODELS: dict[str, dict[str, Any]] = {
    "llama-f32": {"type": "F32"},
    "llama-q8": {"type": "Q8_0"},
    "qwen2-q4": {"arch": "qwen2", "type": "Q4_0", "tokenizer": "gpt2", "pre": "qwen2"},
    "qwen3-f16": {"arch": "qwen3", "type": "F16"},
    "llama-k-quants": {
        "type": "Q4_K",
        "dim": 256,
        "ffn": 256,
        "types": {"ffn_down.weight": "Q6_K"},
    },
}
PROMPT = "the cat and the hat and the cat and the"


KEPT = [
    *((name, "f16") for name in MODELS),
    *((name, kv_type) for name in ("llama-q8", "qwen3-f16") for kv_type in ("int8", "q4")),
]
"""Models, and how their keys and values are kept."""


@pytest.fixture(scope="module", params=KEPT, ids=" ".join)
def engines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[int, Engine]]:
    """The same model on one and on two threads."""
    name, kv_type = request.param
    path = tmp_path_factory.mktemp("models") / "m.gguf"
    write_gguf(path, template=CHATML, **MODELS[name])
    with ExitStack() as stack:
        yield {
            threads: stack.enter_context(edgespec.load(path, threads=threads, kv_type=kv_type))
            for threads in (1, 2)
        }  # fmt: skip


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.2])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("chunk", [None, SMALL_CHUNK], ids=["whole", "chunks"])
def test_speculation_leaves_the_text_alone(
    engines: dict[int, Engine], temperature: float, shape: str, chunk: int | None
) -> None:
    case = Case(PROMPT, temperature, seed=3, max_tokens=40, ignore_eos=True)
    expected = case.plain(engines[1])
    assert len(expected.token_ids) == 40
    for engine in engines.values():
        found = case.speculative(engine, shape, chunk, expected)
        assert same(expected, found)
        if shape != "drafter":
            assert found.stats.tokens_per_step > 1.5


@pytest.mark.parametrize("seed", [1, 2])
def test_threads_leave_the_text_alone(engines: dict[int, Engine], seed: int) -> None:
    case = Case(PROMPT, 1.2, seed, max_tokens=40)
    assert same(case.plain(engines[1]), case.plain(engines[2]))


def test_seeds_and_temperatures_are_obeyed(engines: dict[int, Engine]) -> None:
    """Equality above means little if every reply were the same."""
    replies = [
        tuple(Case(PROMPT, temperature, seed, 40, True).plain(engines[1]).token_ids)
        for temperature in (0.0, 1.2)
        for seed in (1, 2)
    ]
    assert replies[0] == replies[1]
    assert len(set(replies)) == 3


def test_the_penalty_is_the_same_with_speculation(engines: dict[int, Engine]) -> None:
    """It looks at the newest tokens, drafted ones among them."""
    engine = engines[1]
    options: dict[str, Any] = {
        "max_tokens": 40, "temperature": 0.7, "seed": 5, "repetition_penalty": 1.3,
        "ignore_eos": True,
    }  # fmt: skip
    plain = engine.generate(PROMPT, speculation=False, **options)
    assert same(plain, engine.generate(PROMPT, speculation=True, **options))


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.2])
def test_the_bundled_model(bundled_model: Path, temperature: float) -> None:
    case = Case("Repeat after me: a red ball, a red ball.", temperature, seed=1, max_tokens=48)
    with edgespec.load(bundled_model, threads=1) as engine:
        expected = case.plain(engine)
        for shape in SHAPES:
            assert same(expected, case.speculative(engine, shape, None, expected))


def test_a_smaller_budget_leaves_the_text_alone(bundled_model: Path) -> None:
    """Fewer nodes, another chunk, another context: the same bytes."""
    case = Case("Tell me a story about a fox.", 0.7, seed=1, max_tokens=48)
    with edgespec.load(bundled_model, threads=1) as engine:
        expected = case.plain(engine)
    with edgespec.load(bundled_model, threads=1, context=256, max_nodes=4) as engine:
        assert engine.plan.max_nodes == 4
        assert same(expected, case.speculative(engine, "tree", None, expected))
