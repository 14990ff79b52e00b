"""Held-out loss, source by source, at the last layer and at the early exit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from .model import TinyLlama

WINDOW_TOKENS = 512
ROWS = 8


@dataclass(slots=True)
class Score:
    """Sums over the held-out tokens of one source; losses in nats."""

    tokens: int = 0
    loss: float = 0.0
    asked_tokens: int = 0
    asked_loss: float = 0.0
    exit_loss: float = 0.0
    exit_agrees: int = 0

    def summary(self) -> dict[str, float]:
        """Return means per token; `exit_agreement` is how often both exits have one favourite."""
        return {
            "tokens": self.tokens,
            "loss": round(self.loss / self.tokens, 3),
            "answer_tokens": self.asked_tokens,
            "answer_loss": round(self.asked_loss / max(1, self.asked_tokens), 3),
            "exit_loss": round(self.exit_loss / self.tokens, 3),
            "exit_agreement": round(self.exit_agrees / self.tokens, 3),
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
        inputs = torch.from_numpy(np.stack([ids[s : s + window] for s in starts]))
        targets = torch.from_numpy(np.stack([ids[s + 1 : s + window + 1] for s in starts]))
        wanted = torch.from_numpy(np.stack([asked[s + 1 : s + window + 1] for s in starts]))
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            early, last = model.hidden(inputs)
            losses = model.token_losses(last, targets)
            total.exit_loss += model.token_losses(early, targets).sum().item()
            same = model.logits(early).argmax(-1) == model.logits(last).argmax(-1)
        total.tokens += losses.numel()
        total.loss += losses.sum().item()
        total.asked_tokens += int(wanted.sum().item())
        total.asked_loss += losses[wanted].sum().item()
        total.exit_agrees += int(same.sum().item())
    return total


def evaluate(model: TinyLlama, tokens: Path) -> dict[str, dict[str, float]]:
    """Return the summary of every `held_out.*` stream under `tokens`, and of all together."""
    table: dict[str, dict[str, float]] = {}
    whole = Score()
    for path in sorted(tokens.glob("held_out.*.ids.npy")):
        part = score(model, path)
        table[path.name.split(".")[1]] = part.summary()
        for field in Score.__dataclass_fields__:
            setattr(whole, field, getattr(whole, field) + getattr(part, field))
    table["all"] = whole.summary()
    return table
