"""Spec-Bench's categories: replies with speculation, without, and by llama.cpp with its prompt
lookup and without, in turns.

    python benchmarks/spec_bench.py QUESTIONS.jsonl[.gz] [MODEL] [--per-category 4] [--tokens 96]

Greedy, past the reply's end, the first turn of each question in the model's chat template; of a
question that does not fit the context the middle is left out. Speeds are those of decoding: the
prompt's time is not in them. llama.cpp's figures need llama-cpp-python. Results go to --out as they
come, and a run that was stopped goes on where it was. Ratios are medians over a category's
questions, each from medians of its rounds. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
from benchmarks.forgetting import forget
from benchmarks.lookup_child import LlamaWriter
from edgespec.engine.engine import Engine
from edgespec.system.child_process import PeerError
from edgespec.tools.bench.machine import Machine, package_version
from edgespec.tools.bench.turns import take_turns

OURS, PLAIN, PEER, LOOKUP = "speculation", "plain", "llama.cpp", "llama.cpp, prompt lookup"


def questions(path: Path, per_category: int) -> Iterator[tuple[int, str, str]]:
    """Number, category and text of the first questions of each category."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        seen: dict[str, int] = {}
        for line in lines:
            record = json.loads(line)
            category = record["category"]
            seen[category] = seen.get(category, 0) + 1
            if seen[category] <= per_category:
                yield record["question_id"], category, record["turns"][0]


def prompt_ids(engine: Engine, text: str, most: int) -> list[int]:
    """At most so many tokens of a prompt; the middle of a longer text is left out."""
    ids = engine.encode(text)
    while len(ids) > most:
        keep = len(text) * most // len(ids) * 9 // 10
        text = f"{text[: keep // 2]} ... {text[-(keep // 2) :]}"
        ids = engine.encode(text)
    return ids


def ask(
    engine: Engine,
    peers: dict[str, LlamaWriter],
    ids: list[int],
    tokens: int,
    rounds: int,
) -> dict[str, Any]:
    """Tokens a second by each way of writing, and tokens per pass of ours."""
    per_step = [1.0]

    def ours(speculation: bool) -> list[float]:
        forget(engine)
        reply = engine.generate(
            ids, max_tokens=tokens, temperature=0.0, ignore_eos=True, speculation=speculation
        )
        if speculation:
            per_step.append(reply.stats.tokens_per_step)
        return [reply.stats.tokens_per_second]

    members: dict[str, Callable[[], list[float]]] = {
        OURS: partial(ours, True),
        PLAIN: partial(ours, False),
    }
    for name, peer in peers.items():
        members[name] = partial(_one, peer, ids, tokens)
    found, failed = take_turns({"all": members}, rounds)
    for name, reason in failed.items():
        raise PeerError(f"{name}: {reason}")
    speeds = {name: statistics.median(values) for name, values in found["all"].items()}
    return {"speeds": speeds, "tokens_per_step": statistics.median(per_step[1:])}


def _one(peer: LlamaWriter, ids: list[int], tokens: int) -> list[float]:
    return [peer.write(ids, tokens)]


def table(records: list[dict[str, Any]]) -> str:
    """A line for each category, and one for all questions."""
    names = [name for name in (PLAIN, PEER, LOOKUP) if name in records[0]["speeds"]]
    head = "".join(f"{'vs ' + name:>30}" for name in names)
    lines = [f"{'category':<16}{'questions':>10}{'tokens/s':>10}{'tokens/step':>13}{head}"]
    categories = list(dict.fromkeys(record["category"] for record in records))
    for category in [*categories, "all"]:
        rows = [record for record in records if category in ("all", record["category"])]
        speed = statistics.median(row["speeds"][OURS] for row in rows)
        steps = statistics.mean(row["tokens_per_step"] for row in rows)
        cells = ""
        for name in names:
            ratios = [row["speeds"][OURS] / row["speeds"][name] for row in rows]
            spread = f"({min(ratios):.2f}-{max(ratios):.2f})"
            cells += f"{statistics.median(ratios):>16.2f}x {spread:<12}"
        lines.append(f"{category:<16}{len(rows):>10}{speed:>10.0f}{steps:>13.2f}{cells}".rstrip())
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("questions", type=Path)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--per-category", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--drafters", default="auto")
    parser.add_argument("--no-peer", action="store_true", help="leave llama.cpp out")
    parser.add_argument("--out", type=Path, default=Path("spec_bench.jsonl"))
    options = parser.parse_args()
    records: dict[int, dict[str, Any]] = {}
    if options.out.exists():
        lines = map(json.loads, options.out.read_text("utf-8").splitlines())
        records = {record["question"]: record for record in lines}
    with ExitStack() as stack:
        engine = stack.enter_context(
            edgespec.load(options.model, threads=options.threads, drafters=options.drafters)
        )
        context = engine.plan.context_length
        peers = {}
        if not options.no_peer:
            for name, lookup in ((PEER, False), (LOOKUP, True)):
                writer = LlamaWriter(engine.file.path, context, options.threads, lookup=lookup)
                peers[name] = stack.enter_context(writer)
        machine = Machine.here()
        print(f"{machine.processor}, {options.threads} threads, {engine.file.path.name}")
        print(f"llama-cpp-python {package_version('llama-cpp-python')}, {options.rounds} rounds")
        with options.out.open("a", encoding="utf-8") as out:
            for number, category, text in questions(options.questions, options.per_category):
                if number in records:
                    continue
                ids = prompt_ids(engine, text, context - options.tokens - 1)
                record = ask(engine, peers, ids, options.tokens, options.rounds)
                records[number] = {"question": number, "category": category, **record}
                out.write(json.dumps(records[number]) + "\n")
                out.flush()
    print(table(list(records.values())))


if __name__ == "__main__":
    main()
