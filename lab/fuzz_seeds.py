"""Small seeds of each kind of bytes that `lab/fuzz.py` begins with."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable


def _gguf_seeds() -> list[bytes]:
    from tests.support.raw_gguf import gguf, key, numbers, strings, tensor, text

    texts = strings(["<unk>", "<s>", "</s>", "a", "b"])
    keys = [
        key("general.architecture", 8, text("llama")),
        key("general.alignment", 4, struct.pack("<I", 32)),
        key("llama.block_count", 4, struct.pack("<I", 1)),
        key("llama.embedding_length", 4, struct.pack("<I", 32)),
        key("llama.attention.head_count", 4, struct.pack("<I", 2)),
        key("llama.rope.freq_base", 6, struct.pack("<f", 1e4)),
        key("tokenizer.ggml.model", 8, text("llama")),
        key("tokenizer.ggml.tokens", 9, texts),
        key("tokenizer.ggml.scores", 9, numbers(6, "f", [0.0] * 5)),
        key("tokenizer.ggml.token_type", 9, numbers(5, "i", [2, 3, 3, 1, 1])),
        key(
            "tokenizer.chat_template", 8, text("{% for m in messages %}{{ m.content }}{% endfor %}")
        ),
    ]
    tensors = [tensor("token_embd.weight", [32, 5]), tensor("output_norm.weight", [32], 0, 640)]
    return [gguf(keys, tensors), gguf(keys[:1]), gguf((), tensors)]


def _onnx_seeds() -> list[bytes]:
    from edgespec.models.onnx.protobuf import field

    shape = field(2, field(1, field(1, 4)) + field(1, field(2, b"batch")))
    port = field(1, b"input_ids") + field(2, field(1, field(1, 7) + shape))
    weight = field(1, 2) + field(1, 2) + field(2, 1) + field(8, b"w") + field(9, bytes(16))
    away = field(13, field(1, b"location") + field(2, b"w.bin")) + field(14, 1)
    node = field(1, b"x") + field(2, b"y") + field(4, b"MatMul")
    node += field(5, field(1, b"bits") + field(3, 4))
    graph = field(1, node) + field(5, weight) + field(11, port) + field(12, port)
    return [field(7, graph), field(7, graph + field(5, weight + away)), field(14, field(1, b"k"))]


def _checkpoint_seeds() -> list[bytes]:
    told = json.dumps({
        "fc.weight": {"dtype": "F16", "shape": [2, 4], "data_offsets": [0, 16]},
        "midlayer.mlp.up_proj.weight": {"dtype": "F32", "shape": [1], "data_offsets": [16, 20]},
    }).encode()  # fmt: skip
    return [struct.pack("<Q", len(told)) + told + bytes(20)]


def _template_seeds() -> list[bytes]:
    from tests.models.test_chat_template import ESCAPES, HOSTILE, REAL

    every = (*REAL.values(), *ESCAPES.values(), *HOSTILE.values())
    return [source.encode() for source in every]


def _prompt_seeds() -> list[bytes]:
    import tempfile
    from pathlib import Path

    import numpy as np

    from edgespec.memory.kv.prompt_cache import PromptCache

    with tempfile.TemporaryDirectory() as folder:
        cache = PromptCache(Path(folder), 1 << 20, bytes(32), 64)
        cache.write(np.arange(300, dtype=np.int32), [np.zeros(64, np.uint8)] * 2)
        return [path.read_bytes() for path in sorted(Path(folder).iterdir())]


def _prompt_text_seeds() -> list[bytes]:
    import tempfile
    from pathlib import Path

    import numpy as np

    from edgespec.memory.kv.kv_file import Outline
    from edgespec.memory.kv.prompt_texts import PromptTexts

    with tempfile.TemporaryDirectory() as folder:
        cache = PromptTexts(Path(folder), 1 << 20, bytes(32))
        cache.write(np.arange(9, dtype=np.int32), Outline(9, (0,)), [np.zeros(64, np.uint8)])
        return [path.read_bytes() for path in Path(folder).iterdir()]


def _other(*seeds: bytes) -> Callable[[], list[bytes]]:
    return lambda: list(seeds)


SEEDS: dict[str, Callable[[], list[bytes]]] = {
    "gguf": _gguf_seeds,
    "onnx": _onnx_seeds,
    "template": _template_seeds,
    "tokenizer_json": _other(
        b'{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [], "byte_fallback": 1},'
        b' "added_tokens": [{"id": 2, "content": "<s>", "special": true}]}'
    ),
    "prefix": _other(b"EDGEKEYS" + struct.pack("<4IQ", 1, 2, 1, 4, 64) + bytes(4200)),
    "prompts": _prompt_seeds,
    "prompt_texts": _prompt_text_seeds,
    "curve": _other(b'{"1": 0.5, "2": 0.6, "8": 0.9}'),
    "lines": _other(b'{"prompt": "x", "id": 3, "max_tokens": 2}\n{"prompt": "y", "seed": 1}\n'),
    "transcript": _other(b'{"prompt": "a b", "output": "b a"}\n'),
    "rpc": lambda: [struct.pack("<BQ", number, 4) + bytes(312) for number in range(18)],
    "door": lambda: [bytes([number]) + bytes(4 + 296) for number in range(18)],
    "split": _gguf_seeds,
    "requests": _other(
        b'{"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]'
        b', "stop": ["a"], "seed": -1, "response_format": {"type": "json_object"}, "n": 2}',
        b'{"model": "m", "prompt": [[1, 2], [3]], "max_tokens": 3, "logprobs": 2}',
    ),
    "hub": _other(b"hf:org/repo:Q4_K_M\na-Q4_K_M.gguf\nb-Q8_0-00001-of-00002.gguf\n../x.gguf"),
    "checkpoint": _checkpoint_seeds,
    "chat": _other(
        b'{"edgespec_chat": 1, "messages": [{"role": "user", "content": "x"}], "ids": [1, 2],'
        b' "tokenizer": "ab", "text": "x", "tools": [{"name": "f"}], "model": "m.gguf"}'
    ),
    "kept": _other(struct.pack("<8s3I16s2i", b"EDGEPAST", 1, 64, 2, bytes(16), -1, 5)),
    "store": _other(struct.pack("<16i", -1, 1, 2, 3, 1, 2, 4, 1, 0, 1, 4, 7, 2, 5, 3, 6)),
    "configs": _other(
        b'\0{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}',
        b'\1{"chat_template": "{{ messages }}", "bos_token": {"content": "<s>"},'
        b' "eos_token": "</s>"}',
        b'\2{"model": {"type": "llama", "vocab_size": 300, "context_length": 512,'
        b' "eos_token_id": [2], "decoder": {"head_size": 16, "num_attention_heads": 4,'
        b' "num_key_value_heads": 2, "num_hidden_layers": 2, "hidden_size": 64,'
        b' "filename": "model.onnx"}}}',
    ),
    "schema": _other(
        b'{"type": "object", "properties": {"a": {"enum": [1, "b"]}, "c": {"$ref": "#"}}}',
        b"(a|b)+[0-9]{2,4}", b'start: "a" start | /b+/',
    ),
    "code": _other(
        b"EDGECODE" + struct.pack("<3I", 2, 0, 0) + b"{}",
        b"EDGECODE" + struct.pack("<3I", 20, 96, 4) + b'{"environments": []}' + b"\x7fELF"
        + bytes(92) + b"BC\xc0\xde",
    ),
}  # fmt: skip
