"""What keys and values cost, and what storing them in fewer bits changes.

    python -m lab.kv contexts MODEL... [--contexts 256,1024,4096,8000] [--nodes 1,4,8]
    python -m lab.kv logits [MODEL...] --text FILE [--tokens 4000] [--exact]
    python -m lab.kv replies [MODEL] (--text FILE | --questions FILE.jsonl[.gz])

`contexts`: T(n) by tokens in the cache, with each type of keys and values. `logits`: the same text
through all caches: perplexity, cosines, favourites, divergence. `replies`: how many greedy replies
int8 and q4 leave as they are with f16.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import edgespec
from edgespec.memory.plan.kv_sizes import KV_BLOCK, kv_bytes
from edgespec.memory.plan.settings import KV_TYPES
from edgespec.models.file import ModelFile
from edgespec.models.open_model import open_model
from edgespec.models.registry import resolve
from lab.harness import (
    MODEL,
    MODELS,
    Asked,
    Row,
    Rows,
    Script,
    Spread,
    alternate,
    numbers,
    option,
    read_lines,
    rounds,
)
from tests.support.parity import matrix_types, open_passes
from tests.support.passes import Passes

WINDOW_NODES = 64
SIDES = {kind: ("native", kind) for kind in KV_TYPES} | {"exact": ("reference", "f32")}
"""Backend and KV type by the names they have in the table."""
PIECE, STRIDE = 300, 1200
"""Characters of a prompt from a text, and from one prompt's start to the next one's."""
THREADS = option("--threads", type=int, default=2)
Logits = NDArray[np.float64]
script = Script(__doc__)


@script.command(
    MODELS,
    option("--contexts", type=numbers, default=[256, 1024, 4096, 8000]),
    option("--nodes", type=numbers, default=[1, 4, 8]),
    rounds(11),
    THREADS,
)
def contexts(asked: Asked) -> Rows:
    """T(n) by tokens in the cache and KV type, in milliseconds.

    All caches are open at once and are filled further and further; at each context they take turns.
    GB/s is what a pass reads more than at the first context, by the time it takes more.
    """
    steps = sorted(asked.contexts)
    for path in asked.models:
        began: dict[str, tuple[float, float]] = {}
        with ExitStack() as stack:
            file = stack.enter_context(open_model(path))
            caches = {
                kind: stack.enter_context(
                    open_passes(
                        file,
                        "native",
                        steps[-1] + max(asked.nodes),
                        asked.threads,
                        max(asked.nodes),
                        kind,
                    )
                )
                for kind in KV_TYPES
            }
            for context in steps:
                for passes in caches.values():
                    more = np.arange(passes.length, context, dtype=np.int32)
                    passes.prefill(more * 37 % 1000 + 10)
                members = {
                    f"{kind} {n}": partial(_pass_s, passes, n)
                    for n in asked.nodes
                    for kind, passes in caches.items()
                }
                found = alternate(members, asked.rounds)
                for kind in KV_TYPES:
                    gigabytes = kv_bytes(file.spec, KV_BLOCK, kind) / KV_BLOCK * context / 1e9
                    row: Row = {"model": path.name, "context": context, "KV": kind}
                    row["MB"] = round(1e3 * gigabytes, 1)
                    for n in asked.nodes:
                        seconds = found[f"{kind} {n}"]
                        middle = statistics.median(seconds)
                        before, at_first = began.setdefault(f"{kind} {n}", (gigabytes, middle))
                        more_s = middle - at_first
                        row[f"T({n}), ms"] = Spread.of(1e3 * one for one in seconds)
                        row[f"{n}: GB/s"] = (gigabytes - before) / more_s if more_s > 0 else None
                    yield row


def _pass_s(passes: Passes, n: int) -> float:
    start = time.perf_counter()
    passes.score(list(range(10, 10 + n)))
    return time.perf_counter() - start


@script.command(
    option("models", nargs="*", type=Path, metavar="MODEL"),
    option("--text", type=Path, required=True),
    option("--tokens", type=int, default=4000),
    option("--window", type=int, default=1024),
    option("--exact", action="store_true", help="also against exact arithmetic, slow"),
    THREADS,
)
def logits(asked: Asked) -> Rows:
    """The second of each pair beside the first, over all tokens of windows that start afresh."""
    for path in asked.models or [resolve()]:
        with ExitStack() as stack:
            file = stack.enter_context(open_model(path))
            text = asked.text.read_text("utf-8")
            parts = _windows(file, text, asked.window, asked.tokens)
            sides = {
                side: stack.enter_context(
                    open_passes(file, backend, len(parts[0]), asked.threads, WINDOW_NODES, kind)
                )
                for side, (backend, kind) in SIDES.items()
                if backend == "native" or asked.exact
            }
            first, *others = KV_TYPES
            pairs = [(first, kind) for kind in others]
            pairs += [("exact", kind) for kind in KV_TYPES if asked.exact]
            for left, right in pairs:
                row = {"model": f"{path.name} ({matrix_types(file)})", "pair": f"{left}, {right}"}
                yield row | _compare(sides[left], sides[right], parts)


def _windows(file: ModelFile, text: str, length: int, num_tokens: int) -> list[list[int]]:
    ids = file.tokenizer.encode(text, add_bos=False)[:num_tokens]
    length = min(length, file.spec.context_length)
    if len(ids) < length:
        raise SystemExit(f"the text has {len(ids)} tokens; a window needs {length}")
    return [ids[first : first + length] for first in range(0, len(ids) - length + 1, length)]


def _compare(left: Passes, right: Passes, parts: Sequence[Sequence[int]]) -> Row:
    rows = []
    for window in parts:
        both = zip(_score(left, window), _score(right, window), strict=True)
        for (one, follow), (two, _) in both:
            shares, others = _log_shares(one), _log_shares(two)
            place = np.arange(len(follow))
            lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
            columns = (
                -shares[place, follow],
                -others[place, follow],
                (one * two).sum(axis=1) / lengths,
                one.argmax(axis=1) == two.argmax(axis=1),
                (np.exp(shares) * (shares - others)).sum(axis=1),
            )
            rows.append(np.stack(columns, axis=1))
    table = np.concatenate(rows)
    first, second, cosine, same, apart = table.mean(axis=0).tolist()
    return {
        "tokens": len(table),
        "first": math.exp(first),
        "second": math.exp(second),
        "change": f"{math.expm1(second - first):+.4%}",
        "mean cosine": f"{cosine:.7f}",
        "worst": f"{table[:, 2].min():.7f}",
        "same favourite": f"{same:.2%}",
        "divergence, nats": apart,
    }


def _score(passes: Passes, window: Sequence[int]) -> Iterator[tuple[Logits, Sequence[int]]]:
    """Logits of a window in parts, and the tokens that follow."""
    passes.truncate()
    for first in range(0, len(window) - 1, WINDOW_NODES):
        part = window[first : min(first + WINDOW_NODES, len(window) - 1)]
        found = passes.score(part).astype(np.float64)
        passes.commit(len(part))
        yield found, window[first + 1 : first + 1 + len(part)]


def _log_shares(values: Logits) -> Logits:
    """Logarithms of the softmax of each row."""
    shifted = values - values.max(axis=1, keepdims=True)
    result: Logits = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


@script.command(
    MODEL,
    option("--text", type=Path, help="pieces of it are continued past every end"),
    option("--questions", type=Path, help="Spec-Bench's: the shortest first turns are answered"),
    option("--replies", type=int, default=100),
    option("--tokens", type=int, default=200),
)
def replies(asked: Asked) -> Rows:
    """Greedy replies that are the same in every token; "first": the median place that differs."""
    raw = asked.text is not None
    if raw:
        text = asked.text.read_text("utf-8")
        starts = range(0, len(text) - PIECE, STRIDE)
        prompts = [text[first : first + PIECE] for first in starts][: asked.replies]
    else:
        turns = [record["turns"][0] for record in read_lines(asked.questions)]
        prompts = sorted(turns, key=len)[: asked.replies]
    first, *others = KV_TYPES
    wanted = _write(asked, first, prompts, raw)
    for kind in others:
        pairs = list(zip(wanted, _write(asked, kind, prompts, raw), strict=True))
        places = [_first_other(one, other) for one, other in pairs if one != other]
        yield {
            "KV": kind,
            "replies": len(pairs),
            "identical": sum(one == other for one, other in pairs),
            "tokens": statistics.mean(len(one) for one, _ in pairs),
            "first": statistics.median(places) if places else None,
        }


def _write(asked: Asked, kind: str, prompts: Sequence[str], raw: bool) -> list[list[int]]:
    options = {"max_tokens": asked.tokens, "temperature": 0.0, "raw": raw, "ignore_eos": raw}
    with edgespec.load(asked.model, kv_type=kind, backend="native") as engine:
        return [engine.generate(prompt, **options).token_ids for prompt in prompts]


def _first_other(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


if __name__ == "__main__":
    script.run()
