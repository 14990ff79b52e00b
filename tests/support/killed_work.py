"""The commands that write, for `tests/support/kills.py`."""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from edgespec.engine.saved_chat import SavedChat
from edgespec.errors import EdgeSpecError
from edgespec.memory.kv.kv_file import KvFile
from tests.support.gguf_models import CHATML, write_gguf
from tests.support.hub_server import HubServer
from tests.support.kills import Running, Work

_PAST_HEAD_BYTES = 36
"""Of the file of earlier replies."""
WORDS = ("the", "cat", "and", "hat", "a", "dog", "sat", "on", "red", "mat", "one", "two")


def write_model(folder: Path) -> Path:
    """A model that all of the work is done with."""
    folder.mkdir(parents=True, exist_ok=True)
    return write_gguf(folder / "m.gguf", template=CHATML, type="Q8_0", layers=4, context=1024)


def some_text(seed: int, count: int) -> str:
    return " ".join(np.random.default_rng(seed).choice(WORDS, count))


class OneOfTwo(Work):
    """Writes one of two things over the other, whose bytes are known from whole runs."""

    def __init__(self, folder: Path, model: Path) -> None:
        super().__init__(folder, model)
        self.known: list[dict[str, bytes]] = []

    def files(self) -> dict[str, bytes]:
        """What it has written: names and contents."""
        return {
            path.name: path.read_bytes()
            for path in sorted(self.out.parent.glob(f"{self.out.name}*"))
            if path.is_file() and path.suffix != ".part"
        }

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def finish(self) -> str:
        said = super().finish()
        if len(self.known) < 2:
            self.known.append(self.files())
            if len(self.known) == 2 and self.known[0] == self.known[1]:
                raise RuntimeError(f"{self.name} writes the same twice")
        return said

    def lost(self, said: str, ended: bool) -> str:
        del said
        found = self.files()
        if ended and found != self._wanted:
            return "it ended well, and what it wrote is not there"
        return "" if found in self.known else self.mixed(found)

    def mixed(self, found: dict[str, bytes]) -> str:
        """What is wrong with files that are neither the old nor the new."""
        return f"neither the old nor the new: {sorted(found)}"

    def is_new(self) -> bool:
        return self.files() == self._wanted

    @property
    def _wanted(self) -> dict[str, bytes]:
        return self.known[(self.turn - 1) % 2]


class StoreBuild(OneOfTwo):
    name = "store build"

    def arguments(self) -> list[str]:
        corpus = self.folder / f"corpus{self.turn % 2}"
        if not corpus.exists():
            corpus.mkdir()
            (corpus / "text.txt").write_text(some_text(self.turn, 30_000))
        return ["store", "build", str(corpus), "--out", str(self.out), "--vocab", str(self.model)]


class Adapt(OneOfTwo):
    name = "adapt"

    @property
    def out(self) -> Path:
        return self.folder / "m.adapter.gguf"

    def arguments(self) -> list[str]:
        own, texts = self.folder / "m.gguf", self.folder / "texts.jsonl"
        if not own.exists():
            shutil.copyfile(self.model, own)
        if not texts.exists():
            lines = (json.dumps({"text": some_text(place, 40)}) for place in range(160))
            texts.write_text("\n".join(lines))
        tokens = str(5000 + 1000 * (self.turn % 2))
        return ["adapt", str(own), "--data", str(texts), "--max-tokens", tokens, "--threads", "1"]


class Export(OneOfTwo):
    name = "export --overwrite"

    def files(self) -> dict[str, bytes]:
        kept = (path for path in sorted(self.out.glob("*")) if path.suffix != ".part")
        return {path.name: path.read_bytes() for path in kept}

    def arguments(self) -> list[str]:
        bits = ("8", "16")[self.turn % 2]
        return ["export", str(self.model), str(self.out), "--bits", bits, "--overwrite"]

    def mixed(self, found: dict[str, bytes]) -> str:
        """Between taking the old graph away and putting the new one there is no model, and that is
        what a reader says.
        """
        return super().mixed(found) if "model.onnx" in found else ""


