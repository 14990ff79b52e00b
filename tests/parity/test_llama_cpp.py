"""The same files in llama.cpp: greedy tokens equal up to counted near ties, logits nearly parallel.

A peer that is absent or crashes is a skip that says so, never a pass. The long comparison, of 20
prompts x 128 tokens, is `lab/parity.py` and the tests marked slow.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import llama_peer
from tests.support.gguf_models import write_gguf
from tests.support.parity import FLOAT_MARGIN, Parity, compare

SHORT = {"num_prompts": 6, "num_tokens": 24, "threads": 1}
FULL = {"num_prompts": 20, "num_tokens": 128, "threads": 1}
LENGTHS = [
    pytest.param(SHORT, id="short"),
    pytest.param(FULL, id="full", marks=pytest.mark.slow),
]
LONG = ("Q8_0", "Q4_0", "Q4_K_M")
"""Types that are compared at full length, too; perplexity is of all (`test_perplexity.py`)."""
PURE = (
    "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "Q4_K", "Q5_K", "Q6_K",
    "Q3_K", "IQ4_XS", "IQ3_S", "MXFP4",
)  # fmt: skip
"""Types that the peer quantises every matrix to. Others need statistics of activations, or leave
so little of a small model that both engines' roundings decide tokens: in Q2_K one of 144 differed,
where exact arithmetic preferred ours, in TQ1_0 and TQ2_0 three.
"""
QUANTISED = {kind: kind for kind in PURE} | {"Q4_K_M": "Q4_K+Q6_K", "Q5_K_M": "Q5_K+Q6_K"}
"""What the peer's quantiser is asked for, and the types of the file's matrices."""


def _compare(path: Path, **settings: Any) -> Parity:
    try:
        return compare(path, **settings)
    except llama_peer.PeerMissing as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("settings", LENGTHS)
@pytest.mark.parametrize("name", ["stories260K.gguf", "seed-tiny-7m-f16.gguf"])
def test_third_party_models(shared_models: Path, name: str, settings: dict[str, Any]) -> None:
    path = shared_models / name
    if not path.exists():
        pytest.skip(f"{name} is not in {shared_models}")
    found = _compare(path, margin=FLOAT_MARGIN, **settings)
    assert found.num_different == 0, found
    assert found.worst_cosine >= 0.9999, found


@pytest.mark.parametrize("settings", LENGTHS)
def test_bundled_model(bundled_model: Path, settings: dict[str, Any]) -> None:
    found = _compare(bundled_model, exact=True, **settings)
    assert found.good, found
    assert found.mean(found.cosine_sum) >= 0.9999, found


@pytest.fixture(scope="session")
def to_quantise(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model, whose rows are multiples of 256; without it a random one."""
    try:
        path: Path = request.getfixturevalue("bundled_model")
    except pytest.skip.Exception:
        path = tmp_path_factory.mktemp("parity") / "random.gguf"
        write_gguf(path, dim=256, ffn=512, layers=3, vocab=600, type="F16")
    return path


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        *(pytest.param(kind, SHORT, id=f"{kind}-short") for kind in QUANTISED),
        *(pytest.param(kind, FULL, id=f"{kind}-full", marks=pytest.mark.slow) for kind in LONG),
    ],
)
def test_quantised_by_the_peer(
    to_quantise: Path, kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Both engines round activations, the peer's K-quants over 256 columns to our 32.

    So logits may lie farther apart than either's from exact arithmetic, which judges ours: nearly
    parallel to it, about as near as the peer's or nearer, and right where the two differ.
    """
    path = tmp_path / f"{kind}.gguf"
    try:
        llama_peer.quantise(to_quantise, path, kind)
    except llama_peer.PeerMissing as error:
        pytest.skip(str(error))
    found = _compare(path, exact=True, **settings)
    assert found.types == QUANTISED[kind]
    # One in a thousand may fall between two engines' roundings (docs/lab/2026-11-21-parity.md).
    assert found.num_peers_better <= found.num_tokens // 1000, found
    assert found.near, found
    assert found.mean(found.cosine_sum) >= 0.9995, found
    assert found.worst_to_exact >= 0.998, found


@pytest.mark.parametrize(
    ("kind", "types"), [("Q4_K_M", "Q5_0+Q8_0"), ("Q5_K_M", "Q5_1+Q8_0"), ("IQ4_NL", "IQ4_NL")]
)
def test_widths_that_are_no_multiple_of_256(kind: str, types: str, tmp_path: Path) -> None:
    """The peer's quantiser falls back to types with blocks of 32."""
    path = write_gguf(tmp_path / "f16.gguf", dim=96, ffn=160, heads=3, kv_heads=1, type="F16")
    try:
        llama_peer.quantise(path, tmp_path / "small.gguf", kind)
    except llama_peer.PeerMissing as error:
        pytest.skip(str(error))
    found = _compare(tmp_path / "small.gguf", **SHORT)
    assert found.types == types
    assert found.num_different == 0, found
    assert found.worst_cosine >= 0.999, found


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, tied": {"tied": True},
    "llama, rope factors": {"rope_factors": True},
    "llama, linear rope scaling": {
        "metadata": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    },
    "llama, one key head": {"kv_heads": 1, "rope_base": 500000.0},
    "qwen2": {"arch": "qwen2", "tied": True, "rope_base": 1000000.0, "tokenizer": "gpt2"},
    "qwen3": {"arch": "qwen3", "head_dim": 32, "tokenizer": "gpt2", "pre": "qwen2"},
    "Q8_0": {"type": "Q8_0", "ffn": 128},
    "BF16": {"type": "BF16"},
}


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("changes", ARCHITECTURES.values(), ids=ARCHITECTURES.keys())
def test_architectures(backend: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Random weights in every form an architecture takes."""
    path = write_gguf(tmp_path / "model.gguf", **changes)
    found = _compare(path, backend=backend, **SHORT)
    assert found.num_different == 0, found
    assert found.worst_cosine >= (0.999 if changes.get("type") == "Q8_0" else 0.9999), found


def test_a_crash_of_the_peer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for llama.cpp that dies of a segmentation fault."""
    crash = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"
    (tmp_path / "llama_cpp.py").write_text(crash)
    monkeypatch.syspath_prepend(tmp_path)
    model = write_gguf(tmp_path / "model.gguf")
    with pytest.raises(llama_peer.PeerMissing, match="crashed with SIGSEGV.*GGML_AMX=OFF"):
        compare(model, num_prompts=1, num_tokens=1)


def test_near_ties_and_differences_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up logits in which the peer prefers other tokens by a given gap."""
    from tests.support import parity

    ours = np.array([0.0, 1.0, 0.9995, 0.2], np.float32)
    for token, ties, different in ((1, 0, 0), (2, 1, 0), (3, 0, 1)):
        theirs = ours.copy()
        theirs[token] = 1.5
        found = parity._count(Parity("", ""), ours, theirs, FLOAT_MARGIN)
        assert (found.num_ties, found.num_different) == (ties, different)
        assert len(found.differences) == different
