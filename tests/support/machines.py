"""Invented machines and models for the tests of everything that plans."""

from __future__ import annotations

import math

from edgespec.memory.plan.calibration import LIBRARIES, Runtime
from edgespec.models.layers import Attention, Dense, LayerSpec, Matrix, Norm, Rope
from edgespec.models.spec import ModelSpec, TensorInfo, TensorType
from edgespec.system.hardware import Hardware, MemorySnapshot

MIB = 1024**2
GIB = 1024**3
HELD = 40 * MIB

READY = Runtime(100 * MIB, 0, frozenset(LIBRARIES), "ready")


def memory(
    total: int,
    available: int,
    *,
    limit: int | None = None,
    used: int = 0,
    held: int = HELD,
    swap: int = 0,
) -> MemorySnapshot:
    return MemorySnapshot(total, available, limit, used, swap, held)


LAPTOP = memory(8 * GIB, 5 * GIB, swap=2 * GIB)
BOARD = memory(2 * GIB, 1400 * MIB)
CONTAINER = memory(64 * GIB, 50 * GIB, limit=512 * MIB, used=60 * MIB)
CI = memory(16 * GIB, 12 * GIB, limit=7 * GIB, used=3 * GIB)
MACHINES = {"laptop 8 GB": LAPTOP, "board 2 GB": BOARD, "container 512 MB": CONTAINER, "CI": CI}


def cores(physical: int, *, logical: int | None = None, quota: float | None = None) -> Hardware:
    logical = logical or physical
    return Hardware("invented", physical, logical, logical, physical, quota, ("avx2",))


def _layer(
    number: int, *, dim: int, heads: int, kv_heads: int, head_dim: int, ffn: int
) -> LayerSpec:
    """A layer of a Llama."""
    block, queries, pairs = f"blk.{number}.", heads * head_dim, kv_heads * head_dim
    attention = Attention(
        heads,
        kv_heads,
        head_dim,
        query=Matrix(f"{block}attn_q.weight", queries, dim),
        key=Matrix(f"{block}attn_k.weight", pairs, dim),
        value=Matrix(f"{block}attn_v.weight", pairs, dim),
        output=Matrix(f"{block}attn_output.weight", dim, queries),
        rope=Rope(10000.0, head_dim, "interleaved"),
        scale=head_dim**-0.5,
    )
    gate, up = (Matrix(f"{block}ffn_{part}.weight", ffn, dim) for part in ("gate", "up"))
    dense = Dense(ffn, gate=gate, up=up, down=Matrix(f"{block}ffn_down.weight", dim, ffn))
    norms = (Norm(f"{block}{part}_norm.weight", dim) for part in ("attn", "ffn"))
    return LayerSpec(attention, dense, mixer_norm=next(norms), ffn_norm=next(norms))


def model(
    *,
    head_dim: int | None = None,
    dim: int = 256,
    layers: int = 4,
    heads: int = 4,
    kv_heads: int = 2,
    ffn: int = 768,
    vocab: int = 8000,
    context: int = 4096,
    kind: TensorType = TensorType.Q4_0,
    tied: bool = False,
) -> tuple[ModelSpec, list[TensorInfo]]:
    """A Llama-shaped model without a file."""
    head_dim = head_dim or dim // heads
    spec = ModelSpec(
        architecture="llama",
        name="invented",
        dim=dim,
        vocab_size=vocab,
        context_length=context,
        norm_epsilon=1e-5,
        layers=tuple(
            _layer(number, dim=dim, heads=heads, kv_heads=kv_heads, head_dim=head_dim, ffn=ffn)
            for number in range(layers)
        ),
        head="token_embd.weight" if tied else "output.weight",
    )
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, dim)}
    if not tied:
        shapes["output.weight"] = (vocab, dim)
    shapes["output_norm.weight"] = (dim,)
    kv_dim = kv_heads * head_dim
    for layer in range(layers):
        for part, shape in {
            "attn_norm": (dim,), "ffn_norm": (dim,), "attn_q": (dim, dim),
            "attn_k": (kv_dim, dim), "attn_v": (kv_dim, dim), "attn_output": (dim, dim),
            "ffn_gate": (ffn, dim), "ffn_up": (ffn, dim), "ffn_down": (dim, ffn),
        }.items():  # fmt: skip
            shapes[f"blk.{layer}.{part}.weight"] = shape
    return spec, [tensor(name, shape, kind) for name, shape in shapes.items()]


def tensor(name: str, shape: tuple[int, ...], kind: TensorType) -> TensorInfo:
    kind = TensorType.F32 if len(shape) == 1 else kind
    size = math.prod(shape[:-1]) * kind.row_bytes(shape[-1])
    return TensorInfo(name, shape, kind, 0, size)
