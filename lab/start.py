"""How long until the first token?

    python -m lab.start phases [MODEL] [--rounds 3] [--starts 3]
    python -m lab.start prefix MODEL [--tokens 4096] [--context 4608] [--rounds 3]
    python -m lab.start prompts MODEL [--tokens 2048,8192,20000] [--cold] [--rounds 3]
    python -m lab.start weights [TYPE...] [--megabytes 64] [--rounds 5]

`phases`: from the start of a process to the first character, with an empty and with a filled cache.
`prefix`: after a saved prefix and after computing it; whether the texts agree.
`prompts`: of a prompt that the prompt cache has, and of one that it has not. `weights`: what each
type takes to load, in GB of the file per second of a core; and to compile.
"""

from __future__ import annotations

import compileall
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import edgespec
from edgespec.backends.native.kernels.codegen import isa
from edgespec.backends.native.kernels.matmul.pack import packer
from edgespec.backends.native.kernels.matmul.tile import FORMATS
from edgespec.backends.native.weights import PackedMatrix, load_matrix
from edgespec.engine.engine import Engine
from edgespec.engine.reply import Reply
from edgespec.memory.kv import prompt_cache, saved_prefixes
from edgespec.models.file import ModelFile
from edgespec.models.gguf.file_source import FileSource
from edgespec.models.gguf.header import GgufHeader
from edgespec.models.layers import Matrix
from edgespec.models.spec import TensorInfo, TensorType
from edgespec.system.disk_cache import PROMPTS
from lab.harness import (
    MODEL,
    ROOT,
    Asked,
    Rows,
    Script,
    Spread,
    in_process,
    numbers,
    option,
    python_path,
    rounds,
    start_anew,
)
from lab.start_once import PROMPT, times_of_a_start

COMMAND = "edgespec run"
PHASES = ("Python", "imports, plan", "kernels", "weights", "curve", "first token")
GOALS = {("empty", "kernels"): 10.0, ("filled", COMMAND): 0.5}
WORDS = (
    "the", "guide", "knows", "every", "station", "of", "the", "old", "line", "and", "tells", "how",
    "each", "came", "to", "be",
)  # fmt: skip
script = Script(__doc__)


@script.command(MODEL, rounds(3), option("--starts", type=int, default=3, help="in each round"))
def phases(asked: Asked) -> Rows:
    """Seconds of `edgespec run` to its first character, and of the stages of another start.

    In each round one start finds an empty cache folder and `--starts` more find it filled. Stages
    are cut where the engine tells of them: Python itself; imports and the plan; kernels (compiled,
    or loaded from the cache); weights; the cost curve (measured, or checked); prompt and first
    token. Modules are bytecode before, as installers leave them.
    """
    compileall.compile_dir(ROOT / "edgespec", quiet=1)
    columns = (COMMAND, *PHASES)
    found: dict[str, dict[str, list[float]]] = {
        state: {column: [] for column in columns} for state in ("empty", "filled")
    }
    for _ in range(asked.rounds):
        with tempfile.TemporaryDirectory() as folder:
            for number in range(1 + asked.starts):
                seconds = found["filled" if number else "empty"]
                seconds[COMMAND].append(_command_s(asked.model, Path(folder) / "command"))
                begin, cache = time.time(), str(Path(folder) / "phases")
                ends = in_process(times_of_a_start, asked.model, EDGESPEC_CACHE=cache)
                for phase, before, end in zip(PHASES, [begin, *ends], ends, strict=False):
                    seconds[phase].append(end - before)
    for state, seconds in found.items():
        yield {"cache": state} | {name: Spread.of(taken) for name, taken in seconds.items()}
    for (state, column), goal in GOALS.items():
        taken = statistics.median(found[state][column])
        script.check(taken <= goal, f"{column}, {state} cache: {taken:.2f} s, goal {goal:g} s")


def _command_s(model: str | None, cache: Path) -> float:
    """Seconds of one start of the command, up to its first character."""
    options = ["--seed", "1", "--max-tokens", "8", *(["--model", model] if model else [])]
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "edgespec", "run", *options, PROMPT],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"EDGESPEC_CACHE": str(cache), "PYTHONPATH": python_path()},
    )
    assert process.stdout is not None
    first = process.stdout.read(1)
    seconds = time.perf_counter() - start
    process.communicate()
    if not first:
        raise SystemExit(f"edgespec run ended with exit code {process.returncode} and no text")
    return seconds


