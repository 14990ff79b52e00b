"""Who keeps the text? Greedy replies with speculation and without, by every engine that runs here.

    python -m lab.kept_texts replies [MODEL] [--prompts 1000] [--texts FILE.jsonl.gz ...] \\
        [--server llama-server] [--python PYTHON] [--out FILE]
    python -m lab.kept_texts rows [MODEL] [--prompts 50] [--python PYTHON]

`replies`: each engine writes every reply without speculation, once more without, and in each of its
ways to draft. A reply is changed when a token of it is not that of the first. Prompts are drawn by
a fixed seed from the project's own and from files of questions; replies go on past their ends, so
that all are of one length. `apart` is how far apart the logits of the two tokens are where a
changed reply first differs, by our own pass.

`rows`: the same tokens' logits by passes over one token and by a pass over eight.

`--server` is llama.cpp's; `--python` another Python, with transformers, openvino-genai and
onnxruntime-genai, or what of them there is. With `--out` what is finished is kept, and a run that
was stopped goes on where it was. Exit code 1: our own text changed.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import edgespec
from edgespec.engine.engine import Engine
from edgespec.system.child_process import PeerError
from lab.foreign_writers import ENGINES, PLAIN, Found
from lab.harness import (
    MODEL,
    Asked,
    Records,
    Rows,
    Script,
    Spread,
    option,
    read_lines,
    tokens,
)
from lab.kept_writers import CONTEXT, OURS, ROW_WRITERS, SERVER, WRITERS, Ids
from tests.support.equality import prompts
from tests.support.passes import Passes

AGAIN = "plain, again"
LONGEST = 400
"""Tokens of a prompt; of a longer one the middle is left out."""
COMMON = (
    MODEL,
    option("--engines", default="", help="by commas: names, or what is in them"),
    option("--texts", type=Path, nargs="+", default=[], help="questions, a JSON object a line"),
    option("--draft-model", default="edgespec-draft"),
    option("--server", default=shutil.which("llama-server")),
    option("--python", help="where other engines are installed"),
    option("--folder", default="build/kept", help="for what other engines make of the models"),
    option("--threads", type=int, default=1),
    tokens(48),
)
script = Script(__doc__)


@script.command(
    *COMMON,
    option("--prompts", type=int, default=1000),
    option("--out", type=Path, help="keep what is finished here, and go on from it"),
)
def replies(asked: Asked) -> Rows:
    """How many replies each engine's speculation changes."""
    records, ours = Records(asked.out), 0
    with edgespec.load(asked.model, threads=asked.threads, context=CONTEXT) as engine:
        texts = list(_prompts(engine, asked))
        for name in filter(partial(_is_here, asked), WRITERS):
            plain: list[Found] = []
            for mode in (PLAIN, AGAIN, *WRITERS[name][1]):
                try:
                    found = list(_written(name, mode, texts, asked, records))
                except PeerError as error:
                    script.note(f"{name}, {mode}: {error}")
                    continue
                plain = plain or found
                row = _compared(engine, texts, plain, found)
                ours += row["changed"] * (name == OURS)
                yield {"engine": f"{name}: {mode}"} | row
    script.check(ours == 0, f"{ours} replies of ours changed")


@script.command(*COMMON, option("--prompts", type=int, default=50))
def rows(asked: Asked) -> Rows:
    """Logits of a token alone and in a pass over eight."""
    with edgespec.load(asked.model, threads=asked.threads, context=CONTEXT) as engine:
        texts = list(_prompts(engine, asked))
    for name in filter(partial(_is_here, asked), ROW_WRITERS):
        found = list(ROW_WRITERS[name](texts, asked))
        yield {
            "engine": name,
            "rows": sum(one["rows"] for one in found),
            "with other logits": sum(one["changed"] for one in found),
            "with another favourite": sum(one["favourites"] for one in found),
            "greatest difference": max(one["greatest"] for one in found),
            "standard deviation": statistics.median(one["deviation"] for one in found),
        }


def _prompts(engine: Engine, asked: Asked) -> Iterator[Ids]:
    """Drawn by a fixed seed."""
    pool = list(prompts())
    for path in asked.texts:
        for line in read_lines(path):
            pool += line.get("turns", [])[:1] or [line.get("prompt") or line["question"]]
    pool = list(dict.fromkeys(pool))
    random.Random(1).shuffle(pool)
    for text in pool[: asked.prompts]:
        ids = engine.encode(text)
        half = LONGEST // 2
        yield ids if len(ids) <= LONGEST else ids[:half] + ids[-half:]


def _is_here(asked: Asked, name: str) -> bool:
    """Whether an engine was asked for and is here."""
    parts = asked.engines.split(",")
    if not any(part == name or (part not in WRITERS and part in name) for part in parts):
        return False
    if name == SERVER and not asked.server:
        script.note(f"{name}: not found; name it with --server")
    elif name in ENGINES and not asked.python:
        script.note(f"{name}: left out; name a Python that has it with --python")
    else:
        return True
    return False


def _written(
    name: str, mode: str, texts: Sequence[Ids], asked: Asked, records: Records
) -> Iterator[Found]:
    """Every reply of one engine in one mode; it writes those that are not known."""
    keys = [(name, mode, asked.model, asked.tokens, _digest(ids)) for ids in texts]
    missing = {key: ids for ids, key in zip(texts, keys, strict=True) if key not in records}
    writer, way = WRITERS[name][0], PLAIN if mode == AGAIN else mode
    coming = writer(way, list(missing.values()), asked) if missing else iter(())
    for key in keys:
        yield records.get(key, partial(next, coming))
    next(coming, None)  # so that it comes to its end


def _digest(ids: Ids) -> str:
    return sha256(json.dumps(ids).encode()).hexdigest()[:16]


def _compared(
    engine: Engine, texts: Sequence[Ids], plain: Sequence[Found], found: Sequence[Found]
) -> dict[str, Any]:
    places, apart = list[int](), list[float]()
    for ids, one, other in zip(texts, plain, found, strict=True):
        place = _first_other(one["tokens"], other["tokens"])
        if place is not None:
            places.append(place)
            apart.append(_apart(engine, ids, one["tokens"], other["tokens"], place))
    return {
        "replies": len(found),
        "changed": len(places),
        "accepted drafts": f"{_part(found):.0%}",
        "first at": statistics.median(places) if places else None,
        "apart": Spread.of(apart) if apart else None,
    }


def _part(found: Sequence[Found]) -> float:
    """Of all tokens."""
    accepted: int = sum(one["accepted"] for one in found)
    return accepted / sum(len(one["tokens"]) for one in found)


def _first_other(one: Ids, other: Ids) -> int | None:
    """Where two replies first differ."""
    pairs = enumerate(zip(one, other, strict=True))
    return next((place for place, (left, right) in pairs if left != right), None)


def _apart(engine: Engine, ids: Ids, one: Ids, other: Ids, place: int) -> float:
    """The distance of two tokens' logits behind what both replies begin with."""
    passes = Passes(engine.scheduler.target)
    passes.truncate()
    text = ids + one[:place]
    passes.prefill(text[:-1])
    logits = passes.score(text[-1:])[-1]
    passes.truncate()
    return abs(float(logits[one[place]] - logits[other[place]]))


if __name__ == "__main__":
    script.run()
