"""What the runtime needs to know about a model: its hyper-parameters and its tensors."""

from __future__ import annotations

import enum
from dataclasses import replace

from edgespec.models.layers import Attention, LayerSpec, Matrix, Moe, Norm, attention_of
from edgespec.system.records import dataclass

IQ4_NL_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What the 16 quantised values of IQ4_NL stand for."""


class TensorType(enum.Enum):
    """A tensor element type as GGUF numbers it: (id, elements per block, bytes per block).

    Source: the GGUF specification, `ggml_type`, and the block structures it refers to.
    """

    F32 = (0, 1, 4)
    F16 = (1, 1, 2)
    Q4_0 = (2, 32, 18)
    Q4_1 = (3, 32, 20)
    Q5_0 = (6, 32, 22)
    Q5_1 = (7, 32, 24)
    Q8_0 = (8, 32, 34)
    Q8_1 = (9, 32, 36)
    Q2_K = (10, 256, 84)
    Q3_K = (11, 256, 110)
    Q4_K = (12, 256, 144)
    Q5_K = (13, 256, 176)
    Q6_K = (14, 256, 210)
    Q8_K = (15, 256, 292)
    IQ2_XXS = (16, 256, 66)
    IQ2_XS = (17, 256, 74)
    IQ3_XXS = (18, 256, 98)
    IQ1_S = (19, 256, 50)
    IQ4_NL = (20, 32, 18)
    IQ3_S = (21, 256, 110)
    IQ2_S = (22, 256, 82)
    IQ4_XS = (23, 256, 136)
    I8 = (24, 1, 1)
    I16 = (25, 1, 2)
    I32 = (26, 1, 4)
    I64 = (27, 1, 8)
    F64 = (28, 1, 8)
    IQ1_M = (29, 256, 56)
    BF16 = (30, 1, 2)
    TQ1_0 = (34, 256, 54)
    TQ2_0 = (35, 256, 66)
    MXFP4 = (39, 32, 17)
    NVFP4 = (40, 64, 36)

    @property
    def type_id(self) -> int:
        return self.value[0]

    @property
    def block_size(self) -> int:
        """Elements per block."""
        return self.value[1]

    @property
    def block_bytes(self) -> int:
        """Bytes per block."""
        return self.value[2]

    def row_bytes(self, num_columns: int) -> int:
        """Bytes of one row of `num_columns` elements (a multiple of `block_size`)."""
        return num_columns // self.block_size * self.block_bytes


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies in its file: shape is NumPy order, [rows, columns] for a matrix."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    """Bytes from the start of the file; of a model in several files, from the first one's."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PerLayerEmbedding:
    """Embeddings of a token for every layer: `table`'s row scaled by the root of `width`, plus the
    normed projection of the token's own embedding over the root of dim; the sum over the root of 2.
    """

    table: Matrix
    """[vocabulary, layers * width]."""
    width: int
    projection: Matrix
    """[layers * width, dim]."""
    norm: Norm


@dataclass(frozen=True, slots=True)
class Streams:
    """Several residual streams, of which layers have `AltUp`s.

    Stream j above 0 starts as projection[j - 1] x embedding, brought to the embedding's length; in
    the end the mean is taken of stream 0 and unembedding[j - 1] x stream j, each brought to stream
    0's length.
    """

    count: int
    projection: Matrix
    """experts = count - 1 of [dim, dim]."""
    unembedding: Matrix


