"""Hyper-parameters of the models that the recipe can train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# The architectures are those of GGUF: a Llama (with experts: a Mixtral), the hybrid of gated delta
# net and attention layers of Qwen3.5, with and without experts, and the mixture of Qwen3.
Architecture = Literal["llama", "qwen35", "qwen35moe", "qwen3moe"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Hyper-parameters as GGUF names them; widths are multiples of 256 for llama.cpp's K-quants."""

    width: int = 512
    num_layers: int = 5
    num_heads: int = 8
    num_kv_heads: int = 2
    ffn_width: int = 1024  # of one expert where there are experts
    vocab_size: int = 6144
    context_tokens: int = 1024
    exit_layer: int = 2
    rope_base: float = 10_000.0
    norm_epsilon: float = 1e-5
    architecture: Architecture = "llama"
    attention_interval: int = 3  # of a hybrid: every third layer attends, the others are delta nets
    state_width: int = 64  # of a delta net's keys and values
    num_key_heads: int = 2
    num_value_heads: int = 4
    conv_tokens: int = 4
    num_experts: int = 0  # of a mixture; 0: one net for every token
    num_experts_used: int = 2
    shared_width: int = 0  # of the expert beside them that reads every token; 0: there is none

    @property
    def head_width(self) -> int:
        return self.width // self.num_heads

    @property
    def is_hybrid(self) -> bool:
        """Whether some layers are gated delta nets."""
        return self.architecture in ("qwen35", "qwen35moe")

    @property
    def rope_width(self) -> int:
        """How much of a head is rotated: delta nets know the order, so a quarter will do."""
        return self.head_width // 4 if self.is_hybrid else self.head_width

    def is_attention(self, layer: int) -> bool:
        """Return whether a layer attends to all tokens, rather than to a state of fixed size."""
        return not self.is_hybrid or (layer + 1) % self.attention_interval == 0


SHAPES = {
    "tiny": Shape(),
    # A fifth of the parameters with the same vocabulary: it drafts for the other.
    "draft": Shape(width=256, num_layers=2, num_heads=4, ffn_width=768, exit_layer=1),
    # Siblings to measure on: the mixers that large models have, in a size that learns in minutes.
    "hybrid": Shape(
        architecture="qwen35", width=256, num_layers=6, num_heads=4, ffn_width=768, exit_layer=3
    ),
    "experts": Shape(
        architecture="qwen3moe",
        width=256,
        num_layers=5,
        num_heads=4,
        ffn_width=256,
        num_experts=8,
    ),
    # The bundled model with eight nets in the place of one, to start from its weights.
    "mixture": Shape(num_experts=8),
    # The bundled model with delta nets in the place of four of its five attention layers, likewise.
    "tiny-hybrid": Shape(architecture="qwen35", num_key_heads=4, num_value_heads=8),
    # That hybrid with eight nets in the place of one, and a small one for every token.
    "hybrid-mixture": Shape(
        architecture="qwen35moe",
        num_key_heads=4,
        num_value_heads=8,
        num_experts=8,
        shared_width=256,
    ),
}
