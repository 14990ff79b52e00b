"""llama.cpp's server as users start it, and what each of its modes takes to reply.

Every figure is a median over rounds of tokens a second as each engine tells them, decoding only.
"""

from __future__ import annotations

import json
import socket
import statistics
import struct
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import edgespec
from edgespec.models.gguf.file_source import FileSource
from edgespec.models.gguf.header import read_header
from edgespec.models.gguf.splitting import split_model
from lab.harness import Asked, forget

CONTEXT = 1024
LOOKUPS = ("ngram-simple", "ngram-mod")
"""Its modes that draft from the text."""
MODES = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache", "draft-simple")
"""All that a usual model can be drafted for with; the last takes a draft model. `draft-mtp` is for
files that bring a block for it.
"""


class Answer(NamedTuple):
    """A reply: tokens a second, decoding only, its tokens, and how many were accepted drafts."""

    speed: float
    tokens: list[int]
    accepted: int


class Prompt(NamedTuple):
    """A prompt, and whether its reply repeats it; such go without the chat template."""

    text: str
    repeats: bool


PROMPTS = {
    "phrase": Prompt("the red ball and the blue box and " * 12, True),
    "statements": Prompt("x = x + 1\ny = y + 1\n" * 8, True),
    "numbers": Prompt("1, 2, 3, 4, 5, 6, 7, 8, 9, " * 6, True),
    "dog": Prompt("Tell me a short story about a dog.", False),
    "bird": Prompt("Write a long story about a cat and a bird who went to the sea.", False),
}
"""Prompts whose replies the bundled model does not end within 128 tokens: the server never writes
the token that ends one, and we go on behind it.
"""
OURS, OURS_PLAIN = "ours", "ours, plain"


@contextmanager
def server(
    binary: str, model: Path, mode: list[str], threads: int, context: int = CONTEXT
) -> Iterator[str]:
    """A server of one mode; its address, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [binary, "-m", str(model), "-c", str(context), "-np", "1", "-t", str(threads)]
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


def ask(address: str, ids: list[int], tokens: int, temperature: float = 0.0) -> Answer:
    """One reply, past its end."""
    body = {"prompt": ids, "n_predict": tokens, "temperature": temperature, "ignore_eos": True}
    body |= {"return_tokens": True, "cache_prompt": False, "repeat_penalty": 1.0, "seed": 1}
    if not temperature:
        body["top_k"] = 1
    request = urllib.request.Request(
        f"{address}/completion",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        found = json.load(answer)
    timings = found["timings"]
    return Answer(
        timings["predicted_per_second"], found["tokens"], timings.get("draft_n_accepted", 0)
    )


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
    binary: str, model: Path, modes: dict[str, list[str]], options: Asked
) -> dict[str, Any]:
    """Speeds by prompt and engine, and how many tokens were the same."""
    names = options.only.split(",") if options.only else list(PROMPTS)
    speeds: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    same: dict[str, int] = {}
    with edgespec.load(
        model, backend="llamacpp", context=CONTEXT, threads=options.threads
    ) as engine:
        ids = {name: engine.encode(PROMPTS[name].text, raw=PROMPTS[name].repeats) for name in names}
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
                        answer = ask(address, ids[name], options.tokens)
                        speeds[name].setdefault(mode, []).append(answer.speed)
                        if mode == "plain":
                            pairs = zip(ours[name], answer.tokens, strict=False)
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


def modes(
    model: Path, draft: Path | None, exit_layer: int | None, folder: Path
) -> dict[str, list[str]]:
    """The server's arguments by mode."""
    if exit_layer:
        draft = first_layers(model, exit_layer, folder)
    names = ("plain", *LOOKUPS, *(("draft-simple",) if draft else ()))
    return {name: arguments(name, draft) for name in names}


def arguments(mode: str, draft: Path | None) -> list[str]:
    """Of the server's command line for one mode; `draft-mtp:5` drafts five tokens a step."""
    if mode == "plain":
        return []
    name, _, most = mode.partition(":")
    given = ["--spec-type", name, *(("--spec-draft-n-max", most) if most else ())]
    return [*given, *(("-md", str(draft)) if name == "draft-simple" else ())]


def rows(found: dict[str, Any], tokens: int) -> Iterator[dict[str, Any]]:
    """A row for each prompt: tokens a second by engine and mode, and ratios of ours."""
    for name, speeds in found["speeds"].items():
        best = max(speeds[key] for key in LOOKUPS)
        yield {
            "prompt": name,
            **speeds,
            "/ its best lookup": speeds[OURS] / best,
            "/ its plain": speeds[OURS] / speeds["plain"],
            "same": f"{found['same'][name]}/{tokens}",
        }