class Prepare(OneOfTwo):
    name = "prepare"

    def arguments(self) -> list[str]:
        layer = str(1 + self.turn % 2)
        return ["prepare", str(self.model), str(self.out), "--exit-layer", layer]

    def mixed(self, found: dict[str, bytes]) -> str:
        """Parts of two models are refused as such."""
        from edgespec.models.open_model import open_model

        first = self.folder / next(iter(found))
        try:
            open_model(first, any_engine=True).close()
        except EdgeSpecError:
            return ""
        return super().mixed(found)


class PrefixSave(Work):
    name = "prefix save"

    def arguments(self) -> list[str]:
        text = f"{self.turn} {some_text(self.turn, 150)}"
        return ["prefix", "save", "own", text, "--model", str(self.model)]

    def _turn_kept(self) -> int:
        """The run that wrote what is there; raises EdgeSpecError, OSError for damage."""
        path = self.folder / "prefixes" / "own.keys"
        with path.open("rb") as file:
            kept = KvFile.open(path, file)
            for index in range(kept.header.num_blocks):
                kept.read(file, index, np.empty(kept.header.bytes_of(index), np.uint8))
        return int(json.loads(kept.header.note)["text"].split()[0])

    def lost(self, said: str, ended: bool) -> str:
        try:
            kept = self._turn_kept()
        except (EdgeSpecError, OSError) as error:
            return str(error)
        told = ended or "own: " in said
        return "it said that it was saved, and an older one is there" if (
            told and kept != self.turn - 1
        ) else ""  # fmt: skip

    def is_new(self) -> bool:
        return self._turn_kept() == self.turn - 1


class Batch(Work):
    """Goes on with one file until it is whole, then begins another."""

    name = "batch --out"

    def __init__(self, folder: Path, model: Path) -> None:
        super().__init__(folder, model)
        self.expected = b""
        lines = (
            {"prompt": some_text(place, 9), "seed": place, "max_tokens": 40, "ignore_eos": True}
            for place in range(60)
        )
        self.prompts = folder / "prompts.jsonl"
        self.prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.out = folder / "out.jsonl"
        self._seen = b""

    def arguments(self) -> list[str]:
        return ["batch", str(self.prompts), "--out", str(self.out), "--model", str(self.model),
                "--threads", "1", "--max-batch", "2"]  # fmt: skip

    def finish(self) -> str:
        said = super().finish()
        found = self.out.read_bytes()
        if self.expected and found != self.expected:
            raise RuntimeError("the same prompts got other replies")
        self.expected = found
        self._again()
        return said

    def _again(self) -> None:
        self.out.unlink()
        self._seen = b""

    def lost(self, said: str, ended: bool) -> str:
        del said
        found = self.out.read_bytes() if self.out.exists() else b""
        whole = found[: found.rfind(b"\n") + 1]
        if not self.expected.startswith(found):
            return "other replies than those of a run that nobody killed"
        if not whole.startswith(self._seen) or (ended and found != self.expected):
            return "replies that were there are gone"
        self._seen = whole
        if found == self.expected:
            self._again()
        return ""

    def is_new(self) -> bool:
        return bool(self._seen)


class Learn(Work):
    """`run --learn`: what replies said, what was counted of drafts."""

    name = "run --learn"

    def __init__(self, folder: Path, model: Path) -> None:
        super().__init__(folder, model)
        self._known = b""

    def arguments(self) -> list[str]:
        return ["run", some_text(self.turn, 20), "--model", str(self.model), "--learn",
                "--threads", "1", "-n", "60", "--ignore-eos", "--seed", str(self.turn)]  # fmt: skip

    def lost(self, said: str, ended: bool) -> str:
        kept = b""
        for path in self.folder.rglob("*"):
            raw = path.read_bytes() if path.is_file() else b""
            if path.suffix in (".replies", ".stats"):
                digest = hashlib.blake2b(raw[:-16], digest_size=16).digest()
                if raw[-16:] != digest:
                    return f"{path.name} is damaged"
                kept = raw[:-16] if path.suffix == ".replies" else kept
            elif path.suffix == ".json":
                json.loads(raw)
        if "damaged" in said:
            return said
        kept = kept[_PAST_HEAD_BYTES:]
        self._is_new = kept != self._known
        if not _goes_on(self._known, kept) or (ended and not self._is_new):
            return f"{len(self._known)} bytes of replies were kept, and {len(kept)} others are"
        self._known = kept
        return ""

    def is_new(self) -> bool:
        return self._is_new


