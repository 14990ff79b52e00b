"""Perplexity of the same tokens in the same windows, by EdgeSpec and by llama.cpp.

    python benchmarks/perplexity.py [MODEL...] --corpus FOLDER [--tokens 20000] [--quantise all]

The text is what the bundled model's training held out of its corpus (`--corpus`), or any text
(`--text FILE`). It is cut into windows of 512 tokens, or of the model's context if that is shorter;
each window starts afresh, and every token in it but the first counts. `--quantise` also compares
the models requantised by llama.cpp to these types, by commas, or to "all" that both engines have;
`--reference` adds the reference backend, which is exact and slow. "+-" is the standard error of the
difference: what rounding activations in another way can make of it by chance. Exit code 1: a
difference is larger than the margin.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import llama_peer
from benchmarks.parity import matrix_types, open_target
from edgespec.backends.base import Target
from edgespec.backends.native.kernels.matmul.tile import FORMATS
from edgespec.backends.passes import TokenTree
from edgespec.models.file import ModelFile
from edgespec.models.open_model import open_model
from edgespec.models.registry import resolve

MARGIN = 0.001
WINDOW_TOKENS = 512
_NODES = 64
"""Tokens of a pass; their logits are all in memory at once."""
KINDS = tuple(kind.name for kind in FORMATS if kind.name in llama_peer.TENSOR_TYPES)
"""Types that both engines compute and llama.cpp can quantise to."""
Losses = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Losses in nats on the same tokens, f64 [windows, tokens - 1]."""

    name: str
    types: str
    ours: Losses
    peers: Losses
    exact: Losses | None = None
    """The reference backend's."""

    @property
    def difference(self) -> float:
        """Our perplexity over the peer's, less one."""
        return math.expm1(float((self.ours - self.peers).mean()))

    @property
    def noise(self) -> float:
        """Standard error of the difference, if every token's is independent."""
        return float((self.ours - self.peers).std() / math.sqrt(self.ours.size))

    def cells(self) -> list[str]:
        values = [math.exp(side.mean()) for side in (self.ours, self.peers)]
        exact = "" if self.exact is None else f"{math.exp(self.exact.mean()):.4f}"
        return [
            self.name,
            self.types,
            str(self.ours.size),
            *(f"{value:.4f}" for value in values),
            f"{self.difference:+.4%}",
            f"{self.noise:.4%}",
            exact,
        ]


def compare(
    path: Path, text: Sequence[str], num_tokens: int, *, threads: int = 2, reference: bool = False
) -> Perplexity:
    """Perplexity of about the first `num_tokens` tokens of some texts; raises PeerError,
    PeerMissing.
    """
    with open_model(path) as file:
        windows = cut(file, text, num_tokens)
        peers = llama_peer.losses(path, windows, threads=threads)
        ours = _losses(file, "native", windows, threads)
        exact = _losses(file, "reference", windows, threads) if reference else None
        return Perplexity(path.name, matrix_types(file), ours, peers, exact)


def cut(file: ModelFile, text: Sequence[str], num_tokens: int) -> list[list[int]]:
    """Windows of one length in which at least `num_tokens` tokens follow another.

    Control tokens in the texts are control tokens. Raises SystemExit when they are too short.
    """
    length = min(WINDOW_TOKENS, file.spec.context_length)
    num_windows = -(-num_tokens // (length - 1))
    ids: list[int] = []
    for part in text:
        ids += file.tokenizer.encode(part, add_bos=False, parse_special=True)
        if len(ids) >= num_windows * length:
            return [ids[start * length : (start + 1) * length] for start in range(num_windows)]
    raise SystemExit(f"the text has {len(ids)} tokens; {num_windows} windows of {length} are asked")


def _losses(
    file: ModelFile, backend: str, windows: Sequence[Sequence[int]], threads: int
) -> Losses:
    with open_target(file, backend, len(windows[0]), threads, _NODES) as target:
        return np.stack([_window_losses(target, window) for window in windows])


def _window_losses(target: Target, window: Sequence[int]) -> Losses:
    target.own.truncate(0)
    parts = []
    for start in range(0, len(window) - 1, _NODES):
        part = window[start : min(start + _NODES, len(window) - 1)]
        logits = target.own.forward(TokenTree.chain(part)).logits
        parts.append(llama_peer.cross_entropy(logits, window[start + 1 : start + 1 + len(part)]))
        target.own.commit(range(len(part)))
    return np.concatenate(parts)


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--corpus", type=Path, help="the training recipe's corpus folder")
    source.add_argument("--text", type=Path, help="a text file instead")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--quantise", default="", help=f"by commas, or all: {', '.join(KINDS)}")
    parser.add_argument("--reference", action="store_true", help="also the reference backend, slow")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    kinds = KINDS if options.quantise == "all" else [*filter(None, options.quantise.split(","))]
    if options.tokens < 1 or not set(kinds) <= set(llama_peer.FILE_TYPES):
        parser.error(f"--tokens starts at 1; types are {', '.join(llama_peer.FILE_TYPES)}")
    models = options.models or [resolve()]
    text = held_out(options.corpus) if options.corpus else [options.text.read_text("utf-8")]
    print(f"llama-cpp-python {llama_peer.version()}, f16 KV, windows of {WINDOW_TOKENS} tokens")
    print(_line(_COLUMNS))
    good = True
    for path in _variants(models, kinds):
        found = compare(
            path, text, options.tokens, threads=options.threads, reference=options.reference
        )
        print(_line(found.cells()), flush=True)
        good &= abs(found.difference) <= MARGIN
    print(f"all within {MARGIN:.1%}" if good else f"differs by more than {MARGIN:.1%}")
    return 0 if good else 1


_COLUMNS = ["model", "types", "tokens", "EdgeSpec", "llama.cpp", "difference", "+-", "exact"]


def _line(cells: Sequence[str]) -> str:
    return "".join(f"{cell:>{32 if not place else 11}}" for place, cell in enumerate(cells))


def _variants(models: Sequence[Path], kinds: Sequence[str]) -> Iterator[Path]:
    """Each model, then what it is requantised to, while it is looked at."""
    for path in models:
        yield path
        for kind in kinds:
            with tempfile.TemporaryDirectory() as folder:
                copy = Path(folder) / f"{path.stem}-{kind}.gguf"
                llama_peer.quantise(path, copy, kind)
                yield copy


if __name__ == "__main__":
    sys.exit(main())
