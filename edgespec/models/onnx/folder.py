"""An ONNX decoder as a model file: the graph, and the JSON files beside it.

Two layouts are known: onnxruntime-genai's (`genai_config.json` beside `model.onnx`) and that of
Optimum and the onnx-community (`config.json`, perhaps in the folder above `onnx/`). Both bring
`tokenizer.json` and `tokenizer_config.json`.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from edgespec.errors import ModelFileError, UnsupportedModelError
from edgespec.models.external_sizes import external_layers
from edgespec.models.file import ModelFile
from edgespec.models.gguf.file_source import FileSource
from edgespec.models.gguf.header import GgufHeader
from edgespec.models.gguf.keys import Keys
from edgespec.models.onnx.graph_file import BFLOAT16, FLOAT, FLOAT16, INT64, Graph, Port, read_graph
from edgespec.models.spec import ModelSpec, TensorInfo, TensorType
from edgespec.models.tokenizers.hugging_face import (
    HfTokenizer,
    hf_library,
    read_json,
    vocabulary_facts,
)
from edgespec.models.tokenizers.tokenizer import Tokenizer

PAST = re.compile(r"past_key_values\.(\d{1,4})\.(key|value)")
_QUANTISED: dict[str, Callable[[tuple[str, ...]], tuple[str, ...]]] = {
    "MatMulNBits": lambda names: names[1:4],
    "GatherBlockQuantized": lambda names: (*names[:1], *names[2:4]),
}
"""Operators with quantised matrices: which of their inputs are weights, scales and zero points."""
_MOST_HEADS = 1 << 16
"""Heads, and dimensions of one: far above any real model."""
FFN_WIDTH = "intermediate_size"
"""The width of feed-forward nets, in a configuration or among a graph's own properties."""
_FINGERPRINT_BYTES = 1 << 20
_TYPES = {
    FLOAT: TensorType.F32, FLOAT16: TensorType.F16, BFLOAT16: TensorType.BF16, INT64: TensorType.I64
}  # fmt: skip


def open_onnx(path: Path) -> OnnxFile:
    """Read and check a graph and what lies beside it; no weights are read.

    Raises ModelFileError, UnsupportedModelError for a graph that is no decoder.
    """
    path = _graph_file(path)
    graph = read_graph(path)
    facts = _Facts(path)
    spec = _spec(path, graph, facts)
    metadata = facts.metadata(spec)
    source = FileSource(path)
    return OnnxFile(source, GgufHeader(0, metadata, _tensors(graph)), spec, graph, facts.tokenizer)


class OnnxFile(ModelFile):
    """The graph's weights are named in `tensors`, but only ONNX Runtime reads them."""

    format = "onnx"

    def __init__(
        self, source: FileSource, header: GgufHeader, spec: ModelSpec, graph: Graph, path: Path
    ) -> None:
        super().__init__(source, header, spec)
        self.graph = graph
        self._tokenizer_path = path

    @property
    def size_bytes(self) -> int:
        """Of the file and of its external data."""
        return super().size_bytes + sum(tensor.size_bytes for tensor in self.graph.external)

    @property
    def fingerprint(self) -> bytes:
        digest = hashlib.blake2b(repr((self.spec, self.size_bytes)).encode(), digest_size=16)
        size = min(_FINGERPRINT_BYTES, self._source.size_bytes)
        digest.update(self._source.read(0, size).tobytes())
        return digest.digest()

    @property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            keys = Keys(self._tokenizer_path, self.metadata)
            self._tokenizer = HfTokenizer(keys, self._tokenizer_path)
        return self._tokenizer

    @property
    def tokenizer_refusal(self) -> str:
        return ""


def _graph_file(path: Path) -> Path:
    """The graph in a folder: the one its configuration names, or the only one."""
    if not path.is_dir():
        return path
    if (path / "genai_config.json").is_file():
        decoder = _part(_part(read_json(path / "genai_config.json"), "model"), "decoder")
        named = path / Path(str(decoder.get("filename", "model.onnx"))).name
        if named.is_file():
            return named
    for folder in (path, path / "onnx"):
        if (folder / "model.onnx").is_file():
            return folder / "model.onnx"
        found = sorted(folder.glob("*.onnx"))
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(file.name for file in found)
            raise ModelFileError(
                f"cannot open {path}: it holds several ONNX models ({names}); name one of them"
            )
    raise ModelFileError(
        f"cannot open {path}: it is a directory without an ONNX model; give the path of a .gguf "
        "or .onnx file"
    )


