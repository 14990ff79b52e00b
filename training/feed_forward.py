"""Feed-forward nets: one for every token, or a few of many.

Modules are named as GGUF names their tensors.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.shape import Shape


class FeedForward(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A gated feed-forward net."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.ffn_gate = nn.Linear(shape.width, shape.ffn_width, bias=False)
        self.ffn_up = nn.Linear(shape.width, shape.ffn_width, bias=False)
        self.ffn_down = nn.Linear(shape.ffn_width, shape.width, bias=False)

    def feed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output, and no penalty."""
        return self.ffn_down(F.silu(self.ffn_gate(x)) * self.ffn_up(x)), x.new_zeros(())


class Experts(nn.Module):  # type: ignore[misc]
    """A few of many feed-forward nets for each token; the weights of its few add up to 1. One more
    may be there for all tokens, as far as a gate lets it.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        all_widths = shape.num_experts * shape.ffn_width
        self.ffn_gate_inp = nn.Linear(shape.width, shape.num_experts, bias=False)
        self.ffn_gate_exps = nn.Linear(shape.width, all_widths, bias=False)
        self.ffn_up_exps = nn.Linear(shape.width, all_widths, bias=False)
        self.ffn_down_exps = nn.Linear(all_widths, shape.width, bias=False)
        if shape.shared_width:
            self.ffn_gate_inp_shexp = nn.Linear(shape.width, 1, bias=False)
            self.ffn_gate_shexp = nn.Linear(shape.width, shape.shared_width, bias=False)
            self.ffn_up_shexp = nn.Linear(shape.width, shape.shared_width, bias=False)
            self.ffn_down_shexp = nn.Linear(shape.shared_width, shape.width, bias=False)

    def feed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output, and a penalty that is 1 where all experts are used alike.

        "Switch Transformers: Scaling to Trillion Parameter Models with Simple and Efficient
        Sparsity", equation 4.
        """
        shape = self.shape
        flat = x.flatten(0, 1)
        shares = self.ffn_gate_inp(flat).float().softmax(-1)
        top, chosen = shares.topk(shape.num_experts_used, -1)
        out = self.mixed(flat, chosen, top / top.sum(-1, keepdim=True))
        use = F.one_hot(chosen, shape.num_experts).sum(1).float().mean(0) / shape.num_experts_used
        penalty = shape.num_experts * (use * shares.mean(0)).sum()
        if shape.shared_width:
            inner = F.silu(self.ffn_gate_shexp(flat)) * self.ffn_up_shexp(flat)
            out = out + self.ffn_gate_inp_shexp(flat).sigmoid() * self.ffn_down_shexp(inner)
        return out.view(x.shape), penalty

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # sizes are others every time
    def mixed(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted outputs of the chosen experts; each reads its own tokens only.

        x is [tokens, width]; chosen and weights are [tokens, used].
        """
        parts = [
            layer.weight.chunk(self.shape.num_experts, dim)
            for layer, dim in (
                (self.ffn_gate_exps, 0),
                (self.ffn_up_exps, 0),
                (self.ffn_down_exps, 1),
            )
        ]
        out = torch.zeros_like(x)
        for expert, (gate, up, down) in enumerate(zip(*parts, strict=True)):
            tokens, places = (chosen == expert).nonzero(as_tuple=True)
            own = x[tokens]
            read = F.linear(F.silu(F.linear(own, gate)) * F.linear(own, up), down)
            out = out.index_add(0, tokens, (weights[tokens, places, None] * read).to(out.dtype))
        return out
