"""Do published files run here as they run in llama.cpp, inside their budgets, and how fast?

    python -m lab.real_models list
    python -m lab.real_models run [--questions FILE] [--only NAME,...] [--delete] [--out FOLDER]

`run` takes the models of `lab/real_models.toml`, or of another such list, one after another:
downloads the file from the hub (HF_ENDPOINT, HF_TOKEN; a stopped download goes on, and its SHA-256
is checked), then measures, each in a process of its own: greedy text and perplexity beside
llama.cpp's, Spec-Bench, plan against peak, and speed. What fails is a sentence in the model's row.
Finished models are kept in FOLDER, where a run that was stopped goes on; table.md and table.json
there are written anew after each model. Exit code 1: something differed, or was not measured.
"""

from __future__ import annotations

import json
import re
import shutil
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from edgespec.errors import HubError, OptionError
from edgespec.models.hub.download import fetch
from edgespec.models.hub.listing import find
from edgespec.models.hub.reference import HubReference
from edgespec.system.hardware import snapshot
from edgespec.system.size import GIB, format_size, parse_size
from edgespec.tools.bench.machine import Machine
from lab import real_model_parts
from lab.harness import (
    ROOT,
    Asked,
    Records,
    Row,
    Rows,
    Script,
    in_process,
    machine_line,
    names,
    option,
    rounds,
)
from tests.support import perplexity