def _count(text: str) -> int:
    """A number of at most nine digits; 0 where the text is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _part(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name)
    return found if isinstance(found, dict) else {}


class _Facts:
    """What the JSON files beside a graph say, the more particular one first."""

    def __init__(self, path: Path) -> None:
        folders = [path.parent, *([path.parent.parent] if path.parent.name == "onnx" else [])]
        self._folder = next((f for f in folders if (f / "tokenizer.json").is_file()), path.parent)
        self.tokenizer = self._folder / "tokenizer.json"
        if not self.tokenizer.is_file():
            raise ModelFileError(
                f"cannot open {path}: there is no tokenizer.json beside it; download the model's "
                "tokenizer.json, tokenizer_config.json and config.json into the same folder"
            )
        self.path = path
        genai = _part(self._read("genai_config.json"), "model")
        config = self._read("config.json")
        self.model: dict[str, Any] = {**_part(config, "text_config"), **config}
        self.model |= {**_part(genai, "decoder"), **genai}
        self._generation = self._read("generation_config.json")
        self._tokenizer = self._read("tokenizer_config.json")

    def _read(self, name: str) -> Mapping[str, Any]:
        return read_json(self._folder / name) if (self._folder / name).is_file() else {}

    def count(self, *names: str, default: int) -> int:
        """A number under the first of these names that is there."""
        for name in names:
            found = self.model.get(name)
            if isinstance(found, int) and not isinstance(found, bool) and 0 < found < 1 << 31:
                return found
        return default

    def metadata(self, spec: ModelSpec) -> dict[str, Any]:
        """In GGUF's terms, as everything above knows them."""
        facts = vocabulary_facts(self.tokenizer, spec.vocab_size)
        texts = facts["tokenizer.ggml.tokens"].all_raw()
        facts |= {"general.architecture": spec.architecture, "general.name": spec.name}
        for name in ("bos", "eos"):
            found = self._token(name, texts)
            if found is not None and found < spec.vocab_size:
                facts[f"tokenizer.ggml.{name}_token_id"] = found
        facts["tokenizer.ggml.add_bos_token"] = self._adds_bos(facts)
        template = self._template()
        if template:
            facts["tokenizer.chat_template"] = template
        return facts

    def _token(self, name: str, texts: list[bytes]) -> int | None:
        """A token by its text where the tokenizer names it, else by its number."""
        text = self._tokenizer.get(f"{name}_token")
        text = text.get("content") if isinstance(text, dict) else text
        if isinstance(text, str) and text and text.encode() in texts:
            return texts.index(text.encode())
        for facts in (self._generation, self.model):
            found = facts.get(f"{name}_token_id")
            found = found[0] if isinstance(found, list) and found else found
            if isinstance(found, int) and not isinstance(found, bool) and found >= 0:
                return found
        return None

    def _adds_bos(self, facts: Mapping[str, Any]) -> bool:
        """What the configuration says, else what the tokenizer's last step does."""
        bos = facts.get("tokenizer.ggml.bos_token_id")
        stated = self._tokenizer.get("add_bos_token")
        if bos is None or isinstance(stated, bool):
            return bool(stated) and bos is not None
        library = hf_library(self.tokenizer)
        try:
            ids = library.from_file(str(self.tokenizer)).encode("a").ids
        except Exception:  # the tokenizer itself tells what is wrong with it
            return False
        return bool(ids) and ids[0] == bos

    def _template(self) -> str:
        file = self._folder / "chat_template.jinja"
        if file.is_file():
            return file.read_text(encoding="utf-8", errors="replace")
        found = self._tokenizer.get("chat_template")
        if isinstance(found, list):  # several, by name
            named = [part for part in found if isinstance(part, dict)]
            found = next((p.get("template") for p in named if p.get("name") == "default"), "")
        return found if isinstance(found, str) else ""


