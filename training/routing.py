"""Which experts held-out text is sent to: what a pass over several tokens has to read."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from training.device import place
from training.model import TinyLlama

WINDOW_TOKENS = 256
MOST_WINDOWS = 8  # of each source, and at once
PASS_TOKENS = (1, 2, 4, 8, 16)


@torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is untyped here
def chosen_experts(model: TinyLlama, ids: Tensor) -> Tensor:
    """Return the experts of each token of `ids` [batch, tokens]: [layers, batch, tokens, used]."""
    found: list[Tensor] = []

    def note(used: int, _: nn.Module, __: object, scores: Tensor) -> None:
        found.append(scores.view(*ids.shape, -1).topk(used, -1).indices)

    hooks = [
        block.net.ffn_gate_inp.register_forward_hook(partial(note, model.shape.num_experts_used))
        for block in model.blk
    ]
    model.hidden(ids)
    for hook in hooks:
        hook.remove()
    return torch.stack(found)


def distinct(used: Tensor, num_tokens: int) -> float:
    """Return how many experts a layer reads for `num_tokens` tokens in a row, on average.

    used bool [layers, batch, tokens, experts].
    """
    runs = used.unfold(2, num_tokens, num_tokens)
    return float(runs.any(-1).sum(-1).float().mean())


def routing(model: TinyLlama, tokens: Path) -> dict[str, object]:
    """Return how evenly the experts of each layer are used, and how many a pass has to read.

    `even` is what a pass would read if every token chose by chance.
    """
    experts, most = model.shape.num_experts, MOST_WINDOWS * WINDOW_TOKENS
    paths = sorted(tokens.glob("held_out.*.ids.npy"))
    joined = np.concatenate([np.load(path)[:most].astype(np.int64) for path in paths])
    window = min(WINDOW_TOKENS, model.shape.context_tokens, len(joined))
    rows = place(joined[: len(joined) // window * window].reshape(-1, window))
    used = torch.cat(
        [
            nn.functional.one_hot(chosen_experts(model, ids), experts).sum(3).bool()
            for ids in rows.split(MOST_WINDOWS)
        ],
        1,
    )
    shares = used.float().mean((1, 2)) / model.shape.num_experts_used
    left_out = 1 - model.shape.num_experts_used / experts
    return {
        "tokens": used.shape[1] * used.shape[2],
        "shares": [
            sorted((round(share, 3) for share in row), reverse=True) for row in shares.tolist()
        ],
        "read": {str(n): round(distinct(used, n), 2) for n in PASS_TOKENS},
        "even": {str(n): round(experts * (1 - left_out**n), 2) for n in PASS_TOKENS},
    }
