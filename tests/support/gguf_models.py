"""Tiny random GGUF models, written in a few milliseconds for tests of every layer above the file.

Weights are seeded noise scaled so that activations stay near one; the vocabulary is a small but
working one (bytes, a few common pieces, control tokens), so that text in and out makes sense.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Merges for the toy vocabularies: each joins pieces that are bytes or were made further up.
_PAIRS = (
    ("_", "t"), ("h", "e"), ("_", "a"), ("i", "n"), ("r", "e"), ("_t", "he"), ("o", "n"),
    ("e", "r"), ("_", "s"), ("_", "w"), ("a", "t"), ("o", "u"), ("n", "d"), ("_a", "nd"),
    ("e", "n"), ("in", "g"), ("_", "o"), ("_", "b"), ("o", "r"), ("a", "n"), ("i", "s"),
    ("i", "t"), ("e", "s"), ("l", "l"), ("_", "c"), ("_", "f"), ("h", "a"), ("a", "r"),
    ("_t", "o"), ("_o", "f"), ("_", "m"), ("e", "d"), ("_", "p"), ("l", "e"), ("_", "d"),
    ("_", "y"), ("_y", "ou"), ("_", "in"), ("_", "_"), ("__", "__"),
)  # fmt: skip


def write_gguf(
    path: str | Path,
    *,
    arch: str = "llama",
    dim: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    ffn: int = 96,
    vocab: int = 300,
    context: int = 512,
    type: str = "F32",
    types: Mapping[str, str] | None = None,
    tokenizer: str = "llama",
    pre: str = "gpt-2",
    template: str | None = None,
    tied: bool = False,
    rope_base: float = 10000.0,
    rope_factors: bool = False,
    seed: int = 0,
    metadata: Mapping[str, Any] | None = None,
    shapes: Mapping[str, tuple[int, ...] | None] | None = None,
    part_tensors: int = 0,
) -> Path:
    """Write a random `llama`, `qwen2` (biases) or `qwen3` (qk norms) model and return its path.

    `type` is that of every matrix (any that is computed, and Q8_K; columns a multiple of its block)
    and `types` overrides it for tensor names by suffix, e.g. `{"ffn_down.weight": "Q6_K"}`.
    `metadata` adds or replaces keys (None removes one), `shapes` replaces the shape of named
    tensors (None leaves one out), so that damaged models are one argument away. `part_tensors`
    writes several files of so many tensors each and returns the first.
    """
    rng = np.random.default_rng(seed)
    head_dim = dim // heads if head_dim is None else head_dim
    writer = GGUFWriter(path, arch, split_max_tensors=part_tensors)
    fields: dict[str, Any] = {
        "general.name": f"random-{arch}",
        f"{arch}.block_count": layers,
        f"{arch}.context_length": context,
        f"{arch}.embedding_length": dim,
        f"{arch}.feed_forward_length": ffn,
        f"{arch}.attention.head_count": heads,
        f"{arch}.attention.head_count_kv": kv_heads,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.dimension_count": head_dim,
        f"{arch}.rope.freq_base": rope_base,
        f"{arch}.vocab_size": vocab,
    }
    if arch == "qwen3" or head_dim * heads != dim:
        fields[f"{arch}.attention.key_length"] = head_dim
        fields[f"{arch}.attention.value_length"] = head_dim
    fields |= llama_vocabulary(vocab) if tokenizer == "llama" else gpt2_vocabulary(vocab, pre)
    if template is not None:
        fields["tokenizer.chat_template"] = template
    fields |= metadata or {}
    for key, value in fields.items():
        if value is not None:
            add_field(writer, key, value)

    plan = tensor_shapes(arch, dim, layers, heads, kv_heads, head_dim, ffn, vocab, tied)
    if rope_factors:
        plan["rope_freqs.weight"] = (head_dim // 2,)
    for name, shape in (plan | dict(shapes or {})).items():
        if shape is not None:
            kind = next((t for end, t in (types or {}).items() if name.endswith(end)), type)
            add_tensor(writer, rng, name, shape, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = sorted(Path(path).parent.glob(f"{Path(path).stem}-00001-of-*.gguf"))
    return parts[0] if part_tensors else Path(path)


def tensor_shapes(
    arch: str, dim: int, layers: int, heads: int, kv_heads: int, head_dim: int, ffn: int,
    vocab: int, tied: bool,
) -> dict[str, tuple[int, ...]]:  # fmt: skip
    """Every tensor of such a model and its shape in NumPy order."""
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocab, dim),
        "output_norm.weight": (dim,),
    }
    if not tied:
        shapes["output.weight"] = (vocab, dim)
    for layer in range(layers):
        block = f"blk.{layer}."
        widths = {"q": heads * head_dim, "k": kv_heads * head_dim, "v": kv_heads * head_dim}
        shapes[block + "attn_norm.weight"] = (dim,)
        for part, width in widths.items():
            shapes[f"{block}attn_{part}.weight"] = (width, dim)
            if arch == "qwen2":
                shapes[f"{block}attn_{part}.bias"] = (width,)
        if arch == "qwen3":
            shapes[block + "attn_q_norm.weight"] = (head_dim,)
            shapes[block + "attn_k_norm.weight"] = (head_dim,)
        shapes[block + "attn_output.weight"] = (dim, heads * head_dim)
        shapes[block + "ffn_norm.weight"] = (dim,)
        shapes[block + "ffn_gate.weight"] = (ffn, dim)
        shapes[block + "ffn_up.weight"] = (ffn, dim)
        shapes[block + "ffn_down.weight"] = (dim, ffn)
    return shapes


def llama_vocabulary(vocab: int) -> dict[str, Any]:
    """Metadata of a SentencePiece-style vocabulary: `<unk> <s> </s>`, 256 bytes, then pieces."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [2, 3, 3] + [6] * 256
    pieces = [(a + b).replace("_", "▁") for a, b in _PAIRS] + list("▁etaoinshrdlucmfwypvbgkjqxz")
    pieces += [f"▁w{i}" for i in range(vocab)]
    tokens = (tokens + pieces)[:vocab]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(tokens) - 259)],
        "tokenizer.ggml.token_type": types + [1] * (len(tokens) - 259),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": True,
    }


