"""An EAGLE-3 head: one layer that reads three of the trunk's layers and the next token.

"EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test",
section 3.1. Modules are named as the tensors of GGUF's `eagle3`; what they compute is what
llama.cpp computes with them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.heads.head import HeadShape
from training.heads.unroll import Memory
from training.model import TinyLlama, rotate


class EagleLayer(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A transformer layer whose attention reads a token beside a state."""

    def __init__(self, trunk: TinyLlama, shape: HeadShape) -> None:
        super().__init__()
        self.head_width = trunk.shape.head_width
        width, epsilon = trunk.shape.width, trunk.shape.norm_epsilon
        kv_width = shape.num_kv_heads * self.head_width
        self.group = trunk.shape.num_heads // shape.num_kv_heads
        self.attn_norm = nn.RMSNorm(width, eps=epsilon)  # of the token
        self.attn_norm_2 = nn.RMSNorm(width, eps=epsilon)  # of the state
        self.attn_q = nn.Linear(2 * width, width, bias=False)
        self.attn_k = nn.Linear(2 * width, kv_width, bias=False)
        self.attn_v = nn.Linear(2 * width, kv_width, bias=False)
        self.attn_output = nn.Linear(width, width, bias=False)
        self.ffn_norm = nn.RMSNorm(width, eps=epsilon)
        self.ffn_gate = nn.Linear(width, shape.ffn_width, bias=False)
        self.ffn_up = nn.Linear(width, shape.ffn_width, bias=False)
        self.ffn_down = nn.Linear(shape.ffn_width, width, bias=False)

    def forward(
        self, state: Tensor, following: Tensor, memory: Memory, cos: Tensor, sin: Tensor
    ) -> Tensor:
        batch, tokens, width = state.shape
        x = torch.cat((self.attn_norm(following), self.attn_norm_2(state)), -1)

        def heads(projected: Tensor) -> Tensor:
            return projected.view(batch, tokens, -1, self.head_width).transpose(1, 2)

        query = rotate(heads(self.attn_q(x)), cos, sin)
        key = rotate(heads(self.attn_k(x)), cos, sin).repeat_interleave(self.group, 1)
        value = heads(self.attn_v(x)).repeat_interleave(self.group, 1)
        read = memory.attend(query, key, value).transpose(1, 2).reshape(batch, tokens, width)
        state = state + self.attn_output(read)
        y = self.ffn_norm(state)
        out: Tensor = state + self.ffn_down(F.silu(self.ffn_gate(y)) * self.ffn_up(y))
        return out


class EagleHead(nn.Module):  # type: ignore[misc]
    """The head; the tokens' embedding is the trunk's, and so is the output without `d2t`."""

    d2t: Tensor

    def __init__(self, trunk: TinyLlama, shape: HeadShape, draft_ids: Tensor | None) -> None:
        """`draft_ids` i64 [draft_vocab] are the draft tokens' ids in the trunk's vocabulary."""
        super().__init__()
        if (draft_ids is None) != (shape.draft_vocab == 0):
            raise ValueError("a head has draft ids if, and only if, it has a vocabulary of its own")
        width = trunk.shape.width
        self.shape = shape
        # In a tuple, since the trunk is no part of the head.
        self.trunk = (trunk,)
        self.fc = nn.Linear(3 * width, width, bias=False)
        self.blk = nn.ModuleList([EagleLayer(trunk, shape)])
        self.output_norm = nn.RMSNorm(width, eps=trunk.shape.norm_epsilon)
        if draft_ids is not None:
            self.output = nn.Linear(width, shape.draft_vocab, bias=False)
            self.register_buffer("d2t", draft_ids)
        self.reset()

    def reset(self) -> None:
        """Start as the trunk without its last layers: its highest tap, read by its own head."""
        (trunk,) = self.trunk
        for parameter in self.blk.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, 0.0, 0.02)
        nn.init.normal_(self.blk[0].ffn_down.weight, 0.0, 0.005)
        with torch.no_grad():
            width = trunk.shape.width
            nn.init.normal_(self.fc.weight, 0.0, 0.005)
            self.fc.weight[:, 2 * width :] += torch.eye(width)
            self.output_norm.weight.copy_(trunk.output_norm.weight)
            if self.shape.draft_vocab:
                self.output.weight.copy_(trunk.token_embd.weight[self.d2t])

    def features(self, states: list[Tensor]) -> Tensor:
        # What goes into a layer comes out of the one before.
        return torch.cat([states[layer - 1] for layer in self.shape.taps], -1)

    def start(self, features: Tensor) -> Tensor:
        started: Tensor = self.fc(features)
        return started

    def step(self, state: Tensor, following: Tensor, memory: Memory) -> Tensor:
        (trunk,) = self.trunk
        tokens = state.shape[1]
        out: Tensor = self.blk[0](state, following, memory, trunk.cos[:tokens], trunk.sin[:tokens])
        return out

    def logits(self, state: Tensor) -> Tensor:
        (trunk,) = self.trunk
        weight = self.output.weight if self.shape.draft_vocab else trunk.token_embd.weight
        return F.linear(self.output_norm(state), weight).float()
