"""Heads draft here and in torch what they draft in llama.cpp."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.backends.reference import ReferenceTarget
from edgespec.drafting.model.waiting_states import LentText
from edgespec.models.draft_heads import open_head
from edgespec.models.open_model import open_model
from tests.support import llama_peer
from tests.support.assistants import assistant_recipe, write_assistant
from tests.support.heads import write_model
from tests.support.llama_heads import drafted
from tests.support.targets import PLAN, cosines

pytestmark = pytest.mark.skipif(not llama_peer.installed(), reason="needs llama-cpp-python")
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)
DEPTH, STARTS = 4, (0, 3, 17, 30)


def randomise(module: Any) -> None:
    """Give all parts a part in what comes out."""
    import torch

    for name, parameter in module.named_parameters():
        if parameter.dim() == 2 and "conv1d" not in name:
            torch.nn.init.normal_(parameter, 0.0, 0.08)
        elif "norm" in name:
            torch.nn.init.uniform_(parameter, 0.7, 1.3)


@needs_torch
@pytest.mark.parametrize("shape", ["tiny", "hybrid", "hybrid-mixture"])
def test_drafts_of_a_random_head(
    tmp_path: Path, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from training.__main__ import smoke_shape
    from training.data import train_tokenizer
    from training.export import add_architecture, add_tensors, close_file, open_file
    from training.heads.export import export_eagle, export_with_mtp
    from training.heads.head import HeadShape
    from training.heads.teach import new_head
    from training.heads.unroll import unroll
    from training.model import TinyLlama

    # In F32, where both round alike.
    for module in ("training.export", "training.heads.export"):
        monkeypatch.setattr(f"{module}.add_matrix", lambda file, name, x: file.add_tensor(name, x))
    words = [f"{first}{second}" for first in "abcdefghij" for second in "klmnopqrst"]
    tokenizer = tmp_path / "tokenizer.json"
    trained = train_tokenizer([" ".join(words)] * 3, 512)
    trained.save(str(tokenizer))
    vocab_size = trained.get_vocab_size()
    torch.manual_seed(0)
    # Three layers: two to read for an EAGLE-3 head, and one of them attends in the hybrid.
    trunk = TinyLlama(replace(smoke_shape(shape), vocab_size=vocab_size, num_layers=3))
    kind = "eagle3" if shape == "tiny" else "mtp"
    head_shape = HeadShape(kind, taps=(1, 2, 2), num_kv_heads=4, ffn_width=64, draft_vocab=100)
    d2t = torch.arange(100) * 2 + 3 if kind == "eagle3" else None
    head = new_head(trunk, head_shape, d2t)
    randomise(trunk)
    randomise(head)

    ids = np.random.default_rng(0).integers(3, vocab_size, 40)
    with torch.no_grad():
        given = torch.from_numpy(ids)[None]
        states, _ = trunk.hidden(given)
        steps = unroll(head, head.features(states), trunk.token_embd(given), DEPTH)
        rows = [head.logits(state)[0].numpy() for state in steps]
    expected = np.stack([[rows[i][start + i] for i in range(DEPTH)] for start in STARTS])

    file = tmp_path / "head.gguf"
    if d2t is None:
        export_with_mtp(head, trunk, tokenizer, file)
        found = drafted(file, None, ids.tolist(), STARTS, DEPTH)
    else:
        trunk_file = tmp_path / "trunk.gguf"
        writer = open_file(trunk_file, trunk.shape.architecture, "", tokenizer)
        add_architecture(writer, trunk.shape)
        add_tensors(writer, trunk, trunk.shape)
        close_file(writer, trunk_file)
        export_eagle(head, trunk, tokenizer, file)
        found = drafted(trunk_file, file, ids.tolist(), STARTS, DEPTH)
        others = np.delete(found, d2t.numpy(), 2)
        assert np.isneginf(others).all(), "what is no draft token is never drafted"
        found = found[..., d2t.numpy()]
    assert expected.std() > 0.5
    np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.parametrize(("name", "kv_heads"), [("gemma4", None), ("gemma4-moe", [2, 2, 1])])
def test_drafts_of_an_assistant(tmp_path: Path, name: str, kv_heads: list[int] | None) -> None:
    """The reference backend's, past a window and inside; in F32 but for llama.cpp's GELU."""
    model = write_model(name, tmp_path / "model.gguf")
    path = write_assistant(tmp_path / "assistant.gguf", assistant_recipe(kv_heads))
    ids = np.random.default_rng(0).integers(3, 500, 48).tolist()
    starts = (0, 15, 31, 42)
    theirs = drafted(model, path, ids, starts, DEPTH)
    plan = replace(PLAN, backend="reference", kv_type="f32", context_length=64, prefill_chunk=32)
    with open_model(model) as file, open_head(path, file.spec) as head:
        target = ReferenceTarget(file, plan)
        assistant = target.open_head(head, plan)
        text = LentText(assistant.own, file.spec.dim)
        text.attach(target.own)
        for place, start in enumerate(starts):
            target.own.prefill(ids[target.own.length : start + 1])
            found = text.catch_up(ids[start + 1])
            rows = [found.logits[0].copy()]
            for token in ids[start + 2 : start + 1 + DEPTH]:
                found = text.go_on(token, found)
                rows.append(found.logits[0].copy())
            assert cosines(np.stack(rows), theirs[place]).min() > 0.99999
