"""The bundled model and its siblings in torch, whose early layers learn to predict, too.

"LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding", sections 4.1 and 4.2: a
later layer is left out more often than an earlier one, and every step adds the loss of one exit.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.feed_forward import Experts, FeedForward
from training.shape import Shape
from training.siblings import QwenBlock


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate neighbouring pairs (the pairing of GGUF's `llama`); x [batch, heads, tokens, head]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


class Block(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """One transformer layer: grouped-query attention, then a feed-forward net or experts."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width, kv_width = shape.width, shape.num_kv_heads * shape.head_width
        self.attn_norm = nn.RMSNorm(width, eps=shape.norm_epsilon)
        self.attn_q = nn.Linear(width, width, bias=False)
        self.attn_k = nn.Linear(width, kv_width, bias=False)
        self.attn_v = nn.Linear(width, kv_width, bias=False)
        self.attn_output = nn.Linear(width, width, bias=False)
        self.ffn_norm = nn.RMSNorm(width, eps=shape.norm_epsilon)
        self.net = Experts(shape) if shape.num_experts else FeedForward(shape)

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, tokens, width = x.shape

        def heads(projected: Tensor) -> Tensor:
            return projected.view(batch, tokens, -1, self.shape.head_width).transpose(1, 2)

        query = rotate(heads(self.attn_q(x)), cos, sin)
        key = rotate(heads(self.attn_k(x)), cos, sin)
        value = heads(self.attn_v(x))
        group = self.shape.num_heads // self.shape.num_kv_heads
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        joined: Tensor = self.attn_output(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return joined

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Return the layer's output [batch, tokens, width] and its penalty."""
        x = x + self.attend(self.attn_norm(x), cos, sin)
        change, penalty = self.net.feed(self.ffn_norm(x))
        return x + change, penalty


class TinyLlama(nn.Module):  # type: ignore[misc]
    """The whole model; the token embedding is also the output head, at every exit."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocab_size, shape.width)
        self.blk = nn.ModuleList(
            Block(shape) if shape.architecture == "llama" else QwenBlock(shape, layer)
            for layer in range(shape.num_layers)
        )
        self.output_norm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
        half = torch.arange(0, shape.rope_width, 2).float() / shape.rope_width
        angles = torch.outer(torch.arange(shape.context_tokens).float(), shape.rope_base**-half)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.reset()

    def reset(self) -> None:
        """Draw the weights; what writes into the residual stream starts smaller (GPT-2, 2.3)."""
        for name, parameter in self.named_parameters():
            if "ssm_conv1d" in name:
                nn.init.uniform_(parameter, -0.5, 0.5)
            elif parameter.dim() == 2:
                residual = any(part in name for part in ("attn_output", "ffn_down", "ssm_out"))
                scale = 0.02 / math.sqrt(2 * self.shape.num_layers) if residual else 0.02
                nn.init.normal_(parameter, 0.0, scale)

    def hidden(self, ids: Tensor, kept: Tensor | None = None) -> tuple[list[Tensor], Tensor]:
        """Return the states after every layer, [batch, tokens, width] each, and the mean penalty.

        kept f32 [batch, layers]: 0 where a row of the batch leaves a layer out, else 1.
        """
        tokens = ids.shape[1]
        cos, sin = self.cos[:tokens], self.sin[:tokens]
        x: Tensor = self.token_embd(ids)
        states, penalty = [], x.new_zeros(())
        for index, block in enumerate(self.blk):
            y, part = block(x, cos, sin)
            penalty = penalty + part / self.shape.num_layers
            x = y if kept is None else x + kept[:, index, None, None].to(x.dtype) * (y - x)
            states.append(x)
        return states, penalty

    def logits(self, state: Tensor) -> Tensor:
        """Return [..., vocab] f32; every exit shares the final norm and the head."""
        return F.linear(self.output_norm(state), self.token_embd.weight).float()

    def token_losses(self, state: Tensor, targets: Tensor) -> Tensor:
        """Return the cross entropy in nats of each target; [batch, tokens] f32."""
        flat = F.cross_entropy(
            self.logits(state).flatten(0, 1), targets.flatten(), reduction="none"
        )
        return flat.view(targets.shape)

    def forward(
        self, ids: Tensor, targets: Tensor, weights: Tensor, kept: Tensor, exit_at: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weighted mean losses at the end and, on the first rows only, at an exit; and
        the penalty of experts that are used unevenly, 0 without experts.

        ids, targets, weights are [batch, tokens]; kept is as in `hidden`; exit_at f32 [rows,
        layers] is 1 at the exit of each of these rows and 0 elsewhere. A few rows are enough for
        an exit: its head is the model's own, so the loss only has to keep the layer readable.
        """
        states, penalty = self.hidden(ids, kept)
        final = (self.token_losses(states[-1], targets) * weights).sum() / weights.sum()
        rows = len(exit_at)
        early = sum(
            exit_at[:, index, None, None].to(state.dtype) * state[:rows]
            for index, state in enumerate(states)
        )
        part = weights[:rows]
        exit_losses = self.token_losses(early, targets[:rows])
        return final, (exit_losses * part).sum() / part.sum(), penalty
