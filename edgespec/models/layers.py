"""What a layer of a decoder is made of, as data: a mixer of positions, then a feed-forward part.

An architecture (`architectures/`) turns a file's metadata into these once; the reference backend,
the native backend, memory planning and export only read them. Tensors are named as the file names
them. A layer computes, on its residual stream x:

    x += residual_scale * post_norm(mixer(norm(x)))
    x += residual_scale * post_norm(ffn(norm(x)))        each norm where it has one
"""

from __future__ import annotations

from typing import Literal

from edgespec.models.attention import Attention as Attention
from edgespec.models.attention import LatentAttention as LatentAttention
from edgespec.models.parts import Matrix as Matrix
from edgespec.models.parts import Norm as Norm
from edgespec.models.parts import PositionScale as PositionScale
from edgespec.models.parts import Rope as Rope
from edgespec.models.parts import RopeLayout as RopeLayout
from edgespec.system.records import dataclass

Activation = Literal["silu", "gelu", "swiglu_oai"]
"""Of a gated feed-forward part: activation(gate) * up. "gelu" is the tanh approximation;
"swiglu_oai" is gpt-oss': gate and up are clamped to 7, the sigmoid takes 1.702 gate, up is up + 1.
"""
Scoring = Literal["softmax", "sigmoid", "softmax_of_chosen"]


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """A state [key_dim, value_dim] for each value head, decayed and corrected by every position.

    Source: "Gated Delta Networks: Improving Mamba2 with Delta Rule", equation 10; a causal
    convolution over `conv_width` positions comes before, a norm gated by silu(z) after.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    qkv: Matrix
    """Channels of all queries, keys, then values."""
    z: Matrix
    alpha: Matrix
    beta: Matrix
    conv: str
    """[channels, conv_width]."""
    dt_bias: str
    """[value_heads]."""
    decay: str
    """[value_heads]: -exp(A), as the file has it."""
    norm: Norm
    """Of each value head."""
    output: Matrix

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        return self.qkv, self.z, self.alpha, self.beta, self.output


@dataclass(frozen=True, slots=True)
class ShortConv:
    """c * conv(b * x) over `conv_width` positions, of [b, c, x] = projection (LFM2)."""

    conv_width: int
    projection: Matrix
    """[3 dim, dim]."""
    conv: str
    """[dim, conv_width]."""
    output: Matrix

    @property
    def channels(self) -> int:
        return self.projection.rows // 3

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        return self.projection, self.output


@dataclass(frozen=True, slots=True)
class Mamba2:
    """A state [head_dim, state_dim] for each head, decayed by every position.

    Source: "Transformers are SSMs", section 7. The projection gives [z, x, B, C, dt]; `groups` of
    heads share B and C.
    """

    heads: int
    head_dim: int
    state_dim: int
    groups: int
    conv_width: int
    projection: Matrix
    conv: str
    """[channels of x, B, C; conv_width]."""
    conv_bias: str
    dt_bias: str
    decay: str
    """[heads]: -exp(A), as the file has it."""
    skip: str
    """[heads]: D."""
    norm: Norm
    """Of each group's channels, after the gate silu(z); every group has gains of its own."""
    output: Matrix

    @property
    def channels(self) -> int:
        return self.heads * self.head_dim + 2 * self.groups * self.state_dim

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        return self.projection, self.output


Mixer = Attention | LatentAttention | GatedDeltaNet | ShortConv | Mamba2
Recurrent = GatedDeltaNet | ShortConv | Mamba2
"""Mixers that keep a state of fixed size instead of keys and values."""


@dataclass(frozen=True, slots=True)
class Dense:
    """down(activation(gate(x)) * up(x))."""

    width: int
    gate: Matrix
    up: Matrix
    down: Matrix
    activation: Activation = "silu"
    cutoff: float = 0.0
    """Above 0, gate(x) becomes max(0, gate(x) - mean - cutoff * standard deviation) over its own
    numbers, the deviation with width - 1 degrees of freedom (Gemma 3n).
    """

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        return self.gate, self.up, self.down


