"""The files of trained heads mean to llama.cpp what they mean to the recipe."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from tests.models.test_train_heads import heads
from tests.models.test_train_recipe import recipe, write_corpus
from tests.support import llama_peer
from tests.support.llama_heads import drafted

MISSING = [name for name in ("torch", "gguf") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)}"),
    pytest.mark.skipif(not llama_peer.installed(), reason="needs llama-cpp-python"),
]
DEPTH = 4


@pytest.mark.parametrize("shape", ["tiny", "hybrid"])
def test_drafts_of_a_head(tmp_path: Path, shape: str) -> None:
    import torch

    from training.__main__ import smoke_shape
    from training.heads.teach import load_head
    from training.heads.unroll import unroll
    from training.model import TinyLlama
    from training.start import load_weights

    write_corpus(tmp_path / "corpus")
    out = tmp_path / "out"
    recipe("prepare", "--data", str(tmp_path / "corpus"), "--out", str(out))
    recipe("run", "--out", str(out), "--shape", shape)
    trunk_file, file = tmp_path / "trunk.gguf", tmp_path / "head.gguf"
    recipe("export", "--out", str(out), "--shape", shape, "--file", str(trunk_file))
    common = ("--out", str(out), "--shape", shape, "--from", str(trunk_file))
    heads("run", *common, "--set", "average=0")
    heads("export", *common, "--file", str(file))

    trunk = TinyLlama(smoke_shape(shape))
    load_weights(trunk, trunk_file, out / "tokens" / "tokenizer.json")
    head = load_head(trunk, out / f"head-{shape}" / "checkpoint.pt")
    ids = np.load(out / "tokens" / "tasks.ids.npy")[:40].astype(np.int64)
    with torch.no_grad():
        given = torch.from_numpy(ids)[None]
        states, _ = trunk.hidden(given)
        steps = unroll(head, head.features(states), trunk.token_embd(given), DEPTH)
        rows = [head.logits(state)[0].numpy() for state in steps]
    starts = [0, 3, 17, 30]
    expected = np.stack([[rows[i][start + i] for i in range(DEPTH)] for start in starts])
    if shape == "tiny":
        found = drafted(trunk_file, file, ids.tolist(), starts, DEPTH)
        d2t = head.d2t.numpy()
        others = np.delete(found, d2t, 2)
        assert np.isneginf(others).all(), "what is no draft token is never drafted"
        found = found[..., d2t]
    else:
        found = drafted(file, None, ids.tolist(), starts, DEPTH)
    # Both files are Q8_0, and llama.cpp rounds activations to 8 bits, too.
    assert np.abs(found - expected).max() < 0.1 * expected.std()
