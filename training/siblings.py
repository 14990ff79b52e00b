"""The layers of the bundled model's siblings: Qwen3's attention, Qwen3.5's gated delta nets.

Modules are named as GGUF names their tensors.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.device import autocast
from training.feed_forward import Experts, FeedForward
from training.shape import Shape

CHUNK_TOKENS = 64


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first half of the first dimensions with the second half, as both Qwens pair them.

    x is [batch, heads, tokens, head]; cos and sin are [tokens, rotated / 2].
    """
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    turned = (first * cos - second * sin, first * sin + second * cos, rest)
    return torch.cat(turned, -1).to(x.dtype)


def gated_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, rate: Tensor
) -> Tensor:
    """Return what a gated delta net reads, token by token, from a state that starts at zero.

    query, key and value are f32 [batch, heads, tokens, width]; decay (a logarithm, at most 0) and
    rate are f32 [batch, heads, tokens]. For every token, state = exp(decay) state; state += rate
    key (value - state key); read = state query.

    "Gated Delta Networks: Improving Mamba2 with Delta Rule", section 3.3: within a chunk, all
    corrections are the solution of one triangular system; only the chunks follow one another.
    """
    tokens = query.shape[2]
    padding = -tokens % CHUNK_TOKENS

    def chunks(x: Tensor) -> Tensor:
        padded = F.pad(x, (0, 0) * (x.dim() - 3) + (0, padding))
        return padded.unflatten(2, (-1, CHUNK_TOKENS))

    query, key, value, decay, rate = map(chunks, (query, key, value, decay, rate))
    total = decay.cumsum(-1)
    earlier = torch.ones(CHUNK_TOKENS, CHUNK_TOKENS, dtype=torch.bool).tril()
    between = total[..., :, None] - total[..., None, :]
    kept = torch.where(earlier, between, -torch.inf).exp()
    overlap = (rate[..., None] * key) @ key.transpose(-1, -2) * kept
    system = overlap.tril(-1) + torch.eye(CHUNK_TOKENS)
    fading = total.exp()[..., None]
    sides = torch.cat((rate[..., None] * value, rate[..., None] * fading * key), -1)
    solved = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
    fresh, stale = solved.split((value.shape[-1], key.shape[-1]), -1)
    within = query @ key.transpose(-1, -2) * kept
    to_end = (total[..., -1:] - total).exp()[..., None] * key
    state = torch.zeros(*query.shape[:2], key.shape[-1], value.shape[-1])
    reads = []
    for chunk in range(query.shape[2]):
        change = fresh[:, :, chunk] - stale[:, :, chunk] @ state
        reads.append((fading * query)[:, :, chunk] @ state + within[:, :, chunk] @ change)
        state = fading[:, :, chunk, -1:] * state + to_end[:, :, chunk].transpose(-1, -2) @ change
    return torch.cat(reads, 2)[:, :, :tokens]