@script.command(
    option("model"),
    option("--tokens", type=int, default=4096, help="of the prefix, at most"),
    option("--context", type=int, default=4608),
    rounds(3),
    option("--kv-type", default="f16"),
    option("--only", choices=["saved", "computed"]),
    option("--folder", type=Path, help="keep the prefix here, or take it from here"),
)
def prefix(asked: Asked) -> Rows:
    """Seconds to the first token of a prompt that goes on with three words.

    Every trial begins with an engine that holds no text, and for the saved prefix with the file
    closed.
    """
    with tempfile.TemporaryDirectory() as made:
        os.environ["EDGESPEC_DATA"] = str(asked.folder or made)
        with edgespec.load(asked.model, context=asked.context, kv_type=asked.kv_type) as engine:
            text = _text_of(engine, asked.tokens)
            name = f"lab-{asked.kv_type}"
            try:
                saved = saved_prefixes.read(name)
            except edgespec.KvFileError:
                saved = engine.save_prefix(name, text, raw=True)
            script.note(f"{len(saved.header.ids)} tokens, {saved.size_bytes / 2**20:.0f} MiB")
            taken: dict[str, list[float]] = {}
            texts = set()
            for which in ("computed", "saved") if not asked.only else (asked.only,):
                for _ in range(asked.rounds):
                    reply = _continue(engine, text, name if which == "saved" else None)
                    cached, notes = reply.stats.cached_tokens, reply.stats.notes
                    if notes or (cached > 0) != (which == "saved"):
                        raise SystemExit(f"{which}: {cached} tokens cached, {notes}")
                    taken.setdefault(which, []).append(reply.stats.time_to_first_token_s)
                    texts.add(tuple(reply.token_ids))
                yield {"prefix": which, "first token after, s": Spread.of(taken[which])}
    if len(taken) == 2:
        share = statistics.median(taken["saved"]) / statistics.median(taken["computed"])
        script.check(share < 0.05, f"saved / computed: {share:.1%}, goal 5 %")
    script.check(len(texts) == 1, "the texts are the same")


def _text_of(engine: Engine, num_tokens: int) -> str:
    """A text of at most that many tokens, and few less."""
    text = found = ""
    for count in range(10 * num_tokens):
        if count % 8 == 0:
            if len(engine.encode(text, raw=True)) > num_tokens:
                return found
            found = text
        text = f"{text} {WORDS[(count * count + count // 7) % len(WORDS)]}"
    raise SystemExit("this vocabulary takes more words than that")


def _continue(engine: Engine, text: str, saved: str | None) -> Reply:
    start_anew(engine)
    prompt = " Then the train"
    options: dict[str, Any] = {
        "raw": True,
        "temperature": 0.0,
        "max_tokens": 24,
        "ignore_eos": True,
    }
    return engine.generate(
        prompt if saved else text + prompt, max_tokens=24, prefix=saved, **options
    )


@script.command(
    option("model"),
    option("--tokens", type=numbers, default=[2048, 8192, 20_000], help="of each prompt"),
    rounds(3),
    option("--kv-type", default="f16"),
    option("--cold", action="store_true", help="take the files out of the system's memory first"),
)
def prompts(asked: Asked) -> Rows:
    """Seconds to the first token of a prompt that another engine has computed, or none has.

    Every trial has a new engine, which knows no text. The cache's folder ends with the script.
    """
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as made, ExitStack() as patched:
        for name in ("cache_folder", "chosen_folder"):
            patched.enter_context(patch.object(prompt_cache, name, lambda: Path(made)))
        cold = Path(made) / PROMPTS if asked.cold else None
        for count in asked.tokens:
            ids = np.random.default_rng(count).integers(300, 30_000, count).tolist()
            (first, kept_s), *again = [
                _asked_anew(asked, ids, cold if trial else None)
                for trial in range(1 + asked.rounds)
            ]
            read = [reply.stats.prompt_cache_tokens for reply, _ in again]
            if first.stats.prompt_cache_tokens or set(read) != {count - 1}:
                raise SystemExit(f"{first.stats.prompt_cache_tokens} and {read} tokens were read")
            script.check(
                all(reply.token_ids == first.token_ids for reply, _ in again), "the texts agree"
            )
            yield {
                "tokens": count,
                "computed, s": first.stats.time_to_first_token_s,
                "read, s": Spread.of([reply.stats.time_to_first_token_s for reply, _ in again]),
                "MiB on disk": prompt_cache.cached_prompts()[1] / 2**20,
                "written in, s": kept_s,
            }
            prompt_cache.forget_prompts()