Found = dict[str, Any]
PARTS: dict[str, Callable[[str, Found], Found]] = {
    "greedy": real_model_parts.greedy,
    "perplexity": real_model_parts.perplexity,
    "questions": real_model_parts.questions,
    "budget": real_model_parts.budget,
    "speed": real_model_parts.speed,
}
SPARE_BYTES = 2 * GIB
"""For logits, keys and values, and temporary files, beside the weights."""
_CLASS = re.compile(r"^[\w.]*(?:Error|Missing|Exception|Crash): ")
LIST = option("--list", type=Path, default=Path(__file__).with_suffix(".toml"), metavar="TOML")
ONLY = option("--only", type=names, default=[], help="names or architectures, by commas")
script = Script(__doc__)


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of the list."""

    name: str
    architecture: str
    repo: str
    file: str
    """Name or pattern of the file."""
    size: str
    """About what to expect."""
    licence: str
    why: str
    revision: str = "main"
    confirmed: bool = False
    """Whether a run has found it on the hub."""


class LeftOut(Exception):
    """A model is not measured this time; says why."""


@script.command(LIST, ONLY)
def list(asked: Asked) -> Rows:
    """The models, their sizes and licences, and why each is there."""
    for entry in _entries(asked):
        row = asdict(entry)
        row["confirmed"] = "" if row["confirmed"] else "to be confirmed"
        yield {name: row[name] for name in row if name != "revision"}


@script.command(
    LIST,
    ONLY,
    option("--out", type=Path, default=ROOT / "build" / "real-models", metavar="FOLDER"),
    option("--questions", type=Path, help="Spec-Bench's questions, JSON lines"),
    option("--delete", action="store_true", help="each download, once it is measured"),
    option("--disk", help="the most that downloads take together; what is free if left out"),
    option("--memory", help="the most that a model may need; what is free if left out"),
    option("--parts", type=names, default=[*PARTS], help=", ".join(PARTS)),
    option("--prompts", type=int, default=6, help="of the comparison of greedy text"),
    option("--tokens", type=int, default=64, help="of each reply"),
    option("--exact", action="store_true", help="greedy text also beside exact arithmetic: slow"),
    option("--text", type=Path, help="for perplexity; the pages of docs/ if left out"),
    option("--text-tokens", type=int, default=4000),
    option("--per-category", type=int, default=2, help="questions"),
    option("--context", type=int, default=1024, help="of questions and budget"),
    option("--past", type=int, default=256, help="tokens in the cache when speed is measured"),
    option("--threads", type=int, default=2),
    rounds(3),
)
def run(asked: Asked) -> Rows:
    """Download and measure them, one at a time."""
    entries = _entries(asked)
    if unknown := set(asked.parts) - PARTS.keys():
        raise SystemExit(f"there is no part {', '.join(sorted(unknown))}; use {', '.join(PARTS)}")
    asked.out.mkdir(parents=True, exist_ok=True)
    records, settings = Records(asked.out / "finished.jsonl"), _settings(asked)
    done: Sequence[Found] = []
    for entry in entries:
        key = (entry.repo, entry.file, entry.revision, sorted(settings.items()))
        try:
            found = records.get(key, partial(_measure, entry, settings, asked))
        except (LeftOut, HubError) as error:  # not kept: the next run tries again
            found = {"problems": [str(error)]}
        done = [*done, asdict(entry) | found]
        _write_tables(asked.out, settings, done)
        yield _row(done[-1])
        _check(done[-1])
    script.note(f"tables: {asked.out / 'table.md'}, {asked.out / 'table.json'}")


def _entries(asked: Asked) -> Sequence[Entry]:
    try:
        tables = tomllib.loads(asked.list.read_text("utf-8")).get("model", [])
        entries = [Entry(**table) for table in tables]
    except (OSError, ValueError, TypeError) as error:
        raise SystemExit(f"{asked.list} is no list of models: {error}") from error
    only = {*asked.only}
    wanted = [one for one in entries if not only or {one.name, one.architecture} & only]
    if not wanted:
        raise SystemExit(f"{asked.list} has no model {', '.join(asked.only)}")
    return wanted


def _settings(asked: Asked) -> Found:
    """What decides what is measured, and how."""
    measured = (
        "parts", "prompts", "tokens", "exact", "text", "text_tokens", "questions", "per_category",
        "context", "past", "threads", "rounds",
    )  # fmt: skip
    found = {name: getattr(asked, name) for name in measured}
    for name in ("text", "questions"):
        found[name] = str(found[name].resolve()) if found[name] else ""
    return found


def _measure(entry: Entry, settings: Found, asked: Asked) -> Found:
    """Everything about one model; raises LeftOut, HubError where its file cannot be had."""
    files = find(HubReference(entry.repo, entry.file), entry.revision).files
    folder = asked.out / "models" / entry.repo.replace("/", "--") / files[0].commit[:12]
    size = sum(file.size_bytes for file in files)
    _check_room(size, folder, asked)
    path, *_ = [fetch(file, folder / file.name.rpartition("/")[2]) for file in files]
    data = {"EDGESPEC_DATA": str(asked.out / "data")}  # the user's own history stays as it is
    facts = in_process(real_model_parts.facts, str(path), settings, **data)
    parts = {}
    for name in () if "error" in facts else asked.parts:
        start = time.perf_counter()
        parts[name] = in_process(PARTS[name], str(path), settings, **data)
        parts[name]["seconds"] = time.perf_counter() - start
    if asked.delete:
        shutil.rmtree(folder)
    problems = [
        f"{name}: {_CLASS.sub('', found['error'])}"
        for name, found in {"file": facts, **parts}.items()
        if "error" in found
    ]
    if facts.get("architecture", entry.architecture) != entry.architecture:
        problems.insert(0, f"the file's architecture is {facts['architecture']}")
    commit = {"commit": files[0].commit, "files": [file.name for file in files]}
    return commit | {"bytes": size, "facts": facts, "parts": parts, "problems": problems}


def _check_room(size: int, folder: Path, asked: Asked) -> None:
    """Raises LeftOut before anything is downloaded that does not fit."""
    models = asked.out / "models"
    held = _bytes_in(folder)
    try:
        room = shutil.disk_usage(asked.out).free - SPARE_BYTES
        if asked.disk:
            room = min(room, parse_size(asked.disk) - _bytes_in(models))
        memory = snapshot().reachable_bytes
        if asked.memory:
            memory = min(memory, parse_size(asked.memory, whole_bytes=memory))
    except OptionError as error:
        raise SystemExit(str(error)) from error
    if size - held > room:
        raise LeftOut(
            f"the download of {format_size(size - held)} does not fit: "
            f"{format_size(max(room, 0))} of disk may be used; free some, or use --delete"
        )
    # Both engines hold the weights at once while they are compared.
    needed = 2 * size + SPARE_BYTES
    if needed > memory:
        raise LeftOut(
            f"both engines need {format_size(needed)} of memory, and {format_size(memory)} may "
            "be used; take a machine with more"
        )


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _row(model: Found) -> Row:
    """One line of the table; "" where nothing was measured."""
    parts = {name: found for name, found in model.get("parts", {}).items() if "error" not in found}
    greedy, loss = parts.get("greedy", {}), parts.get("perplexity", {})
    asked, budget, speed = (parts.get(name, {}) for name in ("questions", "budget", "speed"))
    ours, peers = speed.get("ours", {}), speed.get("peers", {})
    equal = f"{greedy['equal']}/{greedy['tokens']}" if greedy else ""
    peak, planned = budget.get("peak_bytes"), budget.get("planned_bytes")
    return {
        "model": model["name"],
        "architecture": model["architecture"],
        "types": model.get("facts", {}).get("types"),
        "size": format_size(model["bytes"]) if "bytes" in model else model["size"],
        "equal": equal,
        "near ties": greedy.get("near_ties"),
        "worst cosine": f"{greedy['worst_cosine']:.5f}" if greedy else None,
        "perplexity": loss.get("ours"),
        "llama.cpp's": loss.get("peers"),
        "difference": f"{loss['difference']:+.3%}" if loss else None,
        "Spec-Bench, tokens/s": asked.get("tokens/s"),
        "tokens/step": asked.get("tokens/step"),
        "/ plain": asked.get("/ plain", {}).get("median"),
        "/ llama.cpp": asked.get("/ llama.cpp", {}).get("median"),
        "peak": format_size(peak) if peak else None,
        "planned/peak": round(planned / peak, 3) if peak and planned else None,
        "decode, tokens/s": ours.get("decode_tokens_per_s"),
        "llama.cpp decodes": peers.get("decode_tokens_per_s"),
        "T(8)/T(1)": ours.get("T(8)/T(1)"),
        "llama.cpp's T(8)/T(1)": peers.get("T(8)/T(1)"),
        "problems": "; ".join(model["problems"]),
    }


def _check(model: Found) -> None:
    name, parts = model["name"], model.get("parts", {})
    if "tokens" in (greedy := parts.get("greedy", {})):
        for line in greedy["differences"]:
            script.note(line)
        script.check(not greedy["different"], f"{name}: greedy text equal up to near ties")
    if "difference" in (loss := parts.get("perplexity", {})):
        margin = max(perplexity.MARGIN, 2 * loss["noise"])
        script.check(abs(loss["difference"]) <= margin, f"{name}: perplexity within {margin:.2%}")
    if "peak_bytes" in (budget := parts.get("budget", {})):
        good = budget["peak_bytes"] <= budget["budget_bytes"]
        script.check(good, f"{name}: peak within the budget")
    script.check(not model["problems"], f"{name}: everything measured")


def _write_tables(folder: Path, settings: Found, models: Sequence[Found]) -> None:
    machine = Machine.here()
    found = {"machine": machine.as_dict(), "settings": settings, "models": models}
    date = time.strftime("%Y-%m-%d")
    _replace(folder / "table.json", json.dumps(found | {"date": date}, indent=1) + "\n")
    rows = [_row(model) for model in models]
    lines = ["# Published files", "", machine_line(machine), ""]
    lines += [_line(rows[0]), _line(["---"] * len(rows[0]))]
    lines += [_line(row.values()) for row in rows]
    _replace(folder / "table.md", "\n".join(lines) + "\n")


def _replace(path: Path, text: str) -> None:
    """At once, so that a run that is stopped leaves a whole table."""
    part = path.with_suffix(".part")
    part.write_text(text, "utf-8")
    part.replace(path)


def _line(cells: Any) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else " ".join(str(value).replace("|", "\\|").split())


if __name__ == "__main__":
    script.run()
