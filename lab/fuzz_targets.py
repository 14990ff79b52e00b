"""What is fuzzed: readers of bytes from outside, for `lab/fuzz.py`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

Reader = Callable[[bytes], None]
TARGETS = (
    "gguf", "onnx", "template", "tokenizer_json", "prefix", "curve", "lines", "transcript", "rpc",
    "code", "door", "split", "requests", "hub", "checkpoint", "chat", "kept", "store", "configs",
    "schema", "prompts", "prompt_texts",
)  # fmt: skip


def _file_reader(name: str, use: Callable[[Path], None]) -> Reader:
    folder = Path(tempfile.mkdtemp(prefix="edgespec-fuzz-"))
    path = folder / name

    def read(data: bytes) -> None:
        path.write_bytes(data)
        use(path)

    return read


def _gguf() -> Reader:
    from edgespec.models.open_model import open_model

    def use(path: Path) -> None:
        with open_model(path, any_engine=True) as model:
            model.tokenizer.decode(model.tokenizer.encode("The cat.\n<s> 1", parse_special=True))
            if model.chat_template:
                model.chat_template.render([{"role": "user", "content": "Hi"}])

    return _file_reader("fuzz.gguf", use)


def _onnx() -> Reader:
    from edgespec.models.onnx.graph_file import read_graph

    return _file_reader("fuzz.onnx", lambda path: void(read_graph(path)))


def _template() -> Reader:
    from edgespec.models.jinja import meter
    from edgespec.models.template import ChatTemplate

    # Limits hold at any size; small ones let more templates be tried.
    meter.MAX_STEPS, meter.STEPS_PER_ITEM, meter.MAX_BYTES = 5_000, 0, 1 << 20
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": "Hi", "tool_calls": [{"id": 1}]},
        {"role": "assistant"},
    ]

    def read(data: bytes) -> None:
        ChatTemplate(data.decode("utf-8", "replace")).render(turns, tools=[{"name": "f"}])

    return read


def _tokenizer_json() -> Reader:
    from edgespec.models.tokenizers.hugging_face import vocabulary_facts

    return _file_reader("tokenizer.json", lambda path: void(vocabulary_facts(path, 64)))


def _prefix() -> Reader:
    from edgespec.memory.kv.kv_file import KvFile

    def use(path: Path) -> None:
        with path.open("rb") as file:
            KvFile.open(path, file)

    return _file_reader("fuzz.keys", use)


def _prompts() -> Reader:
    """A file of the prompt cache, in the place of a prompt's first block."""
    import numpy as np

    from edgespec.memory.kv.prompt_cache import PromptCache

    cache = PromptCache(Path(tempfile.mkdtemp(prefix="edgespec-fuzz-")), 1 << 20, bytes(32), 64)
    ids = np.arange(300, dtype=np.int32)
    cache.write(ids, [np.full(64, number, np.uint8) for number in range(2)])
    first, second = cache.find(ids)

    def read(data: bytes) -> None:
        for asked in (ids, ids[:9]):
            first.path.write_bytes(data)
            found = [first, second] if asked is ids else cache.find(asked)
            into = np.ones((2, 64), np.uint8)
            count, _ = cache.read(found, list(into))
            assert count in (0, len(asked)) and (not count or not into[0].any())

    return read


def _prompt_texts() -> Reader:
    """A file of the prompt cache, in the place of a text with windows."""
    import numpy as np

    from edgespec.memory.kv.kv_file import Outline
    from edgespec.memory.kv.prompt_texts import PromptTexts

    cache = PromptTexts(Path(tempfile.mkdtemp(prefix="edgespec-fuzz-")), 1 << 20, bytes(32))
    cache.write(np.arange(9, dtype=np.int32), Outline(9, (0,)), [np.zeros(64, np.uint8)])
    (text,) = cache.texts()

    def read(data: bytes) -> None:
        text.path.write_bytes(data)
        for found in cache.texts():
            cache.read(found, [np.ones(size, np.uint8) for size in found.sizes])

    return read