@dataclass(frozen=True, slots=True)
class HeadInput:
    """What a draft head reads in place of a token alone: a token, and a state.

    The state of a position is at first the model's: its residual streams before each of the layers
    `taps` side by side, or what its last norm makes of the stream where a tap is the number of
    layers; through `fusion_norm` and `fusion` where there are any. Of a token that is drafted it is
    the head's own: its stream after its layers, through its last norm where `normed_states`.

    With t = token_norm(the token's embedding) and s = state_norm(the state of the position before),
    the head's stream begins as `projection` x [t, s]; without a projection it begins as the state,
    or s where `normed_stream`, and the first mixer reads [t, s] in place of a normed stream. Where
    there is no norm of either, there is a projection.
    Sources: "DeepSeek-V3 Technical Report", section 2.2; "EAGLE-3: Scaling up Inference
    Acceleration of Large Language Models via Training-Time Test", section 3.
    """

    taps: tuple[int, ...]
    token_norm: Norm | None = None
    state_norm: Norm | None = None
    projection: Matrix | None = None
    """[dim, 2 dim], or 2 times the width of states where there are no norms."""
    normed_stream: bool = False
    fusion: Matrix | None = None
    """[dim, taps * dim of the model]."""
    fusion_norm: Norm | None = None
    """Of all tapped streams together."""
    normed_states: bool = False
    state_projection: Matrix | None = None
    """[width of states, dim]: makes the head's own state of its normed stream."""
    lent_keys: bool = False
    """Its layers keep nothing and read the keys and values of the model's layers that they `share`,
    those of the committed positions; all its tokens stand at the position after these.
    """

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        parts = (self.fusion, self.projection, self.state_projection)
        return tuple(part for part in parts if part is not None)

    @property
    def gathered(self) -> Matrix | None:
        """What multiplies rows that lie side by side: tapped streams, or tokens and states as they
        are.
        """
        return self.projection if self.token_norm is None else self.fusion


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only model as data: its sizes, and what each of its layers computes.

    Between the layers lie the embedding, times `embedding_scale`, and the head: logits are
    `logit_scale` * head x last_norm(x), then `logit_softcap` * tanh(logits / logit_softcap).
    """

    architecture: str
    name: str
    dim: int
    vocab_size: int
    context_length: int
    norm_epsilon: float
    layers: tuple[LayerSpec, ...]
    embedding: str = "token_embd.weight"
    """Of a draft head "" where it reads the model's."""
    head: str = "output.weight"
    """The embedding itself where both are tied; of a draft head "" where it is the model's."""
    last_norm: str = "output_norm.weight"
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    """0 is without."""
    per_layer_embedding: PerLayerEmbedding | None = None
    streams: Streams | None = None
    unused: tuple[str, ...] = ()
    """Tensors of the file that generating text does not read."""
    note: str = ""
    """A sentence about what of the file is not used, "" where all is."""
    num_parameters: int = 0
    refusal: str = ""
    """Why the native and reference backends cannot run the model; "" where they can."""
    recurrent: bool = False
    """It keeps a state that external engines cannot take back by a few tokens."""
    draft_head: ModelSpec | None = None
    """The head that the file brings, which drafts for it."""
    head_input: HeadInput | None = None
    """Of a draft head: what it reads beside tokens."""
    embedded_tokens: int = 0
    """Tokens that can be read where others are written; 0: `vocab_size`."""
    token_ids: str = ""
    """A tensor [vocab_size] of the ids that its logits stand for; "" for 0, 1, 2 ..."""

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def tied_embeddings(self) -> bool:
        return self.head == self.embedding

    @property
    def borrows_keys(self) -> bool:
        """Whether it is a draft head that reads the model's keys and values and has none."""
        return self.head_input is not None and self.head_input.lent_keys

    @property
    def state_dim(self) -> int:
        """Width of a draft head's own states."""
        made = None if self.head_input is None else self.head_input.state_projection
        return self.dim if made is None else made.rows

    @property
    def num_readable(self) -> int:
        """Tokens that it can read."""
        return self.embedded_tokens or self.vocab_size

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """Of the layers that have one; latent attention as what a cache keeps of it."""
        return tuple(own for own in map(attention_of, self.layers) if own is not None)

    @property
    def keeps_latents(self) -> bool:
        """Whether some layers keep latent vectors instead of keys and values."""
        return any(each.latent for each in self.attentions)

    @property
    def num_heads(self) -> int:
        """Of the layer that has most."""
        return max((each.heads for each in self.attentions), default=1)

    @property
    def num_kv_heads(self) -> int:
        """Of the layer that has most."""
        return max((each.kv_heads for each in self.attentions), default=1)

    @property
    def head_dim(self) -> int:
        """Of the layer with the widest heads."""
        return max((each.head_dim for each in self.attentions), default=1)

    @property
    def kv_dim(self) -> int:
        """Width of one position's keys (or values) in one layer, the widest."""
        return max((each.kv_dim for each in self.attentions), default=0)

    @property
    def ffn_dim(self) -> int:
        """Width inside a feed-forward part, of one expert where they are mixed; the widest."""
        return max((each.ffn.width for each in self.layers if each.ffn), default=0)

    @property
    def num_experts(self) -> int:
        """0 where nothing mixes experts."""
        return max((e.ffn.experts for e in self.layers if isinstance(e.ffn, Moe)), default=0)

    def layers_size(self, first: int, last: int) -> int:
        """Numbers that a position goes through in layers `first` .. `last` - 1."""
        return sum(layer.size for layer in self.layers[first:last])

    def first_layers(self, count: int) -> ModelSpec:
        """The model that ends after so many layers."""
        return replace(self, layers=self.layers[:count])
