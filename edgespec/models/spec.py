"""What the runtime needs to know about a model: its hyper-parameters and its tensors."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

RopeLayout = Literal["interleaved", "halves"]

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
class ModelSpec:
    """The hyper-parameters of a decoder-only transformer, as its file states them."""

    architecture: str
    name: str
    num_layers: int
    dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_dim: int
    vocab_size: int
    context_length: int
    norm_epsilon: float
    rope_base: float
    rope_dim: int
    """Leading dimensions of each head that are rotated."""
    rope_layout: RopeLayout
    rope_scale: float = 1.0
    """Positions are multiplied by this (linear scaling: 1 / factor)."""
    tied_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    rope_factors: bool = False
    """The file holds `rope_freqs.weight`: each frequency is divided by its factor (Llama 3.1)."""
    num_parameters: int = 0
    refusal: str = ""
    """Why the native and reference backends cannot run the model; "" where they can."""
    recurrent: bool = False
    """It keeps a state that cannot forget its last tokens."""

    @property
    def layer_weights(self) -> int:
        """Numbers in one layer's matrices."""
        attention = 2 * (self.num_heads * self.head_dim + self.kv_dim)
        return self.dim * (attention + 3 * self.ffn_dim)

    @property
    def kv_dim(self) -> int:
        """Width of one position's keys (or values) in one layer."""
        return self.num_kv_heads * self.head_dim
