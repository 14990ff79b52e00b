"""The training recipe runs from corpus records to a GGUF file that reads back."""

from __future__ import annotations

import dataclasses
import gzip
import importlib.util
import json
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

MISSING = [name for name in ("torch", "gguf") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # PyTorch's own
    pytest.mark.skipif(
        bool(MISSING), reason=f"needs {' and '.join(MISSING)}: pip install 'edgespec[train]'"
    ),
]
TALK = "User: Hello!\nAssistant: Hi! What shall we do?\nUser: Sing.\nAssistant: La la la."


def write_corpus(folder: Path) -> None:
    """Write a corpus of made-up records, a handful for every source the recipe names."""
    from training.mix import SOURCES, WRITTEN_HERE

    folder.mkdir()
    for source in SOURCES:
        if source.name in WRITTEN_HERE:
            continue
        story = f"In {source.name} there was a cat who sat on a mat. The cat saw number"
        records = [{"prompt": "", "text": f"{story} {i} and was glad. " * 5} for i in range(25)]
        records += [{"prompt": f"What is {i}?", "response": f"It is {i}."} for i in range(10)]
        records.append({"prompt": "", "text": TALK})
        with gzip.open(folder / f"{source.name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)


def recipe(command: str, *arguments: str) -> str:
    """Run one command of the recipe and return its output; in this process, as importing PyTorch
    takes longer than most of them.
    """
    from training.__main__ import main

    with redirect_stdout(StringIO()) as out:
        main([command, "--smoke", "--threads", "1", *arguments])
    return out.getvalue()


def as_a_user(module: str, *arguments: str) -> str:
    """The same in a process of its own."""
    line = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def file_of(out: str) -> str:
    (path,) = Path(out).glob("*.gguf")
    return str(path)


def test_what_newcomers_ask_counts_more_at_the_end(tmp_path: Path) -> None:
    from training.data import gather
    from training.mix import WRITTEN_HERE

    write_corpus(tmp_path / "corpus")
    whole, last = (gather(tmp_path / "corpus", None, end)[0]["tasks"] for end in (False, True))
    asked = {response for _, response in WRITTEN_HERE["short_asks"]}

    def others(documents: list[list[tuple[str, bool]]]) -> float:
        """The share of documents that answer something else: small, as this corpus is."""
        replies = [text.removesuffix("<|im_end|>") for each in documents for text, _ in each]
        return 1 - sum(text in asked for text in replies) / len(documents)

    assert 0 < others(last) < others(whole) / 2


def test_whole_recipe(tmp_path: Path) -> None:
    import gguf

    write_corpus(tmp_path / "corpus")
    out = str(tmp_path / "out")
    as_a_user("training", "prepare", "--smoke", "--data", str(tmp_path / "corpus"), "--out", out)
    steps = [json.loads(line) for line in recipe("run", "--out", out).splitlines()]
    assert steps[-1]["step"] == 20
    assert steps[-1]["loss"] < 6.3, "20 steps must do better than chance, ln(512) = 6.24"
    assert recipe("run", "--out", out) == "", "a finished run goes on from its last step"
    assert json.loads(recipe("evaluate", "--out", out))["all"]["tokens"] > 0
    recipe("sample", "--out", out, "--prompt", "What is 3?")
    assert "sha256" in recipe("export", "--out", out)
    cooled = [json.loads(line) for line in recipe("cool", "--out", out).splitlines()]
    assert cooled[-1]["step"] == 25
    assert cooled[-1]["lr_factor"] < 0.1
    recipe("export", "--out", out, "--run", "run-cool", "--file", f"{out}/cooled")
    recipe("plot", "--out", out, "--after", f"{out}/run/log.jsonl", "--file", f"{out}/loss.svg")
    assert "</svg>" in Path(out, "loss.svg").read_text(encoding="utf-8")
    # Where there is a file and no checkpoint, training goes on from where the file is.
    Path(out, "run").rename(tmp_path / "first run")
    first = json.loads(recipe("run", "--out", out, "--from", file_of(out)).splitlines()[0])
    assert first["loss"] < steps[-1]["loss"] + 0.1

    reader = gguf.GGUFReader(tmp_path / "out" / "edgespec-tiny-q8_0.gguf")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert kinds["token_embd.weight"] == "Q8_0"
    assert kinds["blk.1.attn_norm.weight"] == "F32"
    assert reader.fields["edgespec.early_exit.layer"].contents() == 1
    assert len(reader.fields["tokenizer.ggml.tokens"].contents()) == 512


@pytest.mark.parametrize("shape", ["hybrid", "experts", "mixture", "hybrid-mixture"])
def test_siblings(tmp_path: Path, shape: str) -> None:
    """A file of other layers holds them under llama.cpp's names, and is read back as it was."""
    import gguf
    import torch

    from training.__main__ import smoke_shape
    from training.export import load_model
    from training.model import TinyLlama
    from training.start import load_weights

    write_corpus(tmp_path / "corpus")
    out = str(tmp_path / "out")
    recipe("prepare", "--data", str(tmp_path / "corpus"), "--out", out)
    steps = [json.loads(x) for x in recipe("run", "--out", out, "--shape", shape).splitlines()]
    assert steps[-1]["loss"] < 6.3
    recipe("export", "--out", out, "--shape", shape)
    path = Path(file_of(out))
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    if "hybrid" in shape:
        assert (
            kinds["blk.0.ssm_a"] == kinds["blk.0.ssm_dt.bias"] == kinds["blk.0.ssm_conv1d.weight"]
        )
        assert kinds["blk.0.attn_qkv.weight"] == kinds["blk.2.attn_q.weight"] == "Q8_0"
    if shape == "hybrid-mixture":
        assert kinds["blk.1.ffn_down_shexp.weight"] == "Q8_0"
    if shape != "hybrid":
        assert kinds["blk.1.ffn_gate_inp.weight"] == "F32"
        assert kinds["blk.1.ffn_down_exps.weight"] == "Q8_0"

    trained = load_model(tmp_path / "out" / f"run-{shape}" / "checkpoint.pt")
    read = TinyLlama(smoke_shape(shape))
    load_weights(read, path, tmp_path / "out" / "tokens" / "tokenizer.json")
    stored = read.state_dict()
    for name, values in trained.state_dict().items():
        # A step of Q8_0 is a 127th of the largest value of its block.
        step = values.abs().max().item() / 127
        torch.testing.assert_close(stored[name], values, rtol=1e-5, atol=step)
    if shape == "hybrid":
        mixture = TinyLlama(smoke_shape("hybrid-mixture"))
        load_weights(mixture, path, tmp_path / "out" / "tokens" / "tokenizer.json", upcycle=True)
        ids = torch.randint(3, 512, (2, 64))
        expected, found = (model.logits(model.hidden(ids)[0][-1]) for model in (read, mixture))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_mixture_starts_as_the_dense_model(tmp_path: Path) -> None:
    import torch

    import edgespec
    from training.__main__ import smoke_shape
    from training.export import load_model
    from training.model import TinyLlama
    from training.siblings import gguf_name
    from training.start import load_weights

    write_corpus(tmp_path / "corpus")
    out, tokenizer = str(tmp_path / "out"), tmp_path / "out" / "tokens" / "tokenizer.json"
    recipe("prepare", "--data", str(tmp_path / "corpus"), "--out", out)
    recipe("run", "--out", out)
    recipe("export", "--out", out)
    path = Path(file_of(out))
    dense, mixture = TinyLlama(smoke_shape("tiny")), TinyLlama(smoke_shape("mixture"))
    load_weights(dense, path, tokenizer)
    load_weights(mixture, path, tokenizer, upcycle=True)
    with pytest.raises(SystemExit, match="another model"):
        load_weights(mixture, path, tokenizer)
    ids = torch.randint(3, 512, (2, 64))
    expected, found = (model.logits(model.hidden(ids)[0][-1]) for model in (dense, mixture))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)

    shape = smoke_shape("tiny-hybrid")
    with pytest.raises(SystemExit, match="another model"):  # it has a layer more
        load_weights(TinyLlama(shape), path, tokenizer, upcycle=True)
    hybrid = TinyLlama(dataclasses.replace(shape, num_layers=2, attention_interval=2))
    load_weights(hybrid, path, tokenizer, upcycle=True)
    both = [{gguf_name(n): v for n, v in one.state_dict().items()} for one in (dense, hybrid)]
    for name in ("token_embd.weight", "blk.1.ffn_up.weight"):
        torch.testing.assert_close(both[1][name], both[0][name])
    assert hybrid.logits(hybrid.hidden(ids)[0][-1]).isfinite().all(), "around new mixers"

    start = ("--from", str(path), "--shape", "mixture")
    recipe("run", "--out", out, *start, "--upcycle", "--set", "steps=2")
    recipe("export", "--out", out, "--shape", "mixture", "--file", f"{out}/mixture.gguf")
    trained = load_model(tmp_path / "out" / "run-mixture" / "checkpoint.pt")
    first, second, *_ = trained.blk[1].net.ffn_up_exps.weight.chunk(8)
    assert not torch.equal(first, second), "experts that read other tokens grow apart"
    read = json.loads(recipe("routing", "--out", out, "--shape", "mixture"))["read"]
    assert read["1"] == 2 < read["4"] <= 8
    with edgespec.load(f"{out}/mixture.gguf", backend="reference", threads=1) as engine:
        given = engine.encode("There was a cat who", raw=True)
        written = engine.generate(given, max_tokens=8, temperature=0.0, ignore_eos=True).token_ids
        ids = torch.tensor([given + written])
        logits = trained.logits(trained.hidden(ids)[0][-1])[0, len(given) - 1 : -1]
        # The file is rounded to 8 bits, so a near tie may fall the other way.
        lead = logits.max(-1).values - logits.gather(-1, ids[0, len(given) :, None])[:, 0]
        assert lead.max() < 0.05 * logits.std()


