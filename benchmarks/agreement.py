"""Do all backends give the same logits? Cosines of every pair, on the same texts and trees.

    python benchmarks/agreement.py MODEL... [--tokens N] [--backends LIST] [--json]

Each backend prefills the same texts, scores a tree of eight random tokens on top, and then N random
tokens one by one; rows are compared pair by pair. Texts are those of `benchmarks/parity.py`. Exit
code 1: a cosine below 0.999, or 0.99999 for a model in F32.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.parity import TEXTS, matrix_types
from edgespec.backends import registry as backends
from edgespec.backends.llamacpp import library
from edgespec.backends.passes import TokenTree
from edgespec.errors import EdgeSpecError
from edgespec.memory.plan.plan import Footprint, Plan
from edgespec.models.file import ModelFile
from edgespec.models.open_model import open_model
from edgespec.tools.export.export import export

NODES = 8
PARENTS = np.array([-1, 0, 0, 1, 1, 2, 3, 6], np.int16)
LEAST, LEAST_F32 = 0.999, 0.99999
Rows = NDArray[np.float32]


def rows_of(file: ModelFile, backend: str, prompts: list[list[int]], tokens: int) -> Rows:
    """Logits [rows, vocab] f32 of a tree and of single tokens after each prompt."""
    plan = Plan(
        backend=backend,
        quantisation="",
        context_length=max(map(len, prompts)) + tokens + NODES,
        kv_type="f16",
        max_nodes=NODES,
        prefill_chunk=64,
        threads=1,
        gpu_layers=0,
        budget_bytes=0,
        footprint=Footprint(()),
    )
    rng, found = np.random.default_rng(0), []
    with backends.open_target(file, plan) as target:
        for prompt in prompts:
            ids = rng.integers(3, file.spec.vocab_size, NODES + tokens, dtype=np.int32)
            target.own.truncate(0)
            target.own.prefill(prompt)
            found.append(target.own.forward(TokenTree(ids[:NODES], PARENTS)).logits.copy())
            for token in ids[NODES:]:
                found.append(target.own.forward(TokenTree.chain([token])).logits.copy())
                target.own.commit([0])
    return np.concatenate(found)


def _rows(file: ModelFile, backend: str, prompts: list[list[int]], tokens: int) -> Rows:
    """The same, of what is exported where a backend reads another format."""
    if backend != "onnx":
        return rows_of(file, backend, prompts, tokens)
    with TemporaryDirectory(prefix="edgespec-agreement-") as folder:
        made = export(file.path, folder, check=False)
        with open_model(made.path, any_engine=True) as exported:
            return rows_of(exported, backend, prompts, tokens)


def cosines(left: Rows, right: Rows) -> NDArray[np.float64]:
    """Cosine of each row with the other's."""
    one, two = left.astype(np.float64), right.astype(np.float64)
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
    result: NDArray[np.float64] = (one * two).sum(axis=1) / lengths
    return result


def compare(path: Path, names: list[str], tokens: int, num_prompts: int) -> dict[str, Any]:
    """Worst and mean cosine, and equal best tokens, of every pair of backends."""
    with open_model(path) as file:
        prompts = [file.tokenizer.encode(text) or [1] for text in TEXTS[:num_prompts]]
        rows = {name: _rows(file, name, prompts, tokens) for name in names}
        types = matrix_types(file)
    pairs = {}
    for one, two in combinations(names, 2):
        found = cosines(rows[one], rows[two])
        best = rows[one].argmax(axis=1) == rows[two].argmax(axis=1)
        pairs[f"{one} / {two}"] = {
            "worst": float(found.min()),
            "mean": float(found.mean()),
            "same_best": int(best.sum()),
            "rows": len(found),
        }
    return {"model": path.name, "types": types, "pairs": pairs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--tokens", type=int, default=16, help="single tokens after each tree")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--backends", default="reference,native,llamacpp,onnx")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names, good, results = options.backends.split(","), True, []
    if not options.json:
        print(f"{library.PACKAGE} {library.version()}, f16 KV, 1 thread")
        print(f"{'model':<28}{'types':<12}{'pair':<24}{'worst':>11}{'mean':>11}  same best token")
    try:
        for path in options.models:
            found = compare(path, names, options.tokens, options.prompts)
            results.append(found)
            least = LEAST_F32 if found["types"] == "F32" else LEAST
            for pair, row in found["pairs"].items():
                good &= row["worst"] >= least
                if not options.json:
                    print(
                        f"{found['model']:<28}{found['types']:<12}{pair:<24}{row['worst']:>11.7f}"
                        f"{row['mean']:>11.7f}  {row['same_best']} of {row['rows']}",
                        flush=True,
                    )
    except EdgeSpecError as error:
        print(f"agreement.py: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(results))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
