"""Many samples of one prompt, written in the same passes, vote on the answer.

    python examples/vote.py ["Is a whale a fish? Answer yes or no."]

It ends as soon as those still being written cannot change the result. Source: "Self-Consistency
Improves Chain of Thought Reasoning in Language Models".
"""

import os
import re
import sys

import edgespec

QUESTION = "Is the sun hot or cold? Say one word."


def answer(text: str) -> str | None:
    """What a reply votes for: its first word, or nothing."""
    words = re.findall(r"[a-z]+", text.lower())
    return words[0] if words else None


def main(question: str = QUESTION, num_samples: str = "32") -> None:
    with edgespec.load(os.environ.get("EDGESPEC_MODEL"), sequences=8, context=256) as engine:
        vote = engine.majority(
            question, int(num_samples), key=answer, max_tokens=40, temperature=0.9, seed=1
        )
    for word, count in vote.votes.items():
        print(f"{count:3} {word}")
    unneeded = sum(reply.finish_reason == "cancelled" for reply in vote.replies)
    print(f"{vote.answer!r} won; {unneeded} of {num_samples} replies were not needed")


if __name__ == "__main__":
    main(*sys.argv[1:])
