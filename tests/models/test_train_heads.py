"""Heads learn from a trunk, are run ahead as they will draft, and end in files that read back."""

from __future__ import annotations

import importlib.util
import json
import math
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from edgespec.models.open_model import open_model
from tests.models.test_train_recipe import as_a_user, recipe, write_corpus

MISSING = [name for name in ("torch", "gguf") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # PyTorch's own
    pytest.mark.skipif(
        bool(MISSING), reason=f"needs {' and '.join(MISSING)}: pip install 'edgespec[train]'"
    ),
]


def heads(command: str, *arguments: str) -> str:
    """Run one command of the heads' recipe in this process and return its output."""
    from training.heads.__main__ import main

    with redirect_stdout(StringIO()) as out:
        main([command, "--smoke", "--threads", "1", *arguments])
    return out.getvalue()


def tiny_head(kind: str) -> tuple[Any, Any]:
    """Return a random trunk, and a random head whose attention matters."""
    import torch

    from training.heads.head import HeadShape
    from training.heads.teach import new_head
    from training.model import TinyLlama
    from training.shape import Shape

    torch.manual_seed(0)
    architecture = "llama" if kind == "eagle3" else "qwen35"
    trunk = TinyLlama(
        Shape(
            width=64,
            num_layers=3,
            num_heads=4,
            ffn_width=64,
            vocab_size=40,
            context_tokens=32,
            state_width=16,
            architecture=architecture,  # type: ignore[arg-type]
        )
    )
    shape = HeadShape(kind=kind, taps=(1, 2, 2), num_kv_heads=2, ffn_width=64, draft_vocab=10)  # type: ignore[arg-type]
    head = new_head(trunk, shape, torch.arange(0, 40, 4) if kind == "eagle3" else None)
    for parameter in head.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, 0.0, 0.3)
    return trunk, head


@pytest.mark.parametrize("kind", ["eagle3", "mtp"])
def test_steps_ahead_see_what_drafting_token_by_token_sees(kind: str) -> None:
    """The oracle drafts alone from every place: a first step over the text, then one at a time."""
    import torch

    from training.heads.unroll import Memory, unroll

    trunk, head = tiny_head(kind)
    ids, depth = torch.randint(40, (1, 9)), 4
    with torch.no_grad():
        states, _ = trunk.hidden(ids)
        features, embedded = head.features(states), trunk.token_embd(ids)
        together = unroll(head, features, embedded, depth)

        class Lone(Memory):
            """Every token sees all those before it, whatever step they are of."""

            def attend(self, query: Any, key: Any, value: Any) -> Any:
                return torch.nn.functional.scaled_dot_product_attention(
                    query, key, value, is_causal=True
                )

        for start in range(ids.shape[1] - depth):
            inputs = head.start(features[:, : start + 1])
            for ahead in range(depth):
                # All of the branch again: positions are those of the text.
                following = embedded[:, 1 : start + ahead + 2]
                state = head.step(inputs, following, Lone())[:, -1:]
                torch.testing.assert_close(
                    together[ahead][:, start + ahead : start + ahead + 1],
                    state,
                    rtol=1e-4,
                    atol=1e-4,
                )
                inputs = torch.cat((inputs, state), 1)


def test_kept_drafts_are_counted_as_by_hand() -> None:
    import torch

    from training.heads.acceptance import DEPTHS, Kept

    torch.manual_seed(1)
    tokens = 40
    asked = torch.rand(3, tokens) < 0.9
    matches = [torch.rand(3, tokens - 1) < 0.7 for _ in range(DEPTHS)]
    kept = Kept()
    kept.add(matches, asked)
    tried, counted = [0] * DEPTHS, [0] * DEPTHS
    for row in range(3):
        for start in range(tokens - 1 - DEPTHS):
            for depth in range(DEPTHS):
                if not asked[row, start + 2 + depth]:
                    break
                tried[depth] += 1
                if not matches[depth][row, start + depth]:
                    break
                counted[depth] += 1
    assert kept.tried.tolist() == tried
    assert kept.kept.tolist() == counted


