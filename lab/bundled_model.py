"""Does the bundled model follow the instructions it was trained on? Counted on held-out records.

    python -m lab.bundled_model CORPUS_FOLDER [MODEL] [--each 40] [--samples FILE]

For each family of tasks, records that no training saw (drawn by the recipe's own hash) are asked
greedily in the model's chat template. A reply is scored against its record's answer, and, for what
chance would give, against the answers of all other records of the family: a model that only learnt
the form of the answers scores the same on both. "above chance" counts records whose own score is
higher than that; p is the chance of as many or more by coin tosses (one-sided sign test, ties left
out). --samples writes the replies to 50 prompts, whole, as Markdown.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import edgespec
from lab.harness import MODEL, Asked, Row, Rows, Script, option
from training.data import is_held_out, read_source, record_key, share_of
from training.mix import SOURCES

REPLY_TOKENS = 128
script = Script(__doc__)
STORY_PROMPTS = (
    "Tell me a short story about a dog.",
    "Tell me a story about a brave little mouse.",
    "Write a story about two friends who find a box.",
    "Tell me a story about the sea.",
    "Write a short story about a girl who is afraid of the dark.",
    "Tell me a short story about a kind king.",
    "Tell a story about a cat that lost its way.",
    "Write a story about a boy and his kite.",
    "Tell me a story about a rainy day.",
    "Write a very short story.",
)
CHAT_PROMPTS = (
    "Hello!", "How are you?", "What is your name?", "What do you like to do?",
    "What is your favourite food?", "Tell me a joke.", "Can you help me?", "I am sad today.",
    "What can you do?", "Goodbye!",
)  # fmt: skip


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text.lower())


def shared_words(reply: str, answer: str) -> float:
    """F1 of the words."""
    own, wanted = Counter(words(reply)), Counter(words(answer))
    shared = sum((own & wanted).values())
    return 2 * shared / max(1, sum(own.values()) + sum(wanted.values()))


def same_letters(reply: str, answer: str) -> float:
    """How similar the texts are, letter by letter."""
    return difflib.SequenceMatcher(None, reply, answer, autojunk=False).ratio()


def same_fields(reply: str, answer: str) -> float:
    """The share of a JSON object's fields that are right; 0 for what is no JSON object."""
    try:
        own, wanted = json.loads(reply), json.loads(answer)
    except json.JSONDecodeError:
        return 0.0
    if not isinstance(own, dict) or not isinstance(wanted, dict):
        return 0.0
    right = sum(own.get(key) == value for key, value in wanted.items())
    return float(right / max(1, len(wanted)))


def same_number(reply: str, answer: str) -> float:
    """1 when the last numbers are the same."""
    own, wanted = (re.findall(r"-?\d+(?:\.\d+)?", text) for text in (reply, answer))
    return float(bool(own) and bool(wanted) and own[-1] == wanted[-1])


@dataclass(frozen=True, slots=True)
class Family:
    """Records of one kind, by the corpus file and the ends of their `source`."""

    name: str
    file: str
    kinds: tuple[str, ...]
    score: Callable[[str, str], float]


FAMILIES = (
    Family("continue a story", "sa_tinystories", (), shared_words),
    Family("extract fields as JSON", "synthetic_tasks", ("/extract-json",), same_fields),
    Family("answer from a passage", "synthetic_tasks", ("/doc-qa",), shared_words),
    Family("rewrite", "synthetic_tasks", ("/fix-text", "/grammar", "/edit-text"), same_letters),
    Family(
        "simple arithmetic", "synthetic_tasks", ("/arithmetic", "/word-problem"), same_number
    ),
)  # fmt: skip


def held_out(folder: Path, family: Family, most: int) -> list[dict[str, Any]]:
    """So many held-out records with prompt and response, in an order that depends on hashes."""
    source = next(source for source in SOURCES if source.name == family.file)
    found = [
        record
        for record in read_source(source, folder)
        if record.get("prompt")
        and "\nAssistant: " not in record["prompt"]
        and (not family.kinds or record["source"].endswith(family.kinds))
        and is_held_out(source, record)
    ]
    found.sort(key=lambda record: share_of(record_key(record), "judged"))
    return found[:most]


def replies(engine: edgespec.Engine, records: list[dict[str, Any]]) -> Iterator[str]:
    for record in records:
        with engine.chat() as chat:
            yield chat.send(record["prompt"], max_tokens=REPLY_TOKENS, temperature=0.0).text.strip()


def sign_test(wins: int, losses: int) -> float:
    """The probability of at least so many wins by coin tosses."""
    tosses = wins + losses
    at_least = sum(math.comb(tosses, count) for count in range(wins, tosses + 1))
    return float(at_least / 2**tosses)


def judge(family: Family, records: list[dict[str, Any]], texts: list[str]) -> Row:
    """One line of the table."""
    answers = [record["response"] for record in records]
    own, chance = [], []
    for place, text in enumerate(texts):
        scores = [family.score(text, answer) for answer in answers]
        own.append(scores.pop(place))
        chance.append(statistics.mean(scores))
    wins = sum(a > b for a, b in zip(own, chance, strict=True))
    losses = sum(a < b for a, b in zip(own, chance, strict=True))
    return {
        "family": family.name,
        "records": len(texts),
        "score": statistics.mean(own),
        "chance": statistics.mean(chance),
        "above chance": wins,
        "p": sign_test(wins, losses),
    }


def sample_page(engine: edgespec.Engine, prompts: list[str]) -> str:
    """Prompts and whole replies as Markdown; half of them greedy, half drawn with seed 1."""
    parts = []
    for place, prompt in enumerate(prompts):
        temperature = 0.8 if place % 2 else 0.0
        with engine.chat() as chat:
            reply = chat.send(prompt, max_tokens=REPLY_TOKENS, temperature=temperature, seed=1)
        quoted = "\n".join(f"> {line}".rstrip() for line in reply.text.strip().splitlines())
        drawn = "temperature 0.8, seed 1" if temperature else "greedy"
        parts.append(f"**{place + 1}.** ({drawn}, {reply.finish_reason})\n\n"
                     f"```\n{prompt}\n```\n\n{quoted or '> (nothing)'}\n")  # fmt: skip
    return "\n".join(parts)


@script.command(
    option("corpus", type=Path),
    MODEL,
    option("--each", type=int, default=40, help="records of each family"),
    option("--samples", type=Path, help="write replies to 50 prompts here, as Markdown"),
)
def bundled_model(asked: Asked) -> Rows:
    """Score replies to held-out records."""
    with edgespec.load(asked.model) as engine:
        prompts = [*STORY_PROMPTS, *CHAT_PROMPTS]
        for family in FAMILIES:
            records = held_out(asked.corpus, family, asked.each)
            yield judge(family, records, list(replies(engine, records)))
            prompts += [record["prompt"] for record in records[-6:]]
        if asked.samples:
            asked.samples.write_text(sample_page(engine, prompts), encoding="utf-8")


if __name__ == "__main__":
    script.run()
