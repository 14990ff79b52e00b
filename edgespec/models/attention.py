"""Attention, as data: grouped-query attention, and attention to latent vectors."""

from __future__ import annotations

from edgespec.models.parts import Matrix, Norm, PositionScale, Rope
from edgespec.system.records import dataclass


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention; scores are `scale` query . key."""

    heads: int
    kv_heads: int
    head_dim: int
    query: Matrix
    key: Matrix | None
    """None where keys and values of layer `shares` are read."""
    value: Matrix | None
    """None where the values are the keys, before norm and rotation, or another layer's."""
    output: Matrix
    rope: Rope | None
    scale: float
    query_norm: Norm | None = None
    """Of each head, or of all heads together where it is that wide; before the rotation."""
    key_norm: Norm | None = None
    value_norm: Norm | None = None
    norm_after_rope: bool = False
    window: int = 0
    """Positions that a position sees, its own and those just before; 0 is all."""
    chunk: int = 0
    """A position sees those of its own chunk of so many only; 0 is all."""
    softcap: float = 0.0
    """Scores are softcap * tanh(score / softcap); 0 is without."""
    sinks: str = ""
    """A vector [heads] of scores that take part in the softmax and have no value."""
    gate: Matrix | None = None
    """What is mixed is multiplied by its sigmoid."""
    shares: int | None = None
    """An earlier layer whose keys and values this one reads."""
    position_scale: PositionScale | None = None
    latent: int = 0
    """Where values are the first so many numbers of the keys, and kept as such; 0: they are not."""

    @property
    def value_dim(self) -> int:
        """Width of a head's values."""
        return self.latent or self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width of one position's keys (or values)."""
        return self.kv_heads * self.head_dim

    @property
    def reach(self) -> int:
        """Positions that stay of use, its own and those before; 0 is all."""
        return self.window or self.chunk

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        parts = (self.query, self.key, self.value, self.gate, self.output)
        return tuple(part for part in parts if part is not None)


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Attention whose keys and values are kept as one latent vector a position (MLA).

    A head's key is key_up[head] x latent, then the rotated key that all heads share; its value is
    value_up[head] x latent; its query is nope_dim numbers, then rope.dim numbers that are rotated.
    Scores are `scale` query . key. Source: "DeepSeek-V2", section 2.1.
    """

    heads: int
    nope_dim: int
    value_dim: int
    query: Matrix
    """[heads * nope_dim, dim, or query_down.rows]: what is not rotated of queries."""
    rope_query: Matrix
    """[heads * rope.dim, dim, or query_down.rows]: what is."""
    latent: Matrix
    """[width of the latent vector, dim]."""
    rope_key: Matrix
    """[rope.dim, dim]."""
    latent_norm: Norm
    key_up: Matrix
    """[heads * nope_dim, latent]; or, where `transposed`, experts = heads of [latent, nope_dim]."""
    value_up: Matrix
    """[heads * value_dim, latent]; or, where `transposed`, experts = heads of [value_dim, latent].
    """
    output: Matrix
    rope: Rope
    scale: float
    query_down: Matrix | None = None
    query_norm: Norm | None = None
    """Of what `query_down` gives."""
    transposed: bool = False
    position_scale: PositionScale | None = None

    @property
    def latent_dim(self) -> int:
        """Width of the latent vector."""
        return self.latent.rows

    @property
    def absorbed(self) -> Attention:
        """The same as attention of one key head, which is the latent vector and the rotated key:
        its queries are key_up transposed x queries, and value_up x what it mixes is what is mixed.
        """
        return Attention(
            self.heads,
            1,
            self.latent_dim + self.rope.dim,
            self.query,
            self.latent,
            None,
            self.output,
            self.rope,
            self.scale,
            position_scale=self.position_scale,
            latent=self.latent_dim,
        )

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        down = () if self.query_down is None else (self.query_down,)
        keys, ups = (self.latent, self.rope_key), (self.key_up, self.value_up)
        return self.query, self.rope_query, *down, *keys, *ups, self.output
