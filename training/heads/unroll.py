"""How a head is run several tokens ahead in training: on what it will see when it drafts.

"EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test",
section 3.2: the first step reads the trunk's states, each later one the state that the head itself
had for the token before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.heads.head import Head


def shifted(x: Tensor, count: int, dim: int) -> Tensor:
    """Return `x` with what was at t at t + `count`, zeros before it."""
    if count == 0:
        return x
    kept = x.narrow(dim, 0, x.shape[dim] - count)
    zeros = torch.zeros_like(x.narrow(dim, 0, count))
    return torch.cat((zeros, kept), dim)


class Memory:
    """The keys and values of all steps so far, each [batch, heads, tokens, head]."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return what the newest step reads, [batch, heads, tokens, head].

        A draft at t that is `ahead` tokens from the trunk's last state sees the first step's keys
        up to t - ahead, and then one key of each later step: those of the draft it belongs to.
        """
        self.keys.append(key)
        self.values.append(value)
        ahead, tokens = len(self.keys) - 1, query.shape[2]
        query = query * query.shape[-1] ** -0.5
        seen = torch.ones(tokens, tokens, dtype=torch.bool).tril(-ahead)
        scores = (query @ self.keys[0].transpose(-1, -2)).float()
        parts = [scores.masked_fill(~seen, -torch.inf)]
        for step in range(1, ahead + 1):
            own = shifted(self.keys[step], ahead - step, 2)
            parts.append((query * own).sum(-1, keepdim=True).float())
        shares = torch.cat(parts, -1).softmax(-1).to(value.dtype)
        read = shares[..., :tokens] @ self.values[0]
        for step in range(1, ahead + 1):
            at = tokens + step - 1
            own = shifted(self.values[step], ahead - step, 2)
            read = read + shares[..., at : at + 1] * own
        return read


def unroll(head: Head, features: Tensor, embedded: Tensor, num_steps: int) -> list[Tensor]:
    """Return the head's states of each step, [batch, tokens - 1, width].

    features [batch, tokens, ...] are the trunk's, embedded [batch, tokens, width] the tokens. The
    state of step i at t has read the trunk up to t - i and the tokens up to t + 1: it tells of
    token t + 2. The first i tokens of step i mean nothing.
    """
    memory, states = Memory(), []
    state, following = head.start(features[:, :-1]), embedded[:, 1:]
    for step in range(num_steps):
        state = head.step(shifted(state, 1, 1) if step else state, following, memory)
        states.append(state)
    return states
