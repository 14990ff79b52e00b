"""What is measured of one published file, a process each: plain data in, plain data out."""

from __future__ import annotations

import math
import statistics
from argparse import Namespace
from pathlib import Path
from typing import Any

from edgespec.models.open_model import open_model
from edgespec.tools.bench.spread import Spread
from lab import peers, speculation
from lab.harness import ROOT
from lab.peer_report import DECODE_TOKENS, PREFILL_TOKENS
from tests.support import budget_runs, llama_peer, parity
from tests.support import perplexity as windows

Found = dict[str, Any]
BUDGET_STEP = 1.1
"""Times the smallest budget that there is a plan for."""


def facts(path: str, asked: Found) -> Found:
    """What the file says of itself."""
    with open_model(path, any_engine=True) as file:
        return {
            "architecture": file.spec.architecture,
            "types": parity.matrix_types(file),
            "parameters": sum(math.prod(one.shape) for one in file.tensors.values()),
            "refusal": file.spec.refusal,
        }


def greedy(path: str, asked: Found) -> Found:
    """Greedy choices token by token, and logits, beside llama.cpp's."""
    found = parity.compare(
        Path(path),
        num_prompts=asked["prompts"],
        num_tokens=asked["tokens"],
        threads=asked["threads"],
        exact=asked["exact"],
    )
    return {
        "tokens": found.num_tokens,
        "equal": found.num_equal,
        "near_ties": found.num_ties,
        "different": found.num_different,
        "worst_gap": found.worst_gap,
        "worst_cosine": found.worst_cosine,
        "mean_cosine": found.mean(found.cosine_sum),
        "ours_to_exact": found.mean(found.ours_to_exact_sum),
        "peer_to_exact": found.mean(found.peer_to_exact_sum),
        "differences": list(found.differences),
    }


def perplexity(path: str, asked: Found) -> Found:
    """Of the same tokens, beside llama.cpp's."""
    files = [Path(asked["text"])] if asked["text"] else sorted((ROOT / "docs").glob("*.md"))
    text = [file.read_text("utf-8") for file in files]
    found = windows.compare(Path(path), text, asked["text_tokens"], threads=asked["threads"])
    return {
        "tokens": int(found.ours.size),
        "ours": math.exp(found.ours.mean()),
        "peers": math.exp(found.peers.mean()),
        "difference": found.difference,
        "noise": found.noise,
    }


def questions(path: str, asked: Found) -> Found:
    """Spec-Bench, speculation beside plain decoding and llama.cpp; a row for each category."""
    if not asked["questions"]:
        raise SystemExit("no questions were given; name Spec-Bench's file with --questions")
    settings = Namespace(
        questions=Path(asked["questions"]),
        model=path,
        per_category=asked["per_category"],
        context=asked["context"],
        tokens=asked["tokens"],
        rounds=asked["rounds"],
        threads=asked["threads"],
        drafters="auto",
        temperatures=[0.0],
        draft_model=None,
        no_peer=not llama_peer.installed(),
        server=None,
        minutes=None,
        out=None,
    )
    rows = {row.pop("category"): row for row in map(_plain, speculation.questions(settings))}
    return rows.pop("all") | {"categories": rows}


def _plain(row: Found) -> Found:
    return {
        name: value.as_dict("median") if isinstance(value, Spread) else value
        for name, value in row.items()
    }


def budget(path: str, asked: Found) -> Found:
    """A chat that outgrows its context, in little more than the smallest budget."""
    runs = budget_runs.measure(
        path, "auto", [BUDGET_STEP], asked["context"], cold=False, cgroup=False
    )
    found: Found = next(iter(runs))
    if "error" in found:
        raise SystemExit(found["error"])
    return found


def speed(path: str, asked: Found) -> Found:
    """Decoding, prefill and T(n) of both engines, in turns; medians."""
    past = asked["past"]
    found = peers.compare(Path(path), asked["threads"], [past], asked["rounds"])
    seconds = found["contexts"][past]["seconds"] | found["prefill"]["seconds"]
    sides = {"ours": "edgespec", "peers": "llama.cpp"}
    return {"isa": found["isa"], "llama_build": found["llama_build"]} | {
        name: _speeds({what: statistics.median(of[side]) for what, of in seconds.items()})
        for name, side in sides.items()
    }


def _speeds(seconds: dict[str, float]) -> Found:
    times = {name: value for name, value in seconds.items() if name.startswith("T(")}
    return {
        "decode_tokens_per_s": DECODE_TOKENS / seconds[f"decode {DECODE_TOKENS}"],
        "prefill_tokens_per_s": PREFILL_TOKENS / seconds[f"prefill {PREFILL_TOKENS}"],
        "pass_s": times,
        "T(8)/T(1)": times["T(8)"] / times["T(1)"],
    }
