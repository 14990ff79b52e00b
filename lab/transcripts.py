"""Makes transcripts for `edgespec replay`: what the bundled model writes, and reference texts.

    python -m lab.transcripts OUT --bench FOLDER --corpus FOLDER [--model MODEL]
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

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import edgespec
from edgespec.errors import ContextOverflowError
from lab.harness import Asked, Rows, Script, names, option, read_lines

Line = dict[str, Any]
SAMPLED = {"model-greedy": 0.0, "model-0.8": 0.8}


script = Script(__doc__)


def replies(asked: Asked, temperature: float) -> Iterator[Line]:
    """The model's replies to the first prompts of each category, until `--tokens`."""
    wanted: Counter[str] = Counter()
    with edgespec.load(asked.model) as engine:
        for question in read_lines(asked.bench / "spec_bench.jsonl.gz"):
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


def gsm8k(asked: Asked) -> Iterator[Line]:
    for record in read_lines(asked.bench / "gsm8k_test_200.jsonl.gz"):
        yield {"prompt": record["question"], "output": record["answer"]}


def humaneval(asked: Asked) -> Iterator[Line]:
    for record in read_lines(asked.bench / "humaneval.jsonl.gz"):
        yield {"prompt": record["prompt"], "output": record["canonical_solution"]}


def rename(asked: Asked) -> Iterator[Line]:
    for record in read_lines(asked.bench / "humaneval.jsonl.gz"):
        old = record["entry_point"]
        program = record["prompt"] + record["canonical_solution"]
        new = f"compute_{old}"
        yield {
            "prompt": f"Rename the function {old} to {new} and print the program.\n\n{program}",
            "output": re.sub(rf"\b{old}\b", new, program),
        }


def answers(name: str, asked: Asked, least: int = 0) -> Iterator[Line]:
    for record in read_lines(asked.corpus / f"{name}.jsonl.gz"):
        if record["prompt"] and len(record["response"]) >= least:
            yield {"prompt": record["prompt"], "output": record["response"]}


def dialogues(asked: Asked) -> Iterator[Line]:
    for record in read_lines(asked.corpus / "persona_chat.jsonl.gz"):
        before, turn, last = record.get("text", "").rpartition("\nAssistant:")
        if len(before) > 200:
            yield {"prompt": before + turn, "output": last}


def proofread(asked: Asked) -> Iterator[Line]:
    """Two letters of every fifteenth long word were swapped."""
    rng = random.Random(3)
    for record in read_lines(asked.corpus / "fairytaleqa.jsonl.gz"):
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


def lines_of(name: str, asked: Asked) -> list[Line]:
    """A set: all the model's replies, or so many of the texts, in the order of the source."""
    if name in SAMPLED:
        return list(replies(asked, SAMPLED[name]))
    found = list(SETS[name](asked))
    chosen = sorted(random.Random(1).sample(range(len(found)), min(asked.texts, len(found))))
    return [found[place] for place in chosen]


@script.command(
    option("out", type=Path),
    option("--bench", type=Path, required=True),
    option("--corpus", type=Path, required=True),
    option("--model"),
    option("--prompts", type=int, default=10),
    option("--tokens", type=int, default=160),
    option("--texts", type=int, default=100),
    option("--sets", type=names, default=[*SAMPLED, *SETS]),
)
def transcripts(asked: Asked) -> Rows:
    """Write the sets."""
    asked.out.mkdir(parents=True, exist_ok=True)
    for name in asked.sets:
        lines = lines_of(name, asked)
        with open(asked.out / f"{name}.jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        yield {"set": name, "transcripts": len(lines)}


if __name__ == "__main__":
    script.run()
