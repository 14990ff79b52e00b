"""Held-out loss, source by source, after the last layer and at every exit before it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from training.device import autocast, place
from training.model import TinyLlama

WINDOW_TOKENS = 512
ROWS = 8


@dataclass(slots=True)
class Score:
    """Sums over the held-out tokens of one source; losses in nats, arrays by exit layer."""

    tokens: int = 0
    loss: float = 0.0
    asked_tokens: int = 0
    asked_loss: float = 0.0
    exit_losses: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))
    exit_agrees: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))

    def add(self, other: Score) -> None:
        """Count another source's sums, too."""
        self.tokens += other.tokens
        self.loss += other.loss
        self.asked_tokens += other.asked_tokens
        self.asked_loss += other.asked_loss
        self.exit_losses = self.exit_losses + other.exit_losses
        self.exit_agrees = self.exit_agrees + other.exit_agrees

    def summary(self) -> dict[str, float | list[float]]:
        """Return means per token; `exit_agreement[i]` is how often the exit after layer i + 1 and
        the last layer have one favourite.
        """
        return {
            "tokens": self.tokens,
            "loss": round(self.loss / self.tokens, 3),
            "answer_tokens": self.asked_tokens,
            "answer_loss": round(self.asked_loss / max(1, self.asked_tokens), 3),
            "exit_loss": (self.exit_losses / self.tokens).round(3).tolist(),
            "exit_agreement": (self.exit_agrees / self.tokens).round(3).tolist(),
        }


def score(model: TinyLlama, ids_path: Path) -> Score:
    """Return the score of one held-out stream, read in windows of 512 tokens."""
    ids = np.load(ids_path).astype(np.int64)
    asked = np.load(ids_path.with_name(ids_path.name.replace(".ids.", ".asked.")))
    window = min(WINDOW_TOKENS, model.shape.context_tokens, len(ids) - 1)
    num_windows = (len(ids) - 1) // window
    total = Score()
    for first in range(0, num_windows, ROWS):
        starts = [row * window for row in range(first, min(first + ROWS, num_windows))]
        inputs = place(np.stack([ids[s : s + window] for s in starts]))
        targets = place(np.stack([ids[s + 1 : s + window + 1] for s in starts]))
        wanted = place(np.stack([asked[s + 1 : s + window + 1] for s in starts]))
        with torch.inference_mode(), autocast():
            *early, last = model.hidden(inputs)[0]
            losses = model.token_losses(last, targets)
            favourites = model.logits(last).argmax(-1)
            exit_losses = [model.token_losses(state, targets).sum().item() for state in early]
            agrees = [
                (model.logits(state).argmax(-1) == favourites).sum().item() for state in early
            ]
        part = Score(
            losses.numel(),
            losses.sum().item(),
            int(wanted.sum().item()),
            losses[wanted].sum().item(),
            np.array(exit_losses),
            np.array(agrees, float),
        )
        total.add(part)
    return total


def evaluate(model: TinyLlama, tokens: Path) -> dict[str, dict[str, float | list[float]]]:
    """Return the summary of every `held_out.*` stream under `tokens`, and of all together."""
    table = {}
    whole = Score()
    for path in sorted(tokens.glob("held_out.*.ids.npy")):
        part = score(model, path)
        table[path.name.split(".")[1]] = part.summary()
        whole.add(part)
    table["all"] = whole.summary()
    return table
