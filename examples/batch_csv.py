"""Fills a column of a CSV file: a prompt for each row, eight replies in each pass.

python examples/batch_csv.py                       # examples/data/reviews.csv
python examples/batch_csv.py IN.csv OUT.csv "Is this review happy or sad? {review}"
"""

import csv
import os
import sys
from pathlib import Path

import edgespec

REVIEWS = Path(__file__).parent / "data" / "reviews.csv"
PROMPT = "Is this review happy or sad? {review}"


def main(source: str = str(REVIEWS), out: str = "replies.csv", prompt: str = PROMPT) -> None:
    with open(source, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    prompts = [prompt.format_map(row) for row in rows]
    with edgespec.load(os.environ.get("EDGESPEC_MODEL"), sequences=8, context=512) as engine:
        stream = engine.stream_batch(prompts, max_tokens=40, temperature=0, stop="\n")
        for done, _ in enumerate(stream, 1):
            print(f"\r{done} pieces, {len(stream.ended)} of {len(rows)} replies", end="")
        print()
    with open(out, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*rows[0], "reply", "finish_reason"])
        writer.writeheader()
        for row, reply in zip(rows, stream.replies, strict=True):
            writer.writerow(row | {"reply": reply.text, "finish_reason": reply.finish_reason})
    print(f"wrote {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