def _curve() -> Reader:
    from edgespec.control import curve_cache

    return _file_reader("curve.json", lambda path: void(curve_cache._read(path)))


def _lines() -> Reader:
    from edgespec.terminal.prompt_file import read_lines

    return _file_reader("lines.jsonl", lambda path: void(read_lines(str(path))))


def _transcript() -> Reader:
    from edgespec.models.open_model import open_model
    from edgespec.tools.replay.transcripts import read_transcripts
    from tests.support.gguf_models import write_gguf

    folder = tempfile.mkdtemp(prefix="edgespec-fuzz-")
    tokenizer = open_model(write_gguf(Path(folder) / "m.gguf")).tokenizer
    return _file_reader("log.jsonl", lambda path: void(list(read_transcripts(path, tokenizer))))


def _rpc() -> Reader:
    from edgespec.backends.llamacpp.remote import protocol
    from edgespec.backends.llamacpp.remote.checking import check_reply

    def read(data: bytes) -> None:
        if len(data) < protocol.HEAD.size:
            return
        number, size = protocol.HEAD.unpack_from(data)
        rest = data[protocol.HEAD.size :]
        try:
            command = protocol.Command(number)
            protocol.check_request(command, size)
            payload = rest[: min(size, len(rest))].ljust(min(size, 1 << 16), b"\0")
            if command in protocol.SILENT or command is protocol.Command.GET_TENSOR:
                return
            count = protocol.reply_bytes(command, payload)
            check_reply(command, payload, rest[-count:].rjust(count, b"\0"))
        except ValueError:
            return

    return read


def _code() -> Reader:
    from edgespec.system.code_file import unpacked

    def read(data: bytes) -> None:
        try:
            unpacked(data, void, ())
        except ValueError:
            return

    return read


def _door() -> Reader:
    """A worker's requests, with one buffer that the client has."""
    from edgespec.backends.llamacpp.remote import protocol
    from edgespec.backends.llamacpp.remote.buffers import Buffers, Operations

    held = Buffers(Operations(["NONE", "ADD", "VIEW", "GLU"]))
    held.add(8, 4096, 1 << 16)

    def read(data: bytes) -> None:
        if not data:
            return
        try:
            command = protocol.Command(data[0])
            protocol.check_request(command, len(data) - 1)
            held.check(command, data[1:])
        except ValueError:
            return

    return read


def _split() -> Reader:
    """The second file of a model in two."""
    from edgespec.models.open_model import open_model
    from tests.support.gguf_models import write_gguf

    folder = Path(tempfile.mkdtemp(prefix="edgespec-fuzz-"))
    first = write_gguf(folder / "m.gguf", part_tensors=12)
    second = next(folder.glob("*00002-of*"))

    def read(data: bytes) -> None:
        second.write_bytes(data)
        with open_model(first, any_engine=True) as model:
            for name in model.tensors:
                model.rows(name)

    return read


def _requests() -> Reader:
    """Bodies of HTTP requests, as far as an engine is not needed."""
    from pydantic import ValidationError

    from edgespec.server.openai_requests import ChatAsked, CompletionAsked, EmbeddingAsked

    def read(data: bytes) -> None:
        for kind in (ChatAsked, CompletionAsked, EmbeddingAsked):
            try:
                asked = kind.model_validate_json(data)
            except ValidationError:
                continue
            for name in ("turns", "prompts", "keywords", "usable_tools"):
                void(getattr(asked, name, list)())

    return read


def _hub() -> Reader:
    """Names of files as a hub lists them, and what is asked for."""
    from edgespec.models.hub.listing import choose
    from edgespec.models.hub.reference import is_safe_name, parse_reference

    def read(data: bytes) -> None:
        asked, *names = data.decode("utf-8", "replace").split("\n")
        safe = [name for name in names if is_safe_name(name)]
        assert not any(".." in Path(name).parts or Path(name).is_absolute() for name in safe)
        choose(parse_reference(asked), safe)

    return read


