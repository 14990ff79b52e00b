"""Command line of the recipe: `python -m training prepare|run|export|...`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer

from training import data
from training.evaluate import evaluate
from training.export import export, load_model
from training.routing import routing
from training.sample import as_chat, sample
from training.shape import SHAPES, Shape
from training.start import load_tokenizer
from training.train import Settings, changed, run, start_cooling

SMOKE_SHAPE = Shape(
    width=256,
    num_layers=2,
    num_heads=8,
    ffn_width=256,
    vocab_size=512,
    context_tokens=128,
    exit_layer=1,
)
SMOKE_SETTINGS = Settings(steps=20, batch_tokens=256, sequence_tokens=64, warmup_steps=5)
SMOKE_RECORDS = 40


def token_folder(options: argparse.Namespace) -> Path:
    return Path(options.out) / "tokens"


def run_folder(options: argparse.Namespace) -> Path:
    default = "run" if options.shape == "tiny" else f"run-{options.shape}"
    return Path(options.out) / (options.run or default)


def smoke_shape(name: str) -> Shape:
    """Return the smallest shape of the same architecture; a hybrid needs both kinds of layer."""
    shape = SHAPES[name]
    return dataclasses.replace(
        SMOKE_SHAPE,
        architecture=shape.architecture,
        num_layers=SMOKE_SHAPE.attention_interval if shape.is_hybrid else 2,
        num_experts=shape.num_experts,
        shared_width=shape.shared_width,
    )


def do_prepare(options: argparse.Namespace) -> None:
    """Train the tokenizer, or take that of a file, and write the token streams."""
    shape, limit = (SMOKE_SHAPE, SMOKE_RECORDS) if options.smoke else (SHAPES["tiny"], None)
    tokenizer = None if options.start is None else load_tokenizer(options.start)
    out = token_folder(options)
    data.prepare(options.data, out, shape.vocab_size, limit, tokenizer, options.last)


def do_run(options: argparse.Namespace) -> None:
    """Train, or go on training, up to the last step."""
    if options.smoke:
        shape, settings = smoke_shape(options.shape), SMOKE_SETTINGS
    else:
        shape, settings = SHAPES[options.shape], Settings()
    settings = changed(settings, options.set)
    compiled = not (options.eager or options.smoke)
    out, start = run_folder(options), options.start
    run(token_folder(options), out, shape, settings, compiled, start, options.upcycle)


def do_cool(options: argparse.Namespace) -> None:
    """Let the rate of a copy of the run fall to zero, so that the run itself can go on."""
    source = run_folder(options)
    out = source.with_name(f"{source.name}-cool")
    checkpoint = out / "checkpoint.pt"
    if not checkpoint.exists():
        start_cooling(source / "checkpoint.pt", checkpoint, 5 if options.smoke else options.steps)
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    settings = Settings(**state["settings"])
    settings = changed(settings, options.set)
    compiled = not (options.eager or options.smoke)
    run(token_folder(options), out, Shape(**state["shape"]), settings, compiled)


def do_evaluate(options: argparse.Namespace) -> None:
    """Print the held-out losses as JSON."""
    model = load_model(run_folder(options) / "checkpoint.pt")
    print(json.dumps(evaluate(model, token_folder(options)), indent=1))


def do_routing(options: argparse.Namespace) -> None:
    """Print how a mixture of experts reads held-out text, as JSON."""
    model = load_model(run_folder(options) / "checkpoint.pt")
    print(json.dumps(routing(model, token_folder(options)), indent=1))


def do_export(options: argparse.Namespace) -> None:
    """Write the GGUF file and print its checksum."""
    path = options.file or Path(options.out) / f"edgespec-{options.shape}-q8_0.gguf"
    checksum = export(
        run_folder(options) / "checkpoint.pt", token_folder(options) / "tokenizer.json", path
    )
    print(f"{path}: {path.stat().st_size:,} bytes, sha256 {checksum}")


def do_plot(options: argparse.Namespace) -> None:
    """Draw the loss curves of the run, after those of earlier ones."""
    from training.plot import plot

    path = options.file or Path(options.out) / "loss.svg"
    plot([*options.after, run_folder(options) / "log.jsonl"], path)
    print(path)


def do_sample(options: argparse.Namespace) -> None:
    """Print the reply to a prompt."""
    model = load_model(run_folder(options) / "checkpoint.pt")
    tokenizer = Tokenizer.from_file(str(token_folder(options) / "tokenizer.json"))
    prompt = options.prompt if options.raw else as_chat(options.prompt)
    print(sample(model, tokenizer, prompt, temperature=options.temperature, seed=options.seed))


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "prepare": do_prepare,
    "run": do_run,
    "cool": do_cool,
    "evaluate": do_evaluate,
    "routing": do_routing,
    "export": do_export,
    "plot": do_plot,
    "sample": do_sample,
}


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("command", choices=sorted(COMMANDS))
    parser.add_argument("--data", type=Path, help="folder of the corpus files (*.jsonl.gz)")
    parser.add_argument("--out", type=Path, required=True, help="folder for everything written")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="change a setting (run)"
    )
    parser.add_argument(
        "--from",
        dest="start",
        type=Path,
        metavar="FILE",
        help="GGUF file to start from (prepare: its tokenizer; run: its weights)",
    )
    parser.add_argument(
        "--upcycle",
        action="store_true",
        help="--from is dense or a Llama: its nets become experts, a hybrid gets new mixers (run)",
    )
    parser.add_argument(
        "--last", action="store_true", help="the mix that a training ends with (prepare)"
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--run", help="folder of the run, under --out (cool, export, sample, ...)")
    parser.add_argument("--steps", type=int, default=500, help="how long the rate falls (cool)")
    parser.add_argument(
        "--eager", action="store_true", help="don't compile: slower steps, no wait before the first"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cpu", help="where PyTorch computes: cpu, cuda")
    parser.add_argument("--smoke", action="store_true", help="a tiny model, 20 steps, 40 records")
    parser.add_argument("--file", type=Path, help="file to write (export, plot)")
    parser.add_argument(
        "--after", action="append", default=[], type=Path, metavar="LOG",
        help="log.jsonl of an earlier run to draw first (plot)",
    )  # fmt: skip
    parser.add_argument("--prompt", default="Tell me a short story.", help="what to say (sample)")
    parser.add_argument("--raw", action="store_true", help="send the prompt without template")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.command == "prepare" and options.data is None:
        parser.error("prepare needs --data, the folder of the corpus files")
    torch.set_num_threads(options.threads)
    torch.set_default_device(options.device)
    COMMANDS[options.command](options)


if __name__ == "__main__":
    main()
