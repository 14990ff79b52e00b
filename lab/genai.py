"""EdgeSpec beside engines that read no passes, only prompts: OpenVINO GenAI, ONNX Runtime GenAI.

    python -m lab.genai MODEL --python PYTHON [--context 256] [--rounds 3] [--engines NAMES]

Prefill of 512 tokens (the time of a reply of one token) and plain greedy decoding behind a context
(what further tokens add to a reply), each engine in a process of its own for every round, in turns.
OpenVINO reads the same GGUF file. ONNX Runtime GenAI reads what `edgespec export` makes of it: Q8_0
and Q4_0 keep their weights, others are rounded to 8 bits. `--python` is another Python that has
these engines.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

from edgespec.models.open_model import open_model
from edgespec.models.registry import resolve
from edgespec.system.child_process import PeerError
from edgespec.tools.export.export import export
from lab.foreign_writers import PLAIN
from lab.harness import MODEL, Asked, Rows, Script, Spread, names, option, rounds
from lab.kept_writers import LIBRARY, OURS, WRITERS, Ids

ENGINES = (OURS, LIBRARY, "OpenVINO GenAI", "ONNX Runtime GenAI")
PREFILL_TOKENS, DECODE_TOKENS, WARM_UP_TOKENS = 512, 32, 16
script = Script(__doc__)


@script.command(
    MODEL,
    option("--python", required=True, help="where other engines are installed"),
    option("--engines", type=names, default=list(ENGINES), help="by commas"),
    option("--context", type=int, default=256, help="tokens behind which the decoded ones are"),
    option("--threads", type=int, default=2),
    option("--folder", type=Path, default=Path("build/genai"), help="for exported models"),
    rounds(3),
)
def speeds(asked: Asked) -> Rows:
    """Prefill and decoding of each engine, and how much faster ours is."""
    model = resolve(asked.model)
    if "ONNX Runtime GenAI" in asked.engines:
        _export(model, asked.folder / f"onnx-{model.stem}")
    with open_model(model) as file:
        vocabulary = file.spec.vocab_size
    prefill: defaultdict[str, list[float]] = defaultdict(list)
    decode: defaultdict[str, list[float]] = defaultdict(list)
    for number in range(asked.rounds):
        for name in asked.engines:
            draw = random.Random(number)

            def prompt(count: int, draw: random.Random = draw) -> Ids:
                return [draw.randrange(3, vocabulary) for _ in range(count)]

            read, near = prompt(PREFILL_TOKENS), prompt(asked.context)
            try:
                whole, first = _seconds(name, asked, 1, [read, near])
                (longer,) = _seconds(name, asked, 1 + DECODE_TOKENS, [near])
            except PeerError as error:
                script.note(f"{name}: {error}")
                continue
            prefill[name].append(PREFILL_TOKENS / whole)
            decode[name].append(DECODE_TOKENS / (longer - first))
    for name, found in prefill.items():
        yield {
            "engine": name,
            f"prefill {PREFILL_TOKENS}, tokens/s": Spread.of(found),
            "ours / its": round(median(prefill[OURS]) / median(found), 2),
            f"decoding at {asked.context}, tokens/s": Spread.of(decode[name]),
            "ours / its, decoding": round(median(decode[OURS]) / median(decode[name]), 2),
        }


def _seconds(name: str, asked: Asked, tokens: int, prompts: list[Ids]) -> list[float]:
    """What each reply of so many tokens took, in a new process or engine that is warm."""
    write, _ = WRITERS[name]
    own = argparse.Namespace(**vars(asked) | {"tokens": tokens, "draft_model": "edgespec-draft"})
    found, replies = [], iter(write(PLAIN, [list(range(3, 3 + WARM_UP_TOKENS)), *prompts], own))
    for _ in range(1 + len(prompts)):
        start = time.perf_counter()
        if next(replies, None) is None:
            raise PeerError("its process ended without a reply")
        found.append(time.perf_counter() - start)
    return found[1:]


def _export(model: Path, folder: Path) -> None:
    if not (folder / "genai_config.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        export(model, folder)


if __name__ == "__main__":
    script.run()