def _checkpoint() -> Reader:
    """A head as published: safetensors, beside a configuration."""
    from edgespec.models.safetensors_file import open_checkpoint

    folder = Path(tempfile.mkdtemp(prefix="edgespec-fuzz-"))
    config = folder / "config.json"
    config.write_text(json.dumps({"hidden_size": 8, "num_attention_heads": 2}))

    def use(path: Path) -> None:
        source, header = open_checkpoint(path, config, "eagle3", 4)
        with source:
            for info in header.tensors.values():
                source.read(info.offset, info.size_bytes)

    return _file_reader("model.safetensors", use)


def _chat() -> Reader:
    from edgespec.engine.saved_chat import SavedChat

    return _file_reader("chat.json", lambda path: void(SavedChat.read(path)))


def _kept() -> Reader:
    """Earlier replies, whatever their checksum says."""
    from edgespec.drafting.text import kept_past

    past = kept_past.KeptPast(1 << 12, bytes(16), 64)

    def read(data: bytes) -> None:
        signed = data + kept_past._digest(data)
        for raw in (data, signed):
            tokens = past._tokens_in(raw)
            assert tokens is None or not len(tokens) or -1 <= tokens.min() <= tokens.max() < 64

    return read


def _store() -> Reader:
    """A datastore as it is, and one whose numbers these are, well signed, which is drafted from."""
    from edgespec.drafting.text.hierarchy import HierarchyDrafter
    from edgespec.drafting.text.store import HEADER_BYTES, Store, StoreHeader, digest_of
    from edgespec.errors import StoreError

    def use(path: Path) -> None:
        data = path.read_bytes()
        with suppress(StoreError):
            path.write_bytes(data.ljust(HEADER_BYTES, b"\0"))
            Store(path)
        body = data[: len(data) // 8 * 8]
        header = StoreHeader(len(body) // 8, 1, 0, 300, bytes(16), bytes(16))
        path.write_bytes(header.pack(digest_of(body)) + body)
        drafter = HierarchyDrafter(corpus=Store(path))
        drafter.reset([1, 2, 3, 1, 2])
        tree = drafter.propose(8)
        assert all(0 <= token < 300 for token in tree.tokens.tolist())

    return _file_reader("fuzz.store", use)


def _configs() -> Reader:
    """One of the JSON files beside an ONNX graph; the first byte says which."""
    from edgespec.models.open_model import open_model
    from edgespec.tools.export.export import FILES, export
    from tests.support.gguf_models import write_gguf

    folder = Path(tempfile.mkdtemp(prefix="edgespec-fuzz-"))
    export(write_gguf(folder / "m.gguf"), folder / "m", check=False)
    names = [name for name in FILES if name.endswith(".json")]
    kept = {name: (folder / "m" / name).read_bytes() for name in names}

    def read(data: bytes) -> None:
        name = names[data[0] % len(names)] if data else names[0]
        (folder / "m" / name).write_bytes(data[1:])
        try:
            with open_model(folder / "m", any_engine=True) as model:
                model.tokenizer.encode("The cat.")
        finally:
            (folder / "m" / name).write_bytes(kept[name])

    return read


def _schema() -> Reader:
    """What binds a reply, as clients send it."""
    from edgespec.errors import OptionError
    from edgespec.models.grammars import grammar_of, sent_schema

    def read(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        for kind in ("schema", "regex", "grammar"):
            given = {"schema": None, "regex": None, "grammar": None} | {kind: text}
            try:
                if kind == "schema":
                    sent_schema(text)
                grammar_of(**given)
            except OptionError:
                continue

    return read


def void(_: object) -> None:
    """What was read is not needed."""


READERS: dict[str, Callable[[], Reader]] = {name: globals()[f"_{name}"] for name in TARGETS}
