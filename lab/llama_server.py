"""Our drafters on the llama.cpp backend beside llama.cpp's server and its own drafting.

    python benchmarks/llama_server.py [MODEL] [--server PATH] [--draft-model FILE | --exit-layer E]
                                      [--only NAME,...] [--tokens 128] [--rounds 3] [--threads 2]

The same greedy prompts, as token ids. The server is started for every round and mode, so that none
remembers replies of earlier rounds, with its defaults for each mode; what our drafters learnt is
forgotten before each reply. Medians over the rounds of tokens a second as each engine tells them,
decoding only. `same` is how many of our tokens are the server's before the first that differs.

The server's mode with a draft model takes a file of the same vocabulary, or, with --exit-layer, the
model's own first layers and head. Without a server binary (llama-server on the PATH, or --server)
says so and ends with 0. Exit code 1: less than 1.2 times the best of the server's modes that draft
from the text, over the prompts that repeat (geometric mean), or less than 0.98 times its plain
decoding on one.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
from benchmarks.forgetting import forget
from edgespec.models.gguf.file_source import FileSource
from edgespec.models.gguf.header import read_header
from edgespec.models.gguf.splitting import split_model
from edgespec.models.registry import resolve

CONTEXT = 1024
MODES = {"plain": [], "ngram-simple": ["ngram-simple"], "ngram-mod": ["ngram-mod"]}
PROMPTS = {
    "phrase": ("the red ball and the blue box and " * 12, True, True),
    "statements": ("x = x + 1\ny = y + 1\n" * 8, True, True),
    "numbers": ("1, 2, 3, 4, 5, 6, 7, 8, 9, " * 6, True, True),
    "dog": ("Tell me a short story about a dog.", False, False),
    "bird": ("Write a long story about a cat and a bird who went to the sea.", False, False),
}
"""By name: the prompt, whether it goes without the chat template, whether replies repeat.

Prompts whose replies the bundled model does not end within 128 tokens: the server never writes the
token that ends one, and we go on behind it.
"""
OURS, OURS_PLAIN = "ours", "ours, plain"


@contextmanager
def server(binary: str, model: Path, mode: list[str], threads: int) -> Iterator[str]:
    """A server of one mode; its address, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [binary, "-m", str(model), "-c", str(CONTEXT), "-np", "1", "-t", str(threads)]
    command += ["--host", "127.0.0.1", "--port", str(port), "-fa", "off", *mode]
    nothing = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing) as process:
        try:
            address = f"http://127.0.0.1:{port}"
            while process.poll() is None:
                with suppress(OSError), urllib.request.urlopen(f"{address}/health") as answer:
                    if answer.status == 200:
                        yield address
                        return
                time.sleep(0.05)
            raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}")
        finally:
            process.terminate()


