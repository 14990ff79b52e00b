"""What all heads have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from training.heads.unroll import Memory

Kind = Literal["eagle3", "mtp"]


@dataclass(frozen=True, slots=True)
class HeadShape:
    """What a head has of its own; its width, heads, norms and positions are the trunk's."""

    kind: Kind = "eagle3"
    # An EAGLE-3 head's alone; an MTP block is one more of the trunk's layers.
    taps: tuple[int, int, int] = (2, 3, 4)  # reads what goes into these layers, counted from 0
    num_kv_heads: int = 4
    ffn_width: int = 768
    draft_vocab: int = 2048  # its tokens, the most frequent ones; 0: all, through the trunk's head


class Head(Protocol):
    """A head, run one token further by each step."""

    shape: HeadShape

    def features(self, states: list[Tensor]) -> Tensor:
        """Return what the head reads of the trunk's states after every layer; [batch, tokens, n].

        Shapes and names of the trunk's states are those of `TinyLlama.hidden`.
        """

    def start(self, features: Tensor) -> Tensor:
        """Return the state before the first step; [batch, tokens, width]."""

    def step(self, state: Tensor, following: Tensor, memory: Memory) -> Tensor:
        """Return the next state; `following` [batch, tokens, width] are the tokens after."""

    def logits(self, state: Tensor) -> Tensor:
        """Return [..., number of draft tokens] f32."""
