"""Holes that others published, 2024 to 2026: what the file or request would be here, and what it
gets. docs/published-holes.md has the table; a test holds the two together.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edgespec.backends.llamacpp.remote import protocol as rpc
from edgespec.backends.llamacpp.remote.buffers import Buffers, Operations
from edgespec.engine.reply_options import ReplyOptions
from edgespec.engine.request import Request
from edgespec.errors import ModelFileError, OptionError, TemplateError
from edgespec.models.hub.reference import parse_reference
from edgespec.models.onnx.graph_file import read_graph
from edgespec.models.onnx.protobuf import field
from edgespec.models.open_model import open_model
from edgespec.models.template import ChatTemplate
from tests.fuzz.test_damaged_model_files import use_everything
from tests.support.gguf_models import write_gguf
from tests.support.raw_gguf import gguf, key, strings, tensor, text

U32, STRING, ARRAY = 4, 8, 9
MOST_SECONDS = 10.0


def _u32(name: str, value: int) -> bytes:
    return key(name, U32, struct.pack("<I", value))


ARCHITECTURE = key("general.architecture", STRING, text("llama"))


def _long(count: int, size: int = 24) -> bytes:
    """The head of a file that says it has so many tensors or keys, and no more."""
    return struct.pack("<4sIQQ", b"GGUF", 3, count, count) + bytes(size)


def _key_length(length: int) -> bytes:
    return struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, length) + b"general" + bytes(64)


def _string_length(length: int) -> bytes:
    value = struct.pack("<IQ", STRING, length) + b"x" * 64
    return struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + text("general.name") + value


def _array_length(kind: int, count: int) -> bytes:
    return gguf([key("tokenizer.ggml.tokens", ARRAY, struct.pack("<IQ", kind, count))])


FILES: dict[str, Callable[[], bytes]] = {
    "CVE-2024-21802": lambda: gguf([ARCHITECTURE], [tensor("t", [1] * 9, num_dims=9)]),
    "CVE-2024-21825": lambda: _array_length(STRING, 1 << 61),
    "CVE-2024-21836": lambda: gguf([ARCHITECTURE], num_tensors=1 << 60),
    "CVE-2024-23496": lambda: _string_length(2**64 - 1),
    "CVE-2024-23605": lambda: gguf([ARCHITECTURE], num_keys=1 << 60),
    "CVE-2024-32878": lambda: _array_length(200, 4),
    "CVE-2024-41130": lambda: struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + bytes(16),
    "CVE-2024-12055": lambda: _array_length(5, 1 << 40),
    "CVE-2024-39720": lambda: b"GGUF",
    "CVE-2025-0312": lambda: gguf([ARCHITECTURE, key("tokenizer.ggml.model", STRING, text(""))]),
    "CVE-2025-0315": lambda: _key_length(1 << 40),
    "CVE-2025-0317": lambda: gguf(
        [ARCHITECTURE, _u32("general.alignment", 0)], [tensor("t", [32])]
    ),
    "CVE-2025-49847": lambda: gguf(
        [
            ARCHITECTURE,
            key("tokenizer.ggml.tokens", ARRAY, strings(["a"])[:12] + struct.pack("<Q", 2**32 - 1)),
        ]
    ),
    "CVE-2025-53630": lambda: gguf(
        [ARCHITECTURE],
        [tensor("a", [2**31, 2**31, 4]), tensor("b", [2**31, 2**31, 4], offset=2**63)],
    ),
    "CVE-2026-27940": lambda: gguf(
        [ARCHITECTURE],
        [tensor("a", [2**62 - 32]), tensor("b", [64], offset=2**64 - 64)],
    ),
    "CVE-2026-33298": lambda: gguf([ARCHITECTURE], [tensor("t", [1024, 2**54 + 1024, 1])]),
    "CVE-2026-7482": lambda: gguf([ARCHITECTURE], [tensor("t", [1 << 20])], data=bytes(64)),
}
"""GGUF files: lengths, counts, offsets and types that lie."""


@pytest.mark.parametrize("cve", FILES)
def test_a_published_file_is_refused(cve: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(FILES[cve]())
    begin = time.monotonic()
    with pytest.raises(ModelFileError), open_model(path, any_engine=True) as file:
        use_everything(file.path)
        raise AssertionError("nothing was wrong with it")
    assert time.monotonic() - begin < MOST_SECONDS


def test_cve_2024_8063_zeros_in_sizes_are_refused(tmp_path: Path) -> None:
    """Ollama divided by a count of heads or blocks that a file set to 0."""
    sound = write_gguf(tmp_path / "sound.gguf").read_bytes()
    for name in ("block_count", "attention.head_count", "embedding_length"):
        place = sound.index(f"llama.{name}".encode()) + len(f"llama.{name}") + 4
        path = tmp_path / "zero.gguf"
        path.write_bytes(sound[:place] + bytes(4) + sound[place + 4 :])
        with pytest.raises(ModelFileError):
            open_model(path, any_engine=True)


TEMPLATES: dict[str, str] = {
    "CVE-2024-34359": "{% for c in ().__class__.__base__.__subclasses__() %}{% if 'warning' in "
    "c.__name__ %}{{ c()._module.__builtins__['__import__']('os').popen('id').read() }}"
    "{% endif %}{% endfor %}",
    "CVE-2024-56326": "{{ ['{0.__class__.__mro__}'.format] | map('call', 1) | list }}"
    "{{ (['{0.__class__}'] | map(attribute='format') | first)(1) }}",
    "CVE-2024-56201": "{% include \"x'+__import__('os').popen('id').read()+'\" %}",
    "CVE-2025-27516": "{{ ('{0.__class__.__init__}' | attr('format'))(1) }}",
    "CVE-2025-61620": "{% for i in range(9**5) %}{% for j in range(9**5) %}"
    "{% endfor %}{% endfor %}",
    "CVE-2026-5760": "{{ self.__init__.__globals__.__builtins__.__import__('os').popen('id') }}",
}
"""Templates that ran code or without end."""


@pytest.mark.parametrize("cve", TEMPLATES)
def test_a_published_template_is_refused(cve: str) -> None:
    begin = time.monotonic()
    with pytest.raises(TemplateError):
        ChatTemplate(TEMPLATES[cve]).render([{"role": "user", "content": "x"}])
    assert time.monotonic() - begin < MOST_SECONDS


LOCATIONS: dict[str, str] = {
    "CVE-2022-25882": "../../../etc/passwd",
    "CVE-2024-27318": "a/../../secret",
    "CVE-2026-27489": "deep/secret",
    "CVE-2026-34447": "link",
}
"""Where an ONNX graph says its weights are."""


def _graph(location: str, offset: bytes = b"0", length: bytes = b"4") -> bytes:
    facts = ((b"location", location.encode()), (b"offset", offset), (b"length", length))
    entries = b"".join(field(13, field(1, name) + field(2, value)) for name, value in facts)
    weight = field(1, 1) + field(2, 1) + field(8, b"w") + entries + field(14, 1)
    output = field(12, field(1, b"logits"))
    return field(7, field(1, field(4, b"Add")) + field(5, weight) + output)


def test_cve_2026_34446_a_hard_link_is_not_read(tmp_path: Path) -> None:
    """ONNX read it as the file inside the folder that it seems to be."""
    (tmp_path / "secret").write_bytes(b"secret secret")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "w").hardlink_to(tmp_path / "secret")
    path = folder / "model.onnx"
    path.write_bytes(_graph("w"))
    with pytest.raises(ModelFileError, match="hard link"):
        read_graph(path)


@pytest.mark.parametrize("cve", LOCATIONS)
def test_weights_elsewhere_are_not_read(cve: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret secret")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "deep").symlink_to(tmp_path)
    path = folder / "model.onnx"
    path.write_bytes(_graph(LOCATIONS[cve]))
    with pytest.raises(ModelFileError, match="outside"):
        read_graph(path)


def test_cve_2024_27319_data_that_ends_early_is_refused(tmp_path: Path) -> None:
    """ONNX read one element past the end."""
    (tmp_path / "w").write_bytes(bytes(8))
    path = tmp_path / "model.onnx"
    for offset, length in ((b"8", b"4"), (b"5", b"4"), (b"0", b"9")):
        path.write_bytes(_graph("w", offset, length))
        with pytest.raises(ModelFileError, match="ends at byte"):
            read_graph(path)
    path.write_bytes(_graph("w", b"4"))
    assert read_graph(path).external


def _rpc_tensor(*, type: int = 0, buffer: int = 8, data: int = 4096) -> bytes:
    """64 floats as llama.cpp's RPC describes them, in the buffer that the client has."""
    shape = struct.pack("<4I4I", 64, 1, 1, 1, 4, 256, 256, 256)
    rest = bytes(4 + 64 + 4 + 80 + 8 + 8) + struct.pack("<Q", data) + bytes(68)
    return struct.pack("<QIQ", 1, type, buffer) + shape + rest