def ask(address: str, ids: list[int], tokens: int) -> tuple[float, list[int], float]:
    """Tokens a second, the reply's tokens, and the part of drafts that were right."""
    body = {"prompt": ids, "n_predict": tokens, "temperature": 0, "top_k": 1, "ignore_eos": True}
    body |= {"return_tokens": True, "cache_prompt": False, "repeat_penalty": 1.0}
    request = urllib.request.Request(
        f"{address}/completion",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        found = json.load(answer)
    timings = found["timings"]
    right = timings.get("draft_n_accepted", 0) / max(timings.get("draft_n", 0), 1)
    return timings["predicted_per_second"], found["tokens"], right


def first_layers(model: Path, layers: int, folder: Path) -> Path:
    """A model of the first layers and the head: part 1 of a split, told that it is the whole."""
    with FileSource(model) as source:
        architecture = read_header(source).metadata["general.architecture"]
    part, _ = split_model(model, layers, folder / "split")
    data = bytearray(part.read_bytes())
    for key, form, value in (
        (f"{architecture}.block_count", "<I", layers),
        ("split.count", "<H", 0),
    ):
        raw = struct.pack("<Q", len(key)) + key.encode()
        struct.pack_into(form, data, data.index(raw) + len(raw) + 4, value)  # behind its type
    cut = folder / "first-layers.gguf"
    cut.write_bytes(data)
    return cut


def measure(
    binary: str, model: Path, modes: dict[str, list[str]], options: argparse.Namespace
) -> dict[str, Any]:
    """Speeds by prompt and engine, and how many tokens were the same."""
    names = options.only.split(",") if options.only else list(PROMPTS)
    speeds: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    same: dict[str, int] = {}
    with edgespec.load(
        model, backend="llamacpp", context=CONTEXT, threads=options.threads
    ) as engine:
        ids = {name: engine.encode(PROMPTS[name][0], raw=PROMPTS[name][1]) for name in names}
        ours: dict[str, list[int]] = {}
        for _ in range(options.rounds):
            for name in names:
                for key, speculation in ((OURS_PLAIN, False), (OURS, True)):
                    forget(engine)
                    reply = engine.generate(
                        ids[name],
                        max_tokens=options.tokens,
                        temperature=0,
                        speculation=speculation,
                        ignore_eos=True,
                    )
                    speeds[name].setdefault(key, []).append(reply.stats.tokens_per_second)
                    ours[name] = reply.token_ids
            for mode, arguments in modes.items():
                with server(binary, model, arguments, options.threads) as address:
                    ask(address, ids[names[0]][:8], 8)  # the first request of a server is slow
                    for name in names:
                        speed, tokens, _ = ask(address, ids[name], options.tokens)
                        speeds[name].setdefault(mode, []).append(speed)
                        if mode == "plain":
                            pairs = zip(ours[name], tokens, strict=False)
                            same[name] = _equal_before_first_other(pairs)
    medians = {
        name: {key: statistics.median(found) for key, found in by_engine.items()}
        for name, by_engine in speeds.items()
    }
    return {"speeds": medians, "same": same}


def _equal_before_first_other(pairs: Any) -> int:
    count = 0
    for one, other in pairs:
        if one != other:
            break
        count += 1
    return count


def report(found: dict[str, Any], tokens: int) -> bool:
    """Print the table; whether both goals are met."""
    speeds = found["speeds"]
    columns = list(next(iter(speeds.values())))
    print(f"{'prompt':<16}" + "".join(f"{name:>14}" for name in columns), end="")
    print(f"{'/ best mode':>13}{'/ its plain':>13}{'same':>10}")
    lookups = [name for name in columns if name.startswith("ngram")]
    gains, worst = [], math.inf
    for name, row in speeds.items():
        best, plain = row[OURS] / max(row[key] for key in lookups), row[OURS] / row["plain"]
        worst = min(worst, plain)
        if PROMPTS[name][2]:
            gains.append(best)
        numbers = "".join(f"{row[key]:>14.1f}" for key in columns)
        same = f"{found['same'][name]}/{tokens}"
        print(f"{name:<16}{numbers}{best:>13.2f}{plain:>13.2f}{same:>10}")
    gain = statistics.geometric_mean(gains) if gains else math.nan
    told = f"repeating prompts: {gain:.2f} times its best; " if gains else ""
    print(f"{told}worst against its plain: {worst:.2f}")
    return not gain < 1.2 and worst >= 0.98


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--server", default=shutil.which("llama-server"))
    parser.add_argument("--draft-model", type=Path)
    parser.add_argument("--exit-layer", type=int)
    parser.add_argument("--only", default="")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if not options.server or not Path(options.server).exists():
        print("skipped: no llama-server was found; build llama.cpp and name it with --server")
        return 0
    modes = {name: [*(["--spec-type", *kinds] if kinds else [])] for name, kinds in MODES.items()}
    model = resolve(options.model)
    with tempfile.TemporaryDirectory() as folder:
        draft = options.draft_model
        if options.exit_layer:
            draft = first_layers(model, options.exit_layer, Path(folder))
        if draft:
            modes["draft-simple"] = ["--spec-type", "draft-simple", "-md", str(draft)]
        found = measure(options.server, model, modes, options)
    return 0 if report(found, options.tokens) else 1


if __name__ == "__main__":
    sys.exit(main())
