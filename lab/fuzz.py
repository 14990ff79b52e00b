"""Coverage-guided fuzzing of everything that reads bytes from outside.

    python -m lab.fuzz TARGET [--minutes 5] [--out build/fuzz]
    python -m lab.fuzz all [--minutes 60]

One target at a time, in a process of its own: Atheris ends it with the first crash. The bytes that
did it are kept in OUT/TARGET, and so are inputs that found new paths, which the next run starts
from; small seeds of each kind are made here. Anything but an error on purpose is a crash; so are
more than 10 seconds and more than 1 GiB. The last line of a target tells executions and coverage.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import edgespec.errors
from lab.fuzz_seeds import SEEDS

TARGETS = (
    "gguf", "onnx", "template", "tokenizer_json", "prefix", "curve", "lines", "transcript", "rpc",
    "code", "door", "split", "requests", "hub", "store",
)  # fmt: skip
MAX_BYTES = 1 << 14
LIMIT_S, LIMIT_MB = 10, 1024
_WORDS = (0, 1, 2, 3, 7, 8, 32, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1)
_DONE = re.compile(r"#(\d+)\s+DONE\s+(?:cov: (\d+) ft: (\d+) )?corp: (\d+)")
Reader = Callable[[bytes], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=[*TARGETS, "all"])
    parser.add_argument("--minutes", type=float, default=5.0, help="of all targets together")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = TARGETS if arguments.target == "all" else (arguments.target,)
    seconds = round(60 * arguments.minutes / len(names))
    if arguments.inside:
        _fuzz(names[0], arguments.out, seconds)
        return
    crashed = [name for name in names if not _watched(name, arguments.out, seconds)]
    if crashed:
        sys.exit(f"crashes: {', '.join(crashed)}; the inputs are in {arguments.out}")


def _watched(name: str, out: Path, seconds: int) -> bool:
    """Fuzz one target in a process; print what came of it, and return whether all was well."""
    corpus = out / name / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for place, seed in enumerate(SEEDS[name]()):
        (corpus / f"seed-{place}").write_bytes(seed)
    command = [sys.executable, "-m", "lab.fuzz", name, "--inside", "--out", str(out)]
    found = subprocess.run(
        [*command, "--minutes", str(seconds / 60)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    done = _DONE.findall(found.stderr)
    if done:
        runs, covered, features, corpus = done[-1]
        print(f"{name}: {runs} executions, {covered} edges, {features} features, {corpus} inputs")
        return True
    print(f"{name}: ended with {found.returncode}\n{found.stderr[-2000:]}")
    return False


def _fuzz(name: str, out: Path, seconds: int) -> None:
    import atheris  # type: ignore[import-untyped]

    folder = out / name

    def read(data: bytes) -> None:
        try:
            reader(data)
        except edgespec.errors.EdgeSpecError as error:
            assert len(str(error)) < 2000

    with atheris.instrument_imports(include=["edgespec"]):
        reader = _READERS[name]()
        for path in (folder / "corpus").glob("seed-*"):  # so that all that is read with is imported
            read(path.read_bytes())

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        drawn = random.Random(seed)
        if len(data) > 8 and drawn.random() < 0.5:
            return _words_changed(data, drawn)[:most]
        changed: bytes = atheris.Mutate(data, most)
        return changed

    options = [
        f"-max_total_time={seconds}", f"-max_len={MAX_BYTES}", f"-timeout={LIMIT_S}",
        f"-rss_limit_mb={LIMIT_MB}", f"-artifact_prefix={folder}/", "-print_final_stats=1",
        str(folder / "corpus"),
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *options], read, custom_mutator=mutate)
    atheris.Fuzz()


def _words_changed(data: bytes, drawn: random.Random) -> bytes:
    """Numbers that lie where a length, count or offset may be, and parts that come twice."""
    out = bytearray(data)
    for _ in range(drawn.randint(1, 3)):
        place = drawn.randrange(len(out) - 7)
        word, form = drawn.choice(_WORDS), drawn.choice("BHIQ")
        size = struct.calcsize(form)
        out[place : place + size] = struct.pack("<Q", word)[:size]
    if drawn.random() < 0.2:
        start = drawn.randrange(len(out))
        out[start:start] = out[start : start + drawn.randint(1, 64)]
    return bytes(out)


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


def _store() -> Reader:
    """A datastore as it is, and one whose numbers these are, well signed, which is drafted from."""
    from edgespec.drafting.text.hierarchy import HierarchyDrafter
    from edgespec.drafting.text.store import HEADER_BYTES, Store, StoreHeader, digest_of
    from edgespec.errors import StoreError

    path = Path(tempfile.mkdtemp(prefix="edgespec-fuzz-")) / "fuzz.store"

    def read(data: bytes) -> None:
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

    return read


def void(_: object) -> None:
    """What was read is not needed."""


_READERS: dict[str, Callable[[], Reader]] = {name: globals()[f"_{name}"] for name in TARGETS}


if __name__ == "__main__":
    os.environ.setdefault("EDGESPEC_HISTORY", "0")
    main()