def _spec(path: Path, graph: Graph, facts: _Facts) -> ModelSpec:
    """Sizes, from the graph where it tells them."""
    pasts = {int(found[1]) for name in graph.inputs if (found := PAST.fullmatch(name))}
    if not pasts or "logits" not in graph.outputs or "input_ids" not in graph.inputs:
        raise UnsupportedModelError(
            f"cannot run {path}: its graph is not a decoder with keys and values of the text so "
            "far (input_ids, past_key_values.N.key and .value, logits); choose a text generation "
            "model exported with past, or `edgespec export MODEL.gguf --format onnx OUT`"
        )
    keys: Port = graph.inputs[f"past_key_values.{min(pasts)}.key"]
    kv_heads, head_dim = (_size(keys, place) for place in (1, 3))
    vocab = graph.outputs["logits"].shape[-1:] or ("",)
    heads = _attribute(graph, "GroupQueryAttention", "num_heads")
    kv_heads = kv_heads or facts.count("num_key_value_heads", "num_attention_heads", default=0)
    head_dim = head_dim or facts.count("head_size", "head_dim", default=0)
    rows = vocab[0] if isinstance(vocab[0], int) else facts.count("vocab_size", default=0)
    if not any(tensor.size_bytes for tensor in graph.constants.values()):
        raise ModelFileError(f"cannot open {path}: its graph has no weights; download it again")
    if not 0 < rows < 1 << 31:
        rows = 0
    if not kv_heads or not head_dim or not rows:
        raise ModelFileError(
            f"cannot open {path}: neither its graph nor a config.json beside it tells the sizes of "
            "its keys and vocabulary; download the model's config.json into the same folder"
        )
    heads = heads or facts.count("num_attention_heads", default=kv_heads)
    name = graph.properties.get("name") or str(facts.model.get("_name_or_path") or "")
    dim = facts.count("hidden_size", default=heads * head_dim)
    return ModelSpec(
        architecture=str(facts.model.get("type") or facts.model.get("model_type") or "onnx"),
        name=name or path.parent.name or path.stem,
        dim=dim,
        vocab_size=rows,
        context_length=facts.count("context_length", "max_position_embeddings", default=2048),
        norm_epsilon=0.0,
        layers=external_layers(
            len(pasts),
            dim=dim,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            ffn_dim=facts.count(FFN_WIDTH, default=_count(graph.properties.get(FFN_WIDTH, ""))),
        ),
        num_parameters=sum(math.prod(info.shape) for info in _tensors(graph).values()),
        refusal=f"{path} is an ONNX model, which the onnx backend runs",
    )


def _size(port: Port, place: int) -> int:
    found = port.shape[place] if len(port.shape) == 4 else 0
    return found if isinstance(found, int) and 0 < found <= _MOST_HEADS else 0


def _attribute(graph: Graph, operator: str, name: str) -> int:
    return next((n.settings.get(name, 0) for n in graph.nodes if n.operator == operator), 0)


def _tensors(graph: Graph) -> dict[str, TensorInfo]:
    """The graph's constants: quantised matrices as what they stand for, with their scales."""
    made, parts = {}, set[str]()
    for node in graph.nodes:
        names = _QUANTISED[node.operator](node.inputs) if node.operator in _QUANTISED else ()
        held = [graph.constants[name] for name in names if name in graph.constants]
        if not held or not held[0].shape:
            continue
        bits = max(1, node.settings.get("bits", 4))
        rows, columns = held[0].shape[0], 8 * math.prod(held[0].shape[1:]) // bits
        kind = TensorType.Q4_0 if bits == 4 else TensorType.Q8_0
        size = sum(tensor.size_bytes for tensor in held)
        made[held[0].name] = TensorInfo(held[0].name, (rows, columns), kind, held[0].offset, size)
        parts |= {tensor.name for tensor in held}
    for name, tensor in graph.constants.items():
        if name not in parts:
            kind = _TYPES.get(tensor.kind, TensorType.I8)
            shape = tensor.shape or (1,)
            made[name] = TensorInfo(name, shape, kind, tensor.offset, tensor.size_bytes)
    return made