def test_the_delta_rule_in_chunks_is_the_rule_token_by_token() -> None:
    import torch

    from training.siblings import CHUNK_TOKENS, gated_delta_rule

    torch.manual_seed(0)
    batch, heads, tokens, width = 2, 3, 2 * CHUNK_TOKENS + 9, 16
    query, key, value = (torch.randn(batch, heads, tokens, width) for _ in range(3))
    key = key / key.norm(dim=-1, keepdim=True)
    decay, rate = -torch.rand(batch, heads, tokens), torch.rand(batch, heads, tokens)
    state = torch.zeros(batch, heads, width, width)
    reads = []
    for t in range(tokens):
        state = state * decay[:, :, t, None, None].exp()
        stored = (key[:, :, t, None] @ state)[:, :, 0]
        change = rate[:, :, t, None] * (value[:, :, t] - stored)
        state = state + key[:, :, t, :, None] * change[:, :, None]
        reads.append((query[:, :, t, None] @ state)[:, :, 0])
    torch.testing.assert_close(
        gated_delta_rule(query, key, value, decay, rate), torch.stack(reads, 2), rtol=0, atol=1e-4
    )


def test_a_token_goes_to_its_two_best_experts() -> None:
    import torch
    import torch.nn.functional as F

    from training.feed_forward import Experts
    from training.shape import Shape
    from training.siblings import to_gguf

    torch.manual_seed(0)
    shape = Shape(architecture="qwen3moe", width=32, ffn_width=16, num_experts=8)
    experts = Experts(shape)
    x = torch.randn(1, 7, 32)
    gate, up, down = (
        to_gguf(f"ffn_{part}_exps", getattr(experts, f"ffn_{part}_exps").weight, shape)
        for part in ("gate", "up", "down")
    )
    shares = experts.ffn_gate_inp(x[0]).softmax(-1)
    rows = []
    for token, share in zip(x[0], shares, strict=True):
        best = share.argsort(descending=True)[:2]
        parts = [
            share[e] / share[best].sum() * (down[e] @ (F.silu(gate[e] @ token) * (up[e] @ token)))
            for e in best
        ]
        rows.append(parts[0] + parts[1])
    torch.testing.assert_close(experts.feed(x)[0][0], torch.stack(rows))


