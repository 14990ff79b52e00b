"""What layers are described with: matrices, norms and rotations, by the tensors that hold them."""

from __future__ import annotations

from typing import Literal

from edgespec.system.records import dataclass

RopeLayout = Literal["interleaved", "halves"]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix [rows, columns]: a tensor of the file, or those of its rows that belong to it.

    Of every `stride` rows of the tensor from row `first` on, `run` belong to it; fused projections
    are several matrices of one tensor that way. `stride` 0: all rows in a row. With `experts` the
    tensor is [experts, ...], and this is one such matrix for each.
    """

    tensor: str
    rows: int
    columns: int
    first: int = 0
    run: int = 0
    stride: int = 0
    experts: int = 1
    bias: str = ""
    """A vector [rows], or [experts, rows], cut like the rows; "" for none."""

    @property
    def size(self) -> int:
        """Numbers in it, all experts'."""
        return self.experts * self.rows * self.columns


@dataclass(frozen=True, slots=True)
class Norm:
    """Root mean square norm over `width` numbers; without a tensor there is no gain."""

    tensor: str
    width: int
    groups: int = 1
    """So many runs of `width` numbers have gains of their own: the tensor is [groups, width]."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding of the leading `dim` numbers of a head.

    Frequencies are base**(-2 i / dim), times `scale` (linear interpolation), or between both as
    YaRN's ramp says where `yarn` is above 0, divided by the factors where there are any. Sources:
    "RoFormer"; "YaRN: Efficient Context Window Extension of Large Language Models", section 3;
    "LongRoPE".
    """

    base: float
    dim: int
    layout: RopeLayout
    scale: float = 1.0
    factors: str = ""
    """A tensor [dim / 2] of divisors."""
    long_factors: str = ""
    """Divisors used instead in contexts longer than `original_context`."""
    original_context: int = 0
    """Positions the model was trained on before its context was extended."""
    yarn: float = 0.0
    """Share of the extrapolated frequencies in the ramp: llama.cpp's `ext_factor`."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    magnitude: float = 1.0
    """Cosines and sines are multiplied by it."""


@dataclass(frozen=True, slots=True)
class PositionScale:
    """Queries at position p are multiplied by 1 + slope ln(1 + floor((p + offset) / span))."""

    span: int
    slope: float
    offset: float = 0.0