REQUESTS: dict[str, Callable[[Buffers], object]] = {
    "CVE-2024-42477": lambda held: held.check(
        rpc.Command.GET_TENSOR, rpc.GET_REQUEST.pack(_rpc_tensor(type=0x100), 0, 8)
    ),
    "CVE-2024-42478": lambda held: held.check(
        rpc.Command.GET_TENSOR, rpc.GET_REQUEST.pack(_rpc_tensor(data=0x41414141), 0, 8)
    ),
    "CVE-2024-42479": lambda held: held.set_bytes(
        rpc.SET_HEAD.pack(_rpc_tensor(data=0x41414141), 0, 0), 8
    ),
    "CVE-2026-34159": lambda held: held.check(
        rpc.Command.GRAPH_COMPUTE,
        struct.pack("<IIQI", 0, 1, 1, 1) + _rpc_tensor(buffer=0, data=0x41414141),
    ),
}
"""Requests to llama.cpp's RPC server with addresses and types of the client's choice."""


@pytest.mark.parametrize("cve", REQUESTS)
def test_a_published_request_does_not_pass_the_door(cve: str) -> None:
    held = Buffers(Operations(["NONE", "ADD"]))
    held.add(8, 4096, 256)
    held.check(rpc.Command.GET_TENSOR, rpc.GET_REQUEST.pack(_rpc_tensor(), 0, 256))
    with pytest.raises(ValueError, match="tensor"):
        REQUESTS[cve](held)


