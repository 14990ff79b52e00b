"""How many of a head's drafts its trunk would have written, depth by depth, in torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.device import place
from training.heads.head import Head
from training.heads.own_text import documents
from training.heads.unroll import unroll
from training.model import TinyLlama

ROWS, MOST_TOKENS = 8, 480
DEPTHS = 5


@dataclass(slots=True)
class Kept:
    """Drafts tried and kept at each depth, counted where all before them were kept."""

    tried: Tensor = field(default_factory=lambda: torch.zeros(DEPTHS))
    kept: Tensor = field(default_factory=lambda: torch.zeros(DEPTHS))

    def add(self, matches: list[Tensor], asked: Tensor) -> None:
        """Count the chains of a batch.

        matches[i] bool [rows, tokens - 1]: whether the draft that is i after the first, made at t
        from tokens up to t + 1, is what the trunk writes at t + 2; asked bool [rows, tokens]:
        whether the trunk writes the token.
        """
        starts = asked.shape[1] - 1 - DEPTHS
        alive = torch.ones(len(asked), starts, dtype=torch.bool)
        for depth, match in enumerate(matches):
            alive &= asked[:, 2 + depth : 2 + depth + starts]
            self.tried[depth] += alive.sum()
            alive &= match[:, depth : depth + starts]
            self.kept[depth] += alive.sum()

    def merge(self, other: Kept) -> None:
        self.tried += other.tried
        self.kept += other.kept

    def summary(self) -> dict[str, object]:
        """Return the share kept at each depth, and how many of `DEPTHS` drafts are kept."""
        rates = self.kept / self.tried.clamp(min=1)
        return {
            "starts": int(self.tried[0]),
            "kept": [round(float(rate), 3) for rate in rates],
            "mean": round(float(rates.cumprod(0).sum()), 3),
        }


def batches(tokens: Path, name: str, most: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the documents of a stream by length, their first `most` tokens.

    ids int64 [rows, tokens] and asked bool [rows, tokens].
    """
    texts = [(ids[:most], asked[:most]) for ids, asked in documents(tokens, name)]
    texts = sorted((text for text in texts if len(text[0]) > DEPTHS + 2), key=lambda t: len(t[0]))
    for first in range(0, len(texts), ROWS):
        group = texts[first : first + ROWS]
        ids = np.zeros((len(group), len(group[-1][0])), np.int64)
        asked = np.zeros(ids.shape, np.bool_)
        for row, (these, wanted) in enumerate(group):
            ids[row, : len(these)], asked[row, : len(these)] = these, wanted
        yield place(ids), place(asked)


def noise_behind(logits: Tensor, drawn: Tensor) -> Tensor:
    """Return Gumbel noise [..., vocab] with which `logits` [..., vocab] give `drawn` [...].

    "A* Sampling", section 3: the greatest sum is a Gumbel of its own, the others are cut off there.
    """
    sums = logits - torch.empty_like(logits).exponential_().log()
    most = torch.empty_like(logits[..., :1]).exponential_().log().neg()
    most = most + logits.logsumexp(-1, keepdim=True)
    below = -torch.logaddexp(-most, -sums)
    return below.scatter(-1, drawn[..., None], most) - logits


@torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is untyped here
def accepted(
    trunk: TinyLlama, head: Head | None, tokens: Path, name: str, temperature: float
) -> Kept:
    """Return what is kept of chains drafted everywhere in what the trunk wrote itself.

    Drafts are drawn with the trunk's noise, and at temperature 0 without. Without a head, the
    trunk's early exit drafts.
    """
    torch.manual_seed(0)
    total = Kept()
    for ids, asked in batches(tokens, name, min(MOST_TOKENS, trunk.shape.context_tokens)):
        states, _ = trunk.hidden(ids)
        if head is None:
            exit_logits = trunk.logits(states[trunk.shape.exit_layer - 1])[:, 1:]
            drafts = [exit_logits] * DEPTHS
        else:
            embedded = trunk.token_embd(ids)
            outs = unroll(head, head.features(states), embedded, DEPTHS)
            drafts = [head.logits(out) for out in outs]
        logits = trunk.logits(states[-1])[:, 1:]
        drawn = torch.cat((ids[:, 2:], torch.zeros_like(ids[:, :1])), 1)
        noise = noise_behind(logits / temperature, drawn) if temperature else None
        d2t = getattr(head, "d2t", None)
        matches = []
        for draft in drafts:
            if noise is not None:
                draft = draft / temperature + (noise if d2t is None else noise[..., d2t])
            best = draft.argmax(-1)
            matches.append((best if d2t is None else d2t[best]) == drawn)
        total.add(matches, asked)
    return total