class Attention(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Grouped-query attention with normalised heads; Qwen3.5's has a gate beside the query."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.gated = shape.is_hybrid
        kv_width = shape.num_kv_heads * shape.head_width
        self.attn_q = nn.Linear(shape.width, shape.width * (1 + self.gated), bias=False)
        self.attn_k = nn.Linear(shape.width, kv_width, bias=False)
        self.attn_v = nn.Linear(shape.width, kv_width, bias=False)
        self.attn_q_norm = nn.RMSNorm(shape.head_width, eps=shape.norm_epsilon)
        self.attn_k_norm = nn.RMSNorm(shape.head_width, eps=shape.norm_epsilon)
        self.attn_output = nn.Linear(shape.width, shape.width, bias=False)

    def heads(
        self, x: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return query, key and value [batch, heads, tokens, head], and a gate or None."""
        batch, tokens, _ = x.shape
        shape = self.shape

        def split(projected: Tensor, count: int) -> Tensor:
            return projected.view(batch, tokens, count, -1).transpose(1, 2)

        query = split(self.attn_q(x), shape.num_heads)
        query, gate = query.split(shape.head_width, -1) if self.gated else (query, None)
        query = rotate_halves(self.attn_q_norm(query), cos, sin)
        key = rotate_halves(self.attn_k_norm(split(self.attn_k(x), shape.num_kv_heads)), cos, sin)
        value = split(self.attn_v(x), shape.num_kv_heads)
        group = shape.num_heads // shape.num_kv_heads
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        return query, key.to(query.dtype), value.to(query.dtype), gate

    def joined(self, read: Tensor, gate: Tensor | None) -> Tensor:
        """Return what the heads read, gated and projected; [batch, tokens, width]."""
        if gate is not None:
            read = read * gate.sigmoid()
        out: Tensor = self.attn_output(read.transpose(1, 2).flatten(2))
        return out

    def mix(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        query, key, value, gate = self.heads(x, cos, sin)
        read = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.joined(read, gate)


class DeltaNet(nn.Module):  # type: ignore[misc]
    """Qwen3.5's recurrent mixer: a short convolution, the gated delta rule, a gated norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        key_width = shape.num_key_heads * shape.state_width
        value_width = shape.num_value_heads * shape.state_width
        self.attn_qkv = nn.Linear(shape.width, 2 * key_width + value_width, bias=False)
        self.attn_gate = nn.Linear(shape.width, value_width, bias=False)
        self.ssm_conv1d = nn.Linear(shape.conv_tokens, 2 * key_width + value_width, bias=False)
        self.ssm_alpha = nn.Linear(shape.width, shape.num_value_heads, bias=False)
        self.ssm_beta = nn.Linear(shape.width, shape.num_value_heads, bias=False)
        # Mamba's start: from slow to fast forgetting, a rate for each head. The file holds
        # ssm_a = -exp(ssm_a_log).
        spread = torch.linspace(0, 1, shape.num_value_heads)
        self.ssm_a_log = nn.Parameter(torch.log(1 + 15 * spread))
        step = torch.exp(math.log(1e-3) + spread.flip(0) * math.log(100))
        self.ssm_dt = nn.ParameterDict({"bias": torch.log(torch.expm1(step))})
        self.ssm_norm = nn.RMSNorm(shape.state_width, eps=shape.norm_epsilon)
        self.ssm_out = nn.Linear(value_width, shape.width, bias=False)

    def mix(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        shape = self.shape
        taps = self.ssm_conv1d.weight
        padded = F.pad(self.attn_qkv(x).float(), (0, 0, shape.conv_tokens - 1, 0))
        mixed = F.silu(sum(taps[:, i] * padded[:, i : i + tokens] for i in range(len(taps[0]))))
        heads = mixed.view(batch, tokens, -1, shape.state_width).transpose(1, 2)
        query, key, value = heads.split(
            (shape.num_key_heads, shape.num_key_heads, shape.num_value_heads), 1
        )
        # The state's heads take the key heads in turn: 0, 1, 0, 1.
        turns = shape.num_value_heads // shape.num_key_heads
        query = self.unit(query).repeat(1, turns, 1, 1) * shape.state_width**-0.5
        key = self.unit(key).repeat(1, turns, 1, 1)
        step = F.softplus(self.ssm_alpha(x).float() + self.ssm_dt["bias"])
        decay = (-self.ssm_a_log.exp() * step).transpose(1, 2)
        rate = self.ssm_beta(x).float().sigmoid().transpose(1, 2)
        with autocast(False):
            read = gated_delta_rule(query, key, value, decay, rate)
        gate = F.silu(self.attn_gate(x).float())
        normed = self.ssm_norm(read.transpose(1, 2)).flatten(2)
        out: Tensor = self.ssm_out(normed * gate)
        return out

    def unit(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + self.shape.norm_epsilon)


class QwenBlock(nn.Module):  # type: ignore[misc]
    """One layer of either Qwen: a mixer, then a feed-forward net."""

    def __init__(self, shape: Shape, layer: int) -> None:
        super().__init__()
        self.attn_norm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
        self.mixer = Attention(shape) if shape.is_attention(layer) else DeltaNet(shape)
        self.norm_name = "post_attention_norm" if shape.is_hybrid else "ffn_norm"
        self.add_module(self.norm_name, nn.RMSNorm(shape.width, eps=shape.norm_epsilon))
        self.net = Experts(shape) if shape.num_experts else FeedForward(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Return the layer's output [batch, tokens, width] and its penalty."""
        x = x + self.mixer.mix(self.attn_norm(x), cos, sin)
        change, penalty = self.net.feed(self.get_submodule(self.norm_name)(x))
        return x + change, penalty


def gguf_name(name: str) -> str:
    """Return the name that a parameter has in a GGUF file, where layers have no parts."""
    flat = name.replace(".mixer.", ".").replace(".net.", ".")
    return flat.removesuffix("_log")


def to_gguf(name: str, values: Tensor, shape: Shape) -> Tensor:
    """Return a parameter as a GGUF file holds it: experts apart, the decay's rate itself."""
    if name.endswith("ssm_a_log"):
        return -values.exp()
    if "ffn_down_exps" in name:
        return values.unflatten(1, (shape.num_experts, -1)).transpose(0, 1).contiguous()
    return values.unflatten(0, (shape.num_experts, -1)) if "_exps" in name else values


def from_gguf(name: str, values: Tensor) -> Tensor:
    """Undo `to_gguf`."""
    if name.endswith("ssm_a_log"):
        return torch.log(-values)
    if "ffn_down_exps" in name:
        return values.transpose(0, 1).flatten(1)
    return values.flatten(0, 1) if "_exps" in name else values