def _goes_on(old: bytes, new: bytes) -> bool:
    """Whether replies are earlier ones, the oldest of which may have made room, and later ones."""
    end = old[-256:]
    place = new.rfind(end)
    while place >= 0:
        if len(new) >= len(old) and old.endswith(new[: place + len(end)]):
            return True
        place = new.rfind(end, 0, place + len(end) - 1)
    return False


class Pull(Work):
    """`pull` and `rm` of a model, from a hub on this machine."""

    name = "pull, rm"

    def __init__(self, folder: Path, model: Path) -> None:
        super().__init__(folder / "own", model)
        repo = folder / "hub" / "org" / "tiny-GGUF"
        repo.mkdir(parents=True)
        self.bytes = model.read_bytes() + bytes(24 << 20)
        (repo / "tiny-Q8_0.gguf").write_bytes(self.bytes)
        self._open = ExitStack()
        self._hub = self._open.enter_context(HubServer(folder / "hub").running())

    def _places(self) -> list[Path]:
        return list(self.folder.glob("hf/hub/*/snapshots/*/*.gguf"))

    def arguments(self) -> list[str]:
        model = "hf:org/tiny-GGUF"
        self._removing = any(place.exists() for place in self._places())
        if self._removing:
            return ["rm", model, "--yes"]
        return ["pull", model, "--yes", "--no-plan", "--name", "mine"]

    def environment(self) -> dict[str, str]:
        own = {"HF_HOME": str(self.folder / "hf")}
        return super().environment() | self._hub.environment() | own

    def lost(self, said: str, ended: bool) -> str:
        places = [place for place in self._places() if place.exists()]
        for place in places:
            if place.read_bytes() != self.bytes:
                return "a model with wrong bytes is in its place"
        for part in self.folder.rglob("*.part"):
            if part.name.startswith(hashlib.sha256(self.bytes).hexdigest()) and not (
                self.bytes.startswith(part.read_bytes())
            ):
                return "what came so far has wrong bytes"
        named = self.folder / "models.json"
        if named.exists():
            json.loads(named.read_text())
        if ended and bool(places) == self._removing:
            return f"it ended well, and {len(places)} models are there: {said}"
        return ""

    def is_new(self) -> bool:
        return any(place.exists() for place in self._places()) != self._removing

    def close(self) -> None:
        self._open.close()


class Chat(Work):
    """Turns of a chat at a terminal, `/save` after each; the last one is kept unasked."""

    name = "chat, /save"
    TURNS = 4

    def arguments(self) -> list[str]:
        return ["chat", "--model", str(self.model), "--threads", "1", "-n", "12", "--seed", "1"]

    def start(self) -> Running:
        from tests.support.terminal_runs import TypedAt  # where there are such terminals

        turns = ((f"{self.turn} turn {turn}", "/save own") for turn in range(self.TURNS))
        lines = [line for both in turns for line in both]
        self.turn += 1
        return TypedAt(self.arguments(), self.environment(), [*lines, "/bye"])

    def lost(self, said: str, ended: bool) -> str:
        told = said.count("Saved to") if not ended else self.TURNS
        for name, least in (("own", told), ("last", told)):
            place = self.folder / "chats" / f"{name}.json"
            try:
                turns = [one for one in SavedChat.read(place).messages if one["role"] == "user"]
            except EdgeSpecError as error:
                return str(error)
            mine = [one for one in turns if one["content"].startswith(f"{self.turn - 1} ")]
            if len(mine) < least or (mine and len(mine) != len(turns)):
                return f"{least} turns were saved as {name}, and {len(mine)} are there"
        self._kept = len(mine)
        return ""

    def is_new(self) -> bool:
        return self._kept > 0


KINDS: tuple[type[Work], ...] = (
    PrefixSave, Batch, StoreBuild, Adapt, Export, Prepare, Learn, Pull, Chat,
)  # fmt: skip
