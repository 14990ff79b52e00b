"""Does EdgeSpec compute what llama.cpp computes on the same file?

    python -m lab.parity tokens MODEL... [--quantise Q8_0,Q4_0,Q4_K,Q6_K] [--exact]
    python -m lab.parity perplexity [MODEL...] --corpus FOLDER [--quantise all]

`tokens`: greedy choices token by token, and logits; `tests/support/parity.py` says what counts as a
near tie. `perplexity`: of the same tokens in the same windows. `--quantise` also compares files
that llama.cpp's quantiser makes of each model. Exit code 1: beyond the margin. Needs
llama-cpp-python.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from edgespec.models.registry import resolve
from lab.harness import MODELS, Asked, Rows, Script, names, option
from tests.support import llama_peer
from tests.support import perplexity as windows
from tests.support.parity import BACKENDS, TEXTS, Parity, compare

QUANTISE = option("--quantise", type=names, default=[], metavar="TYPE,...")
THREADS = option("--threads", type=int, default=2)
script = Script(__doc__)


@script.command(
    MODELS,
    QUANTISE,
    THREADS,
    option("--backend", choices=BACKENDS, default="native"),
    option("--prompts", type=int, default=len(TEXTS)),
    option("--tokens", type=int, default=128),
    option("--exact", action="store_true", help="also against exact arithmetic"),
)
def tokens(asked: Asked) -> Rows:
    """Greedy decoding, token by token and logit by logit."""
    for path in _variants(asked.models, asked.quantise):
        found = compare(
            path,
            backend=asked.backend,
            num_prompts=asked.prompts,
            num_tokens=asked.tokens,
            threads=asked.threads,
            exact=asked.exact,
        )
        yield _parity_row(found, asked.exact)
        for line in found.differences:
            script.note(line)
        script.check(found.good, f"{found.name}, {found.types}: equal up to near ties")


def _parity_row(found: Parity, exact: bool) -> dict[str, Any]:
    row = {
        "model": found.name,
        "types": found.types,
        "tokens": found.num_tokens,
        "equal": found.num_equal,
        "near ties": found.num_ties,
        "different": found.num_different,
        "worst gap": found.worst_gap,
        "worst cosine": f"{found.worst_cosine:.7f}",
        "mean cosine": f"{found.mean(found.cosine_sum):.7f}",
    }
    if exact:
        row["ours to exact"] = f"{found.mean(found.ours_to_exact_sum):.7f}"
        row["peer to exact"] = f"{found.mean(found.peer_to_exact_sum):.7f}"
    return row


@script.command(
    option("models", nargs="*", type=Path, metavar="MODEL"),
    option("--corpus", type=Path, help="the training recipe's corpus folder: what it held out"),
    option("--text", type=Path, help="a text file instead"),
    option("--tokens", type=int, default=20_000),
    option("--reference", action="store_true", help="also the reference backend: exact and slow"),
    QUANTISE,
    THREADS,
)
def perplexity(asked: Asked) -> Rows:
    """On a text; "+-" is the standard error of the difference."""
    if asked.corpus:
        text = held_out(asked.corpus)
    elif asked.text:
        text = [asked.text.read_text("utf-8")]
    else:
        raise SystemExit("name a text: --corpus FOLDER or --text FILE")
    kinds = windows.KINDS if asked.quantise == ["all"] else asked.quantise
    for path in _variants(asked.models or [resolve()], kinds):
        found = windows.compare(
            path, text, asked.tokens, threads=asked.threads, reference=asked.reference
        )
        yield {
            "model": found.name,
            "types": found.types,
            "tokens": found.ours.size,
            "EdgeSpec": math.exp(found.ours.mean()),
            "llama.cpp": math.exp(found.peers.mean()),
            "difference": f"{found.difference:+.4%}",
            "+-": f"{found.noise:.4%}",
            "exact": None if found.exact is None else math.exp(found.exact.mean()),
        }
        good = abs(found.difference) <= windows.MARGIN
        script.check(good, f"{found.name}: within {windows.MARGIN:.1%}")


def held_out(corpus: Path) -> list[str]:
    """The texts that the bundled model's training held out, in an order of chance but fixed."""
    from training import data, mix

    records = [
        record
        for source in mix.SOURCES
        for record in data.read_source(source, corpus)
        if data.is_held_out(source, record)
        and data.share_of(data.record_key(record), "weight") < source.weight
    ]
    records.sort(key=lambda record: data.share_of(data.record_key(record), "order"))
    return ["".join(piece for piece, _ in data.render(record)) for record in records]


def _variants(models: Sequence[Path], kinds: Sequence[str]) -> Iterator[Path]:
    """Each model, then what it is quantised to, while it is looked at."""
    for path in models:
        yield path
        for kind in kinds:
            with tempfile.TemporaryDirectory() as folder:
                copy = Path(folder) / f"{path.stem}-{kind}.gguf"
                llama_peer.quantise(path, copy, kind)
                yield copy


if __name__ == "__main__":
    script.run()