def _asked_anew(asked: Asked, ids: list[int], cold: Path | None) -> tuple[Reply, float]:
    """A reply of a new engine, and the seconds from its first token to its end; the system forgets
    the files of a cold folder first.
    """
    if cold is not None:
        os.sync()
        for path in cold.iterdir():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    options = {"context": len(ids) + 64, "kv_type": asked.kv_type, "prompt_cache": "64GiB"}
    with edgespec.load(asked.model, drafters="none", **options) as engine:
        start = time.perf_counter()
        reply = engine.generate(ids, temperature=0.0, max_tokens=2, ignore_eos=True)
        seconds = time.perf_counter() - start
    return reply, seconds - reply.stats.time_to_first_token_s


@script.command(
    option("types", nargs="*", metavar="TYPE", help=", ".join(kind.name for kind in FORMATS)),
    option("--megabytes", type=int, default=64),
    option("--columns", type=int, default=4096),
    rounds(5),
)
def weights(asked: Asked) -> Rows:
    """GB of the file per second, of one matrix whose file is in the page cache, one thread.

    `pack`: from memory to memory that has been touched; `first touch`: into fresh memory, whose
    pages the system hands out meanwhile; `load`: what opening a model does: read a few rows, pack
    them, and so on, into fresh memory. Then the seconds that a first start compiles for the type.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDGESPEC_CACHE"] = folder
        isa.tile_address(isa.chosen(), TensorType.F32, 1)  # what the first compilation sets up
        for name in asked.types or [kind.name for kind in FORMATS]:
            kind = TensorType[name]
            start = time.perf_counter()
            packer(kind)
            middle = time.perf_counter()
            for size in FORMATS[kind].sizes:
                isa.tile_address(isa.chosen(), kind, size)
            compiled = time.perf_counter()
            yield (
                {"type": name}
                | _loading(kind, asked)
                | {
                    "compile packer, s": middle - start,
                    "compile tiles, s": compiled - middle,
                }
            )


def _loading(kind: TensorType, asked: Asked) -> dict[str, Spread]:
    num_rows = (asked.megabytes << 20) // kind.row_bytes(asked.columns) // 16 * 16
    raw = np.random.default_rng(0).integers(
        0, 256, (num_rows, kind.row_bytes(asked.columns)), dtype=np.uint8
    )
    info = TensorInfo("matrix", (num_rows, asked.columns), kind, 0, raw.nbytes)
    touched = PackedMatrix.allocate(FORMATS[kind], num_rows, asked.columns)

    def first_touch() -> None:
        fresh = PackedMatrix.allocate(FORMATS[kind], num_rows, asked.columns)
        fresh.pack_rows(0, raw)

    with tempfile.NamedTemporaryFile(suffix=".gguf") as path:
        raw.tofile(path)
        path.flush()
        with FileSource(Path(path.name)) as source:
            header = GgufHeader(3, {}, {"matrix": info})
            file = ModelFile(source, header, None)  # type: ignore[arg-type]
            works: dict[str, Callable[[], object]] = {
                "pack": lambda: touched.pack_rows(0, raw),
                "first touch": first_touch,
                "load": lambda: load_matrix(file, Matrix("matrix", num_rows, asked.columns)),
            }
            return {
                name: Spread.of(_seconds(work, asked.rounds)).rate(raw.nbytes / 1e9)
                for name, work in works.items()
            }


def _seconds(work: Callable[[], object], count: int) -> list[float]:
    work()
    found = []
    for _ in range(count):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return found


if __name__ == "__main__":
    script.run()
