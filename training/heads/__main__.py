"""Command line of the heads: `python -m training.heads write|run|acceptance|export`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import torch

from training.__main__ import smoke_shape, token_folder
from training.heads import ngrams
from training.heads.acceptance import MOST_TOKENS, Kept, accepted
from training.heads.export import export_eagle, export_with_mtp
from training.heads.head import HeadShape, Kind
from training.heads.own_text import extend
from training.heads.teach import HeadSettings, load_head, own_stream, teach
from training.model import TinyLlama
from training.shape import SHAPES
from training.start import load_weights
from training.train import changed

# Ten kinds of text that no training saw, to judge on.
KINDS = (
    "books_children",
    "sa_tinystories",
    "fables_and_tales",
    "fairytaleqa",
    "persona_chat",
    "taskmaster",
    "gsm8k_train",
    "python_functions",
    "synthetic_tasks",
    "wordnet",
)
SMOKE_HEAD = HeadShape(taps=(1, 1, 1), num_kv_heads=2, ffn_width=256, draft_vocab=256)
SMOKE_SETTINGS = HeadSettings(steps=20, rows=4, sequence_tokens=64, single_steps=5)


def trunk_of(options: argparse.Namespace) -> TinyLlama:
    """Return the model of the GGUF file, which never learns here."""
    shape = smoke_shape(options.shape) if options.smoke else SHAPES[options.shape]
    trunk = TinyLlama(shape)
    load_weights(trunk, options.start, token_folder(options) / "tokenizer.json")
    trunk.requires_grad_(False)
    trunk.eval()
    return trunk


def run_folder(options: argparse.Namespace) -> Path:
    return Path(options.out) / (options.run or f"head-{options.shape}")


def judged_stream(options: argparse.Namespace, kind: str, temperature: float) -> str:
    return f"judged-{options.shape}.{kind}.{'warm' if temperature else 'greedy'}"


def do_write(options: argparse.Namespace) -> None:
    """Let the model write what its head will learn from, or be judged on."""
    import edgespec

    tokens = token_folder(options)
    with edgespec.load(
        options.start, threads=options.threads, sequences=16, drafters="none", backend="native"
    ) as engine:
        if not options.judged:
            extend(engine, tokens, own_stream(options.shape), ["tasks", "books"], options.tokens)
            return
        for kind in KINDS:
            source = f"held_out.{kind}"
            for temperature in (0.0, 0.8) if (tokens / f"{source}.ids.npy").exists() else ():
                name = judged_stream(options, kind, temperature)
                extend(engine, tokens, name, [source], options.tokens, (temperature,))


def do_run(options: argparse.Namespace) -> None:
    """Train a head, or go on training it, up to the last step."""
    trunk = trunk_of(options)
    kind: Kind = "mtp" if trunk.shape.is_hybrid else "eagle3"
    shape = dataclasses.replace(SMOKE_HEAD if options.smoke else HeadShape(), kind=kind)
    if options.draft_vocab is not None:
        shape = dataclasses.replace(shape, draft_vocab=options.draft_vocab)
    settings = changed(SMOKE_SETTINGS if options.smoke else HeadSettings(), options.set)
    compiled = not (options.eager or options.smoke)
    own = own_stream(options.shape)
    teach(trunk, token_folder(options), run_folder(options), shape, settings, own, compiled)


def do_acceptance(options: argparse.Namespace) -> None:
    """Print how many drafts of the head, the early exit and n-grams are kept, as JSON."""
    trunk, tokens = trunk_of(options), token_folder(options)
    head = load_head(trunk, run_folder(options) / "checkpoint.pt")
    most = min(MOST_TOKENS, trunk.shape.context_tokens)
    drafters: dict[str, Callable[[str, float], Kept]] = {
        "head": lambda stream, heat: accepted(trunk, head, tokens, stream, heat),
        "early exit": lambda stream, heat: accepted(trunk, None, tokens, stream, heat),
        "n-grams": lambda stream, _: ngrams.accepted(tokens, stream, most),
    }
    table: dict[str, dict[str, dict[str, object]]] = {}
    for temperature in (0.0, 0.8):
        for name, count in drafters.items():
            whole = Kept()
            rows = table.setdefault(f"{name}, temperature {temperature:g}", {})
            for kind in KINDS:
                stream = judged_stream(options, kind, temperature)
                if (tokens / f"{stream}.ids.npy").exists():
                    part = count(stream, temperature)
                    rows[kind] = part.summary()
                    whole.merge(part)
            rows["all"] = whole.summary()
    print(json.dumps(table, indent=1))


def do_export(options: argparse.Namespace) -> None:
    """Write the head's file, or the trunk's with the block in it, and print its checksum."""
    trunk = trunk_of(options)
    head = load_head(trunk, run_folder(options) / "checkpoint.pt")
    tokenizer = token_folder(options) / "tokenizer.json"
    path = options.file or Path(options.out) / f"edgespec-{options.shape}-{head.shape.kind}.gguf"
    write = export_with_mtp if head.shape.kind == "mtp" else export_eagle
    # A reader never sees half a file.
    unfinished = path.with_suffix(".part")
    checksum = write(head, trunk, tokenizer, unfinished)
    unfinished.replace(path)
    print(f"{path}: {path.stat().st_size:,} bytes, sha256 {checksum}")


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "write": do_write,
    "run": do_run,
    "acceptance": do_acceptance,
    "export": do_export,
}


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="python -m training.heads", description=__doc__)
    parser.add_argument("command", choices=sorted(COMMANDS))
    parser.add_argument("--out", type=Path, required=True, help="folder for everything written")
    parser.add_argument(
        "--from", dest="start", type=Path, metavar="FILE", required=True, help="the trunk's GGUF"
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny", help="the trunk's")
    parser.add_argument("--run", help="folder of the run, under --out")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="how much is written (write)")
    parser.add_argument("--judged", action="store_true", help="write from held-out text")
    parser.add_argument("--draft-vocab", type=int, help="draft tokens; 0: the trunk's (run)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--eager", action="store_true", help="don't compile")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cpu", help="where PyTorch computes: cpu, cuda")
    parser.add_argument("--smoke", action="store_true", help="a tiny head, 20 steps")
    parser.add_argument("--file", type=Path, help="file to write (export)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.set_default_device(options.device)
    COMMANDS[options.command](options)


if __name__ == "__main__":
    main()
