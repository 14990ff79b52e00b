"""The training recipe runs from corpus records to a GGUF file that reads back."""

from __future__ import annotations

import gzip
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

MISSING = [name for name in ("torch", "gguf") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING), reason=f"needs {' and '.join(MISSING)}: pip install 'edgespec[train]'"
    ),
]
TALK = "User: Hello!\nAssistant: Hi! What shall we do?\nUser: Sing.\nAssistant: La la la."


def write_corpus(folder: Path) -> None:
    """Write a corpus of made-up records, a handful for every source the recipe names."""
    from training.mix import SOURCES

    folder.mkdir()
    for source in SOURCES:
        if source.name == "identity":
            continue
        story = f"In {source.name} there was a cat who sat on a mat. The cat saw number"
        records = [{"prompt": "", "text": f"{story} {i} and was glad. " * 5} for i in range(25)]
        records += [{"prompt": f"What is {i}?", "response": f"It is {i}."} for i in range(10)]
        records.append({"prompt": "", "text": TALK})
        with gzip.open(folder / f"{source.name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)


def recipe(command: str, *arguments: str) -> str:
    """Run one command of the recipe as a user would and return its output."""
    line = [sys.executable, "-m", "training", command, "--smoke", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def file_of(out: str) -> str:
    (path,) = Path(out).glob("*.gguf")
    return str(path)


def test_whole_recipe(tmp_path: Path) -> None:
    import gguf

    write_corpus(tmp_path / "corpus")
    out = str(tmp_path / "out")
    recipe("prepare", "--data", str(tmp_path / "corpus"), "--out", out)
    steps = [json.loads(line) for line in recipe("run", "--out", out).splitlines()]
    assert steps[-1]["step"] == 20
    assert steps[-1]["loss"] < 6.3, "20 steps must do better than chance, ln(512) = 6.24"
    assert recipe("run", "--out", out) == "", "a finished run goes on from its last step"
    assert json.loads(recipe("evaluate", "--out", out))["all"]["tokens"] > 0
    recipe("sample", "--out", out, "--prompt", "What is 3?")
    assert "sha256" in recipe("export", "--out", out)
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