def test_noise_behind_a_draw_gives_the_draw_and_is_gumbel() -> None:
    import torch

    from training.heads.acceptance import noise_behind

    torch.manual_seed(2)
    logits = torch.randn(20_000, 7)
    drawn = torch.multinomial(logits.softmax(-1), 1)[:, 0]
    noise = noise_behind(logits, drawn)
    assert bool(((logits + noise).argmax(-1) == drawn).all())
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.02)
    assert noise.std().item() == pytest.approx(math.pi / math.sqrt(6), abs=0.02)


def test_the_most_frequent_tokens_that_are_written(tmp_path: Path) -> None:
    import numpy as np

    from training.heads.teach import most_frequent
    from training.train import Stream

    np.save(tmp_path / "own.ids.npy", np.array([7, 7, 7, 5, 5, 3, 9, 9], np.uint16))
    asked = np.array([False, False, False, True, True, True, True, True])
    np.save(tmp_path / "own.asked.npy", asked)
    assert most_frequent(Stream(tmp_path, "own", 0), 2).tolist() == [5, 9]


def test_n_grams_keep_all_drafts_where_text_repeats(tmp_path: Path) -> None:
    import numpy as np

    from training.heads import ngrams
    from training.heads.acceptance import DEPTHS

    rng = np.random.default_rng(0)
    phrase = rng.integers(3, 500, 20)
    texts = {"repeats": np.tile(phrase, 8), "never": rng.permutation(np.arange(3, 163))}
    for name, text in texts.items():
        np.save(tmp_path / f"{name}.ids.npy", np.append(text, 0).astype(np.uint16))
        np.save(tmp_path / f"{name}.asked.npy", np.arange(161) >= 60)
    repeats, never = (ngrams.accepted(tmp_path, name, 160) for name in texts)
    assert repeats.summary()["starts"] == 96
    assert repeats.kept.sum() > 0.97 * DEPTHS * 96
    assert never.summary()["mean"] == 0.0


@pytest.mark.parametrize("shape", ["tiny", "hybrid", "hybrid-mixture"])
def test_whole_recipe_of_a_head(tmp_path: Path, shape: str) -> None:
    import gguf

    write_corpus(tmp_path / "corpus")
    out = str(tmp_path / "out")
    recipe("prepare", "--data", str(tmp_path / "corpus"), "--out", out)
    recipe("run", "--out", out, "--shape", shape)
    trunk = tmp_path / "trunk.gguf"
    recipe("export", "--out", out, "--shape", shape, "--file", str(trunk))
    common = ("--out", out, "--shape", shape, "--from", str(trunk))
    if shape == "tiny":
        heads("write", *common, "--tokens", "500")
        heads("write", *common, "--tokens", "200", "--judged")
    steps = [json.loads(line) for line in heads("run", *common).splitlines()]
    assert steps[-1]["step"] == 20
    assert len(steps[-1]["losses"]) == 4
    assert heads("run", *common) == "", "a finished run goes on from its last step"
    if shape == "tiny":
        table = json.loads(heads("acceptance", *common))
        starts = {name: rows["all"]["starts"] for name, rows in table.items()}
        assert starts["head, temperature 0"] > 100
        assert starts["n-grams, temperature 0"] == starts["head, temperature 0"]
    file = tmp_path / "head.gguf"
    as_a_user("training.heads", "export", "--smoke", *common, "--file", str(file))
    reader = gguf.GGUFReader(file)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    if shape == "tiny":
        assert reader.fields["eagle3.target_layers"].contents() == [1, 1, 1]
        assert kinds["d2t"] == "I64"
        assert kinds["fc.weight"] == kinds["blk.0.attn_q.weight"] == "Q8_0"
        assert kinds["blk.0.attn_norm_2.weight"] == "F32"
    else:
        architecture = reader.fields["general.architecture"].contents()
        assert reader.fields[f"{architecture}.nextn_predict_layers"].contents() == 1
        assert reader.fields[f"{architecture}.block_count"].contents() == 4
        assert ("blk.3.ffn_up_exps.weight" in kinds) == (architecture == "qwen35moe")
        assert kinds["blk.3.nextn.eh_proj.weight"] == kinds["blk.3.attn_q.weight"] == "Q8_0"
        trunk_names = {tensor.name for tensor in gguf.GGUFReader(trunk).tensors}
        assert trunk_names < set(kinds)
        with open_model(file) as opened:
            assert opened.spec.draft_head is not None, opened.spec.note