def test_cve_2024_37032_a_name_cannot_leave_the_folder() -> None:
    """Ollama took a digest from a registry for a path."""
    for name in ("hf:../../etc", "hf:org/..", "hf:org/repo:../../x.gguf", "hf:org/repo/../../x"):
        with pytest.raises(OptionError):
            parse_reference(name)


def test_cve_2026_21869_a_negative_number_is_refused() -> None:
    """llama.cpp's server took how many tokens to discard from the request, negative ones too."""
    for options in ({"max_tokens": -1}, {"top_k": -1}, {"max_nodes": -1}, {"seed": -1}):
        with pytest.raises(OptionError):
            Request.of((1,), ReplyOptions(**options))


def test_cve_2025_52566_a_long_text_has_as_many_tokens_as_it_has(tmp_path: Path) -> None:
    """llama.cpp compared a count of tokens with a sign with one without."""
    with open_model(write_gguf(tmp_path / "m.gguf")) as file:
        ids = file.tokenizer.encode("a" * 300_000)
        assert file.tokenizer.decode(ids).count("a") == 300_000


def test_the_table_names_every_test() -> None:
    """And no row is without one."""
    root = Path(__file__).parents[2]
    page = (root / "docs" / "published-holes.md").read_text("utf-8")
    table = set(re.findall(r"CVE-\d{4}-\d+", page))
    here = {name.upper().replace("_", "-") for name in globals()}
    here = {found[0] for name in here if (found := re.search(r"CVE-\d{4}-\d+", name))}
    tested = here | set(FILES) | set(TEMPLATES) | set(LOCATIONS) | set(REQUESTS)
    assert table == tested
    assert len(table) >= 25
