"""Answers questions from a folder of texts: the passage nearest in meaning goes before a question.

    python examples/rag_folder.py "How is memory planned?" [FOLDER]

The vector of each passage is kept in FOLDER/.vectors.npz. A passage that was used once is a saved
prefix from then on: its keys and values come from a file, so that only the question is computed.
"""

import hashlib
import os
import sys
from pathlib import Path

import numpy as np

import edgespec

DOCS = Path(__file__).parent / "data" / "garden"
MOST_CHARACTERS = 1200
"""Of a passage; small enough for the context of a small model."""


def passages(folder: Path) -> list[str]:
    """The paragraphs of all texts, those of one file joined as far as they fit."""
    found: list[str] = []
    for path in sorted([*folder.glob("*.md"), *folder.glob("*.txt")]):
        part = ""
        for paragraph in path.read_text(encoding="utf-8").split("\n\n"):
            if part and len(part) + len(paragraph) > MOST_CHARACTERS:
                found.append(part)
                part = ""
            part = f"{part}\n\n{paragraph}".strip()[:MOST_CHARACTERS]
        found.append(part)
    return list(filter(None, found))


def vectors(engine: edgespec.Engine, texts: list[str], kept: Path) -> dict[str, np.ndarray]:
    """A vector [dim] of length one for each text by its name; only new texts are computed."""
    known = dict(np.load(kept)) if kept.exists() else {}
    found = {name: known[name] if name in known else engine.embed(text)
             for name, text in ((name_of(text), text) for text in texts)}  # fmt: skip
    np.savez(kept, **found)
    return found


def name_of(text: str) -> str:
    return f"passage-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def main(question: str = "When are beans sown?", folder: str | Path = DOCS) -> None:
    with edgespec.load(os.environ.get("EDGESPEC_MODEL")) as engine:
        texts = {name_of(text): text for text in passages(Path(folder))}
        found = vectors(engine, list(texts.values()), Path(folder) / ".vectors.npz")
        asked = engine.embed(question)
        best = max(texts, key=lambda name: float(found[name] @ asked))
        try:
            stream = engine.stream(question, prefix=best, max_tokens=100)
        except edgespec.KvFileError:  # this passage is used for the first time
            engine.save_prefix(best, f"Answer from this text.\n\n{texts[best]}")
            stream = engine.stream(question, prefix=best, max_tokens=100)
        print(f"From: {texts[best][:70]}...\n")
        for piece in stream:
            print(piece, end="", flush=True)
        stats = stream.reply.stats
        print(f"\n\n{stats.cached_tokens} of {stats.prompt_tokens} prompt tokens came from a file")


if __name__ == "__main__":
    main(*sys.argv[1:])