def test_short_asks_have_replies() -> None:
    from training.asks import HAIKU, short_asks

    pairs = list(short_asks())
    assert all(prompt and reply for prompt, reply in pairs)
    haiku = [reply for prompt, reply in pairs if "haiku" in prompt]
    assert len(haiku) == 27 * len(HAIKU)
    assert {reply.count("\n") for reply in haiku} == {2}
    assert ("Are you there?", "Yes, I am here. How can I help?") in pairs


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("Once upon a time there was a little dog named Spot. He ran.", "about a little dog"),
        ("One day, there lived an old man in a hut.", "about an old man"),
        ("Tim ran home. There was a time, long ago.", None),
        ("Tim and Sam ran home.", None),
    ],
)
def test_a_story_is_told_to_one_who_asks_for_its_hero(text: str, prompt: str | None) -> None:
    from training.asks import story_prompt

    found = story_prompt(text, 0.0)
    assert found == (None if prompt is None else f"Tell me a short story {prompt}.")


def test_a_talk_becomes_turns() -> None:
    from training.data import render

    segments = render({"prompt": "", "text": TALK})
    written = [text for text, asked in segments if asked]
    assert written == ["Hi! What shall we do?<|im_end|>", "La la la.<|im_end|>"]
    assert sum("<|im_start|>user" in text for text, _ in segments) == 2


def test_held_out_records_never_depend_on_order_or_weight() -> None:
    from training.data import record_key, share_of

    record = {"prompt": "What is 3?", "response": "It is 3."}
    first = share_of(record_key(record), "split")
    assert first == share_of(record_key(dict(reversed(record.items()))), "split")
    assert first != share_of(record_key(record), "weight")
