"""Coverage-guided fuzzing of everything that reads bytes from outside.

    python -m lab.fuzz TARGET [--minutes 5] [--out build/fuzz]
    python -m lab.fuzz all [--minutes 60]

One target at a time, in a process of its own: Atheris ends it with the first crash. The bytes that
did it are kept in OUT/TARGET, and so are inputs that found new paths, which the next run starts
from; small seeds of each kind are made here. Anything but an error on purpose is a crash; so are
more than 10 seconds (--limit) and more than 1 GiB. The last line of a target tells executions and
coverage.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import struct
import subprocess
import sys
from pathlib import Path

import edgespec.errors
from lab.fuzz_seeds import SEEDS
from lab.fuzz_targets import READERS, TARGETS

MAX_BYTES = 1 << 14
LIMIT_S, LIMIT_MB = 10, 1024
_WORDS = (0, 1, 2, 3, 7, 8, 32, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1)
_DONE = re.compile(r"#(\d+)\s+DONE\s+(?:cov: (\d+) ft: (\d+) )?corp: (\d+)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=[*TARGETS, "all"])
    parser.add_argument("--minutes", type=float, default=5.0, help="of all targets together")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--limit", type=int, default=LIMIT_S, help="seconds for one input")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = TARGETS if arguments.target == "all" else (arguments.target,)
    seconds = round(60 * arguments.minutes / len(names))
    if arguments.inside:
        _fuzz(names[0], arguments.out, seconds, arguments.limit)
        return
    crashed = [
        name for name in names if not _watched(name, arguments.out, seconds, arguments.limit)
    ]
    if crashed:
        sys.exit(f"crashes: {', '.join(crashed)}; the inputs are in {arguments.out}")


def _watched(name: str, out: Path, seconds: int, limit: int) -> bool:
    """Fuzz one target in a process; print what came of it, and return whether all was well."""
    corpus = out / name / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for place, seed in enumerate(SEEDS[name]()):
        (corpus / f"seed-{place}").write_bytes(seed)
    command = [sys.executable, "-m", "lab.fuzz", name, "--inside", "--out", str(out),
               "--limit", str(limit)]  # fmt: skip
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


def _fuzz(name: str, out: Path, seconds: int, limit: int) -> None:
    import atheris  # type: ignore[import-untyped]

    folder = out / name

    def read(data: bytes) -> None:
        try:
            reader(data)
        except edgespec.errors.EdgeSpecError as error:
            assert len(str(error)) < 2000

    with atheris.instrument_imports(include=["edgespec"], exclude=_compiled_modules()):
        reader = READERS[name]()
        for path in (folder / "corpus").glob("seed-*"):  # so that all that is read with is imported
            read(path.read_bytes())

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        drawn = random.Random(seed)
        if len(data) > 8 and drawn.random() < 0.5:
            return _words_changed(data, drawn)[:most]
        changed: bytes = atheris.Mutate(data, most)
        return changed

    options = [
        f"-max_total_time={seconds}", f"-max_len={MAX_BYTES}", f"-timeout={limit}",
        f"-rss_limit_mb={LIMIT_MB}", f"-artifact_prefix={folder}/", "-print_final_stats=1",
        str(folder / "corpus"),
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *options], read, custom_mutator=mutate)
    atheris.Fuzz()


def _compiled_modules() -> list[str]:
    """Modules with kernels: Numba compiles none that count where they go."""
    package = Path(edgespec.__file__).parent
    return [
        ".".join(path.relative_to(package.parent).with_suffix("").parts)
        for path in package.rglob("*.py")
        if re.search(r"edgespec\.system\.jit import|import numba|from numba", path.read_text())
    ]


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


if __name__ == "__main__":
    os.environ.setdefault("EDGESPEC_HISTORY", "0")
    main()
