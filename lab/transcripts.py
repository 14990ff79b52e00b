"""Makes transcripts for `edgespec replay`: what the bundled model writes, and reference texts.

    python benchmarks/transcripts.py OUT --bench FOLDER --corpus FOLDER [--model MODEL]
        [--prompts 10] [--tokens 160] [--texts 100] [--sets NAMES]

BENCH holds spec_bench.jsonl.gz, humaneval.jsonl.gz and gsm8k_test_200.jsonl.gz as their authors
publish them, CORPUS lines of {"prompt", "response"} or {"text"} in gzip. OUT gets one file for each
set, lines of {"prompt", "output"}:

    model-greedy, model-0.8   replies to the first prompts of each Spec-Bench category, as token ids
    gsm8k, humaneval          the references: worked answers, function bodies
    functions, prose          whole functions for their descriptions; long answers in prose
    dialogues                 the last turn of a talk, given the turns before
    rename                    HumanEval programs handed back with a function renamed
    proofread                 passages handed back with their misspellings corrected

The two last are made here, by rule. Everything is drawn with a fixed seed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
from edgespec.errors import ContextOverflowError

Line = dict[str, Any]
SAMPLED = {"model-greedy": 0.0, "model-0.8": 0.8}


def records(path: Path) -> Iterator[Line]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def replies(asked: argparse.Namespace, temperature: float) -> Iterator[Line]:
    """The model's replies to the first prompts of each category, until `--tokens`."""
    wanted: Counter[str] = Counter()
    with edgespec.load(asked.model) as engine:
        for question in records(asked.bench / "spec_bench.jsonl.gz"):
            category = question["category"]
            if wanted[category] == asked.prompts:
                continue
            ids = engine.encode(question["turns"][0])
            try:
                reply = engine.generate(
                    ids, max_tokens=asked.tokens, temperature=temperature, seed=wanted[category]
                )
            except ContextOverflowError:
                continue  # the next prompt of the category takes its place
            wanted[category] += 1
            yield {"prompt": ids, "output": reply.token_ids, "category": category}


def gsm8k(asked: argparse.Namespace) -> Iterator[Line]:
    for record in records(asked.bench / "gsm8k_test_200.jsonl.gz"):
        yield {"prompt": record["question"], "output": record["answer"]}


def humaneval(asked: argparse.Namespace) -> Iterator[Line]:
    for record in records(asked.bench / "humaneval.jsonl.gz"):
        yield {"prompt": record["prompt"], "output": record["canonical_solution"]}


def rename(asked: argparse.Namespace) -> Iterator[Line]:
    for record in records(asked.bench / "humaneval.jsonl.gz"):
        old = record["entry_point"]
        program = record["prompt"] + record["canonical_solution"]
        new = f"compute_{old}"
        yield {
            "prompt": f"Rename the function {old} to {new} and print the program.\n\n{program}",
            "output": re.sub(rf"\b{old}\b", new, program),
        }


def answers(name: str, asked: argparse.Namespace, least: int = 0) -> Iterator[Line]:
    for record in records(asked.corpus / f"{name}.jsonl.gz"):
        if record["prompt"] and len(record["response"]) >= least:
            yield {"prompt": record["prompt"], "output": record["response"]}


def dialogues(asked: argparse.Namespace) -> Iterator[Line]:
    for record in records(asked.corpus / "persona_chat.jsonl.gz"):
        before, turn, last = record.get("text", "").rpartition("\nAssistant:")
        if len(before) > 200:
            yield {"prompt": before + turn, "output": last}


def proofread(asked: argparse.Namespace) -> Iterator[Line]:
    """Two letters of every fifteenth long word were swapped."""
    rng = random.Random(3)
    for record in records(asked.corpus / "fairytaleqa.jsonl.gz"):
        text = record.get("text", "")
        if not 600 <= len(text) <= 2000:
            continue
        words = text.split(" ")
        for place, word in enumerate(words):
            if len(word) > 4 and rng.random() < 1 / 15:
                words[place] = word[:2] + word[3] + word[2] + word[4:]
        wrong = " ".join(words)
        yield {"prompt": f"Correct the spelling mistakes:\n\n{wrong}\n\nCorrected:", "output": text}


SETS = {
    "gsm8k": gsm8k,
    "humaneval": humaneval,
    "rename": rename,
    "functions": lambda asked: answers("python_functions", asked),
    "prose": lambda asked: answers("gpteacher", asked, least=400),
    "dialogues": dialogues,
    "proofread": proofread,
}


def lines_of(name: str, asked: argparse.Namespace) -> list[Line]:
    """A set: all the model's replies, or so many of the texts, in the order of the source."""
    if name in SAMPLED:
        return list(replies(asked, SAMPLED[name]))
    found = list(SETS[name](asked))
    chosen = sorted(random.Random(1).sample(range(len(found)), min(asked.texts, len(found))))
    return [found[place] for place in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--texts", type=int, default=100)
    parser.add_argument("--sets", default=",".join([*SAMPLED, *SETS]))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for name in asked.sets.split(","):
        lines = lines_of(name, asked)
        with open(asked.out / f"{name}.jsonl", "w", encoding="utf-8") as file:
            for line in lines:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        print(f"{name}: {len(lines)} transcripts")


if __name__ == "__main__":
    main()
