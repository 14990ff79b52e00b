"""What int8 and q4 keys and values change: the same text through all caches.

    python benchmarks/kv_types.py [MODEL...] --text FILE [--tokens 4000] [--window 1024]

Windows of the text start afresh. Over all their tokens: perplexity with both, cosine of both logits
(mean and worst), how often both have one favourite, and the Kullback-Leibler divergence of the
second distribution from the first, in nats. `--exact` compares each with the reference backend,
too, which is slow: it tells what rounding activations to int8 costs in all.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.parity import matrix_types, open_target
from edgespec.backends.base import Target, TokenTree
from edgespec.memory.plan.settings import KV_TYPES
from edgespec.models.file import ModelFile, open_model
from edgespec.models.registry import resolve

_NODES = 64
SIDES = {kind: ("native", kind) for kind in KV_TYPES} | {"exact": ("reference", "f32")}
"""Backend and KV type by the names they have in the table."""
Logits = NDArray[np.float64]


def windows(file: ModelFile, text: str, length: int, num_tokens: int) -> list[list[int]]:
    """Token ids in whole windows, at most `num_tokens` together."""
    ids = file.tokenizer.encode(text, add_bos=False)[:num_tokens]
    length = min(length, file.spec.context_length)
    if len(ids) < length:
        raise SystemExit(f"the text has {len(ids)} tokens; a window needs {length}")
    return [ids[first : first + length] for first in range(0, len(ids) - length + 1, length)]


def score(target: Target, window: Sequence[int]) -> Iterator[tuple[Logits, Sequence[int]]]:
    """Logits f64 [n, vocab] of a window in parts, and the tokens that follow."""
    target.truncate(0)
    for first in range(0, len(window) - 1, _NODES):
        part = window[first : min(first + _NODES, len(window) - 1)]
        logits = target.forward(TokenTree.chain(part)).astype(np.float64)
        target.commit(range(len(part)))
        yield logits, window[first + 1 : first + 1 + len(part)]


def log_shares(logits: Logits) -> Logits:
    """Logarithms of the softmax of each row."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: Logits = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def compare(left: Target, right: Target, parts: Sequence[Sequence[int]]) -> str:
    """One line: how `right` differs from `left`."""
    rows = []
    for window in parts:
        for (one, follow), (two, _) in zip(score(left, window), score(right, window), strict=True):
            shares, others = log_shares(one), log_shares(two)
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
    first, second, cosine, same, apart = table.mean(axis=0)
    one, two, worst = math.exp(first), math.exp(second), table[:, 2].min()
    return (
        f"{len(table):>7}  {one:>10.4f}  {two:>10.4f}  {two / one - 1:>+9.4%}  "
        f"{cosine:.7f}  {worst:.7f}  {same:>7.2%}  {apart:>10.2e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--exact", action="store_true", help="also the reference backend, slow")
    options = parser.parse_args()
    columns = "tokens       first      second     change   mean cos  worst cos     same  divergence"
    print(f"{'':<49}{columns}")
    for path in options.models or [resolve()]:
        with ExitStack() as stack:
            file = stack.enter_context(open_model(path))
            parts = windows(file, options.text.read_text("utf-8"), options.window, options.tokens)
            targets = {
                side: stack.enter_context(
                    open_target(file, backend, len(parts[0]), options.threads, _NODES, kind)
                )
                for side, (backend, kind) in SIDES.items()
                if backend == "native" or options.exact
            }
            name = f"{path.name} ({matrix_types(file)})"
            pairs = [("f16", kind) for kind in KV_TYPES[1:]]
            pairs += [("exact", kind) for kind in KV_TYPES if options.exact]
            for left, right in pairs:
                line = compare(targets[left], targets[right], parts)
                print(f"{name:<34} {f'{left}, {right}':<13}{line}", flush=True)


if __name__ == "__main__":
    main()