@dataclass(frozen=True, slots=True)
class Moe:
    """A mixture of experts: the router chooses `active` of `experts` for each position.

    Scores are of all experts, except "softmax_of_chosen". The choice is by score plus
    `choice_bias`; weights are scores, made to sum to 1 where `renormalise`, times `scale`.
    """

    experts: int
    active: int
    width: int
    router: Matrix
    gate: Matrix
    up: Matrix
    down: Matrix
    scoring: Scoring = "softmax"
    activation: Activation = "silu"
    choice_bias: str = ""
    renormalise: bool = False
    scale: float = 1.0
    groups: int = 1
    """Experts are in so many groups, of which the best `active_groups` take part."""
    active_groups: int = 1
    weigh_input: bool = False
    """The weight multiplies an expert's input instead of its output (Llama 4)."""
    expert_scale: str = ""
    """A vector [experts] that multiplies their outputs."""
    shared: Dense | None = None
    """An expert that every position goes through."""
    shared_gate: Matrix | None = None
    """[1, dim]: the shared expert's output is multiplied by its sigmoid."""
    router_norm: Norm | None = None
    """Where the router does not read what the experts read, but the residual stream through this
    norm (Gemma 4).
    """
    router_scale: float = 1.0
    """The router's products are multiplied by it."""
    beside: Dense | None = None
    """A dense part beside the experts, with norms of its own: before it `ffn_norm`; before the
    experts `experts_norm`; and after either, before they are added (Gemma 4).
    """
    experts_norm: Norm | None = None
    beside_post_norm: Norm | None = None
    experts_post_norm: Norm | None = None

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        dense = tuple(m for part in (self.shared, self.beside) if part for m in part.matrices)
        gate = () if self.shared_gate is None else (self.shared_gate,)
        return self.router, self.gate, self.up, self.down, *dense, *gate


Ffn = Dense | Moe


@dataclass(frozen=True, slots=True)
class PerLayerInput:
    """x += norm(projection(gelu(gate(x)) * e)); e is the layer's embedding of the token (Gemma)."""

    gate: Matrix
    projection: Matrix
    norm: Norm


@dataclass(frozen=True, slots=True)
class Laurel:
    """n + norm(right(left(n))) of the mixer's normed input n; the layer's mixer part becomes
    (x + mixed + that) / sqrt(2) (Gemma 3n).
    """

    left: Matrix
    right: Matrix
    norm: Norm


@dataclass(frozen=True, slots=True)
class AltUp:
    """How a layer works on one of several residual streams and predicts the others (Gemma 3n).

    modes(v) = tanh(router(router_norm(v) / dim)). Before the layer, stream r is predicted as
    x_r + sum_s C[r, s] x_s with C = predict(modes(x_0)) as [streams, streams]; the layer maps
    prediction 0 to y. After it, stream r is prediction r + (1 + c[r]) (y - prediction 0) with
    c = correct(modes(y)). The per-layer input is computed from stream 0 times `correct_scale` and
    added to the other streams. Source: "Alternating Updates for Efficient Transformers".
    """

    router: Matrix
    """[streams, dim]."""
    router_norm: Norm
    predict: Matrix
    """[streams * streams, streams]."""
    correct: Matrix
    """[streams, streams]."""
    correct_scale: str
    """A vector [dim]."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer; see the top of this file for what it computes."""

    mixer: Mixer
    ffn: Ffn | None
    mixer_norm: Norm | None = None
    mixer_post_norm: Norm | None = None
    ffn_norm: Norm | None = None
    ffn_post_norm: Norm | None = None
    residual_scale: float = 1.0
    per_layer: PerLayerInput | None = None
    output_scale: str = ""
    """A vector [1] that multiplies the residual stream in the end."""
    laurel: Laurel | None = None
    altup: AltUp | None = None

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        more: tuple[Matrix, ...] = ()
        if self.per_layer is not None:
            more += self.per_layer.gate, self.per_layer.projection
        if self.laurel is not None:
            more += self.laurel.left, self.laurel.right
        if self.altup is not None:
            more += (self.altup.router,)  # the others are a few numbers
        return (*self.mixer.matrices, *(self.ffn.matrices if self.ffn else ()), *more)

    @property
    def size(self) -> int:
        """Numbers in its matrices that a position goes through."""
        inactive = 0
        if isinstance(self.ffn, Moe):
            all_experts = sum(part.size for part in (self.ffn.gate, self.ffn.up, self.ffn.down))
            inactive = all_experts * (self.ffn.experts - self.ffn.active) // self.ffn.experts
        return sum(matrix.size for matrix in self.matrices) - inactive


def attention_of(layer: LayerSpec) -> Attention | None:
    """A layer's attention, latent attention as what a cache keeps of it; None of other mixers."""
    mixer = layer.mixer
    if isinstance(mixer, LatentAttention):
        return mixer.absorbed
    return mixer if isinstance(mixer, Attention) else None
