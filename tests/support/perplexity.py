"""Perplexity of the same tokens in the same windows, by EdgeSpec and by llama.cpp.

A text is cut into windows of 512 tokens, or of the model's context if that is shorter; each window
starts afresh, and every token in it but the first counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.kernels.matmul.tile import FORMATS
from edgespec.models.file import ModelFile
from edgespec.models.open_model import open_model
from tests.support import llama_peer
from tests.support.parity import matrix_types, open_passes
from tests.support.passes import Passes

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

    @property
    def bound(self) -> float:
        """What the difference may be: the margin, and two standard errors of so short a text."""
        return MARGIN + 2.0 * self.noise

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
    with open_passes(file, backend, len(windows[0]), threads, _NODES) as target:
        return np.stack([_window_losses(target, window) for window in windows])


def _window_losses(target: Passes, window: Sequence[int]) -> Losses:
    target.truncate()
    parts = []
    for start in range(0, len(window) - 1, _NODES):
        part = window[start : min(start + _NODES, len(window) - 1)]
        logits = target.score(part)
        parts.append(llama_peer.cross_entropy(logits, window[start + 1 : start + 1 + len(part)]))
        target.commit(len(part))
    return np.concatenate(parts)