def gpt2_vocabulary(vocab: int, pre: str = "gpt-2") -> dict[str, Any]:
    """Metadata of a byte-level BPE vocabulary: three control tokens, 256 bytes, then merges."""
    characters = _byte_characters()
    merges = [(a.replace("_", "Ġ"), b.replace("_", "Ġ")) for a, b in _PAIRS]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *characters.values()]
    merges = merges[: max(0, vocab - len(tokens))]
    tokens += [a + b for a, b in merges]
    tokens = (tokens + [f"<unused{i}>" for i in range(vocab)])[:vocab]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": [f"{a} {b}" for a, b in merges],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


def _byte_characters() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) for byte in printable}
    table |= {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    return dict(sorted(table.items()))


def add_field(writer: GGUFWriter, key: str, value: Any) -> None:
    """Add one metadata entry, of the type its value has."""
    if isinstance(value, list | tuple):
        writer.add_array(key, value)
    else:
        kinds = {
            bool: GGUFValueType.BOOL,
            int: GGUFValueType.UINT32,
            float: GGUFValueType.FLOAT32,
            str: GGUFValueType.STRING,
        }
        writer.add_key_value(key, value, kinds[value.__class__])


def add_tensor(
    writer: GGUFWriter, rng: np.random.Generator, name: str, shape: tuple[int, ...], kind: str
) -> None:
    if name == "rope_freqs.weight":
        writer.add_tensor(name, np.linspace(1.0, 8.0, shape[0], dtype=np.float32))
    elif len(shape) == 1:
        noise = 0.1 * rng.standard_normal(shape, dtype=np.float32)
        offset = 0.0 if name.endswith(".bias") else 1.0
        writer.add_tensor(name, (noise + offset).astype(np.float32))
    elif kind in SPREADS:
        raw = random_blocks(rng, shape, kind)
        writer.add_tensor(name, raw, raw_dtype=GGMLQuantizationType[kind])
    else:
        weights = rng.standard_normal(shape, dtype=np.float32) * np.float32(0.6 / shape[-1] ** 0.5)
        quantised = quantize(weights, GGMLQuantizationType[kind])
        writer.add_tensor(name, quantised, raw_dtype=GGMLQuantizationType[kind])


HALVES = {
    "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "Q3_K": (108,), "Q2_K": (80, 82), "TQ1_0": (52,), "TQ2_0": (64,),
}  # fmt: skip
"""Bytes of a block where its f16 scale and minimum stand; in all other types it is (0,), but for
MXFP4 and NVFP4, whose scales are bytes, and IQ1_M, which has a quarter of it in each of four.
"""
SPREADS = {
    "Q2_K": 14.0, "Q3_K": 42.0, "Q4_K": 258.0, "Q5_K": 516.0, "Q6_K": 1366.0, "IQ4_NL": 71.0,
    "IQ4_XS": 1248.0, "IQ3_S": 140.0, "IQ3_XXS": 142.0, "IQ2_S": 56.0, "IQ2_XS": 56.0,
    "IQ2_XXS": 53.0, "IQ1_M": 7.2, "IQ1_S": 7.2, "NVFP4": 8.6, "Q8_K": 74.0,
}  # fmt: skip
"""Types that the gguf package cannot quantise to: deviation of random blocks whose scale is 1."""
_MINIMA = {"Q4_K": 7.5, "Q5_K": 15.5, "Q2_K": 1.5}
"""What their minimum is times the scale, so that they are centred."""


def random_blocks(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> NDArray[np.uint8]:
    """Random but valid blocks of SPREADS' types, `[rows, row_bytes]`, about as large as weights.

    All bytes are noise but the f16 scales and minima.
    """
    block_size, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    if shape[-1] % block_size:
        raise ValueError(f"{kind} needs columns in multiples of {block_size}, got {shape[-1]}")
    num_blocks = shape[0] * shape[-1] // block_size
    spread = rng.uniform(0.8, 1.2, num_blocks) * 0.6 / shape[-1] ** 0.5 / SPREADS[kind]
    raw = rng.integers(0, 256, (num_blocks, block_bytes), dtype=np.uint8)
    set_scales(kind, raw, spread, _MINIMA.get(kind, 0.0))
    return raw.reshape(shape[0], -1)


def set_scales(
    kind: str, blocks: NDArray[np.uint8], scales: NDArray[Any], minimum: float = 1.0
) -> None:
    """Write the scales [...] of blocks [..., block_bytes] and, for types that have one, the minimum
    as a multiple of them. Those of MXFP4 and NVFP4 become powers of two, below which NVFP4 keeps
    its bits.
    """
    if kind in ("MXFP4", "NVFP4"):
        with np.errstate(divide="ignore"):
            exponents = np.floor(np.log2(np.abs(scales)))
        if kind == "MXFP4":
            blocks[..., 0] = np.clip(exponents + 128, 0, 254)
        else:
            bits = np.clip(exponents + 8, 0, 14).astype(np.uint8)[..., None] << 3
            blocks[..., :4] = blocks[..., :4] & 7 | bits
        return
    if kind == "IQ1_M":
        halves = np.asarray(scales, np.float16).view(np.uint16)
        for place in range(4):
            quarter = (halves >> 4 * place & 15).astype(np.uint8)
            byte = 49 + 2 * place
            blocks[..., byte] = blocks[..., byte] & 15 | quarter << 4
        return
    for place, factor in zip(HALVES.get(kind, (0,)), (1.0, minimum), strict=False):
        halves = np.ascontiguousarray(np.asarray(scales * factor, np.float16))
        blocks[..., place : place + 2] = halves[..., None].view(np.uint8)
