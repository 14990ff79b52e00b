"""A block that predicts one token further than its trunk: the `nextn` layer of GGUF's `qwen35` and
`qwen35moe`.

"DeepSeek-V3 Technical Report", section 2.2. Modules are named as the tensors of the layer; what
they compute is what llama.cpp computes with them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.feed_forward import Experts, FeedForward
from training.heads.head import HeadShape
from training.heads.unroll import Memory
from training.model import TinyLlama
from training.siblings import Attention


class MtpBlock(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """One more attention layer of a hybrid, fed with a state and the next token."""

    def __init__(self, trunk: TinyLlama, shape: HeadShape) -> None:
        super().__init__()
        if not trunk.shape.is_hybrid:
            raise ValueError("only the hybrid's files have a place for an MTP block")
        width, epsilon = trunk.shape.width, trunk.shape.norm_epsilon
        self.shape = shape
        self.trunk = (trunk,)  # in a tuple, since the trunk is no part of the block
        self.nextn = nn.ModuleDict(
            {
                "enorm": nn.RMSNorm(width, eps=epsilon),
                "hnorm": nn.RMSNorm(width, eps=epsilon),
                "eh_proj": nn.Linear(2 * width, width, bias=False),
                "shared_head_norm": nn.RMSNorm(width, eps=epsilon),
            }
        )
        self.attn_norm = nn.RMSNorm(width, eps=epsilon)
        self.mixer = Attention(trunk.shape)
        self.post_attention_norm = nn.RMSNorm(width, eps=epsilon)
        self.net = Experts(trunk.shape) if trunk.shape.num_experts else FeedForward(trunk.shape)
        self.reset()

    def reset(self) -> None:
        """Start as the trunk's own last state, read by its own head."""
        (trunk,) = self.trunk
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, 0.0, 0.02)
        for name, parameter in self.named_parameters():
            if "attn_output" in name or "ffn_down" in name:
                nn.init.normal_(parameter, 0.0, 0.005)
        with torch.no_grad():
            width = trunk.shape.width
            self.nextn["eh_proj"].weight[:, width:] += torch.eye(width)
            # What it reads has been scaled by the trunk's norm already.
            scale = trunk.output_norm.weight.square().mean().sqrt()
            self.nextn["shared_head_norm"].weight.fill_(scale)

    def features(self, states: list[Tensor]) -> Tensor:
        (trunk,) = self.trunk
        normed: Tensor = trunk.output_norm(states[-1])
        return normed

    def start(self, features: Tensor) -> Tensor:
        return features

    def step(self, state: Tensor, following: Tensor, memory: Memory) -> Tensor:
        (trunk,) = self.trunk
        both = (self.nextn["enorm"](following), self.nextn["hnorm"](state))
        x = self.nextn["eh_proj"](torch.cat(both, -1))
        tokens = x.shape[1]
        *heads, gate = self.mixer.heads(self.attn_norm(x), trunk.cos[:tokens], trunk.sin[:tokens])
        x = x + self.mixer.joined(memory.attend(*heads), gate)
        x = x + self.net.feed(self.post_attention_norm(x))[0]
        out: Tensor = self.nextn["shared_head_norm"](x)
        return out

    def logits(self, state: Tensor) -> Tensor:
        (trunk,) = self.trunk
        return F.linear(state, trunk.token_embd.weight).float()
