"""Can a model judge by a prompt what it could have written itself?

    python -m lab.reflective [MODEL] --corpus FOLDER [--sets NAMES] [--pairs 100]

"Think Before You Accept: Semantic Reflective Verification for Faster Speculative Decoding" has the
target look at drafts a second time, behind a prompt that asks whether they will do, and mixes what
it says there with its logits. So it must be able to tell a right answer from a wrong one that way.
CORPUS holds sets of questions with short answers; the wrong answer to each is another question's.
Figures are how often the right one of the two is preferred (0.5 is chance): by the probability of
Yes against No after a prompt that asks, and by what verification knows anyway, the mean
log-probability of the answer's tokens behind the question.
"""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import edgespec
from edgespec.engine.engine import Engine
from lab.harness import MODEL, Asked, Rows, Script, names, option, read_lines

MOST_CHARACTERS = 900
ASKS = (
    "{question}\n\nAnswer: {answer}\n\nIs this answer right? Reply Yes or No.",
    "Question: {question}\nProposed answer: {answer}\nIs the proposed answer correct?",
)
script = Script(__doc__)


def belief(engine: Engine, question: str, answer: str, ask: str) -> float:
    """How much likelier the model says Yes than No, in nats."""
    ids = engine.encode(ask.format(question=question, answer=answer))
    found = {}
    for word in ("Yes", "No"):
        told = engine.score([*ids, *engine.tokenizer.encode(word, add_bos=False)])
        found[word] = told[-1].logprob
    return found["Yes"] - found["No"]


def likelihood(engine: Engine, question: str, answer: str) -> float:
    """The mean log-probability of an answer's tokens."""
    ids = engine.encode(question)
    told = engine.score([*ids, *engine.tokenizer.encode(answer, add_bos=False)])[len(ids) - 1 :]
    return sum(one.logprob for one in told) / len(told)


@script.command(
    MODEL,
    option("--corpus", type=Path, required=True),
    option("--sets", type=names, default=["fairytaleqa", "wordnet", "gsm8k_train"]),
    option("--pairs", type=int, default=100),
)
def judge(asked: Asked) -> Rows:
    """Right answers beside those of other questions."""
    rng = random.Random(0)
    with edgespec.load(asked.model) as engine:
        for name in asked.sets:
            lines = read_lines(asked.corpus / f"{name}.jsonl.gz")
            fitting = (
                (one["prompt"], one["response"])
                for one in lines
                if 0 < len(one.get("response", "")) < MOST_CHARACTERS - len(one["prompt"])
            )
            pairs = list(islice(fitting, 5 * asked.pairs))
            rng.shuffle(pairs)
            right = [0] * (len(ASKS) + 1)
            num_pairs = 0
            for place in range(0, min(len(pairs), 2 * asked.pairs) - 1, 2):
                (question, answer), (_, wrong) = pairs[place : place + 2]
                if answer == wrong:
                    continue
                num_pairs += 1
                for index, ask in enumerate(ASKS):
                    good, bad = (belief(engine, question, one, ask) for one in (answer, wrong))
                    right[index] += good > bad
                good, bad = (likelihood(engine, question, one) for one in (answer, wrong))
                right[-1] += good > bad
            yield {
                "set": name,
                "pairs": num_pairs,
                **{
                    f"asked, {n}": f"{count / num_pairs:.2f}"
                    for n, count in enumerate(right[:-1], 1)
                },
            } | {"likelihood": f"{right[-1] / num_pairs:.2f}"}


if __name__ == "__main__":
    script.run()
