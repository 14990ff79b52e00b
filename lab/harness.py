"""What every script here shares: arguments, rounds in turns, medians, tables, the machine's line.

A script makes one `Script`, registers its commands, and yields rows from each; the harness prints
them as a table while they come, in Markdown with `--markdown`, or as one JSON object with `--json`,
with the machine above.

    script = Script(__doc__)

    @script.command(MODEL, rounds(5))
    def replies(asked: Asked) -> Rows:
        \"""What speculation brings.\"""
        ...
        yield {"text": name, "tokens/s": Spread.of(found)}

    if __name__ == "__main__":
        script.run()

Rounds alternate, a first one warms up and is not counted, and a figure is a median with the lowest
and highest beside it (`edgespec.tools.bench`).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from edgespec.drafting.market.market import Market
from edgespec.drafting.tables.consensus import ConsensusDrafter
from edgespec.engine.engine import Engine
from edgespec.system.child_process import PeerError
from edgespec.tools.bench.machine import Machine, package_version
from edgespec.tools.bench.spread import Spread as Spread
from edgespec.tools.bench.turns import take_turns

ROOT = Path(__file__).parents[1]
PEERS = ("llama-cpp-python", "onnxruntime")
Asked = argparse.Namespace
Row = dict[str, Any]
Rows = Iterator[Row]
Command = Callable[[Asked], Iterable[Row]]
Option = tuple[tuple[str, ...], dict[str, Any]]


def option(*names: str, **settings: Any) -> Option:
    """An argument of a command, as `argparse` takes it."""
    return names, settings


MODEL = option(
    "model", nargs="?", help="a GGUF file or a model's name; the bundled one if left out"
)
MODELS = option("models", nargs="+", type=Path, metavar="MODEL")
THREADS = option("--threads", type=int)


def rounds(count: int) -> Option:
    return option("--rounds", type=int, default=count)


def tokens(count: int) -> Option:
    return option("--tokens", type=int, default=count, help="of each reply")


def numbers(text: str) -> list[int]:
    """The type of an option that is numbers by commas."""
    return [int(part) for part in text.split(",")]


def names(text: str) -> list[str]:
    """The type of an option that is names by commas."""
    return [part for part in text.split(",") if part]


class Script:
    """The commands of one script, and how what they find is shown."""

    def __init__(self, doc: str | None) -> None:
        self._doc = doc or ""
        self._commands: dict[str, tuple[Command, tuple[Option, ...]]] = {}
        self._notes: list[str] = []
        self._failed = False
        self._json = False

    def command(self, *options: Option) -> Callable[[Command], Command]:
        """Register a function under its name; the first line of its docstring is its help."""

        def register(function: Command) -> Command:
            self._commands[function.__name__.replace("_", "-")] = function, options
            return function

        return register

    def note(self, text: str) -> None:
        """A line beside the table."""
        self._notes.append(text)
        if not self._json:
            print(text, flush=True)

    def check(self, good: bool, claim: str) -> None:
        """A goal: said to be met or missed; one that is missed ends the script with exit code 1."""
        self.note(f"{claim}: {'met' if good else 'MISSED'}")
        self._failed |= not good

    def run(self) -> NoReturn:
        """Read the command line, run what it asks for, and exit."""
        asked = self.parser().parse_args()
        self._json = asked.json
        machine = Machine.here()
        if not self._json:
            print(machine_line(machine))
        try:
            rows = self._show(asked.run(asked), MarkdownTable() if asked.markdown else Table())
        except PeerError as error:
            sys.exit(str(error))
        if self._json:
            found = {"machine": machine.as_dict(), "notes": self._notes, "rows": rows}
            print(json.dumps(found, default=_plain, indent=1))
        sys.exit(self._failed)

    def _show(self, rows: Iterable[Row], table: Table) -> list[Row]:
        kept = []
        for row in rows:
            kept.append(row)
            if not self._json:
                for line in table.lines(row):
                    print(line, flush=True)
        return kept

    def parser(self) -> argparse.ArgumentParser:
        """What reads the command line."""
        parser = _new_parser(argparse.ArgumentParser, description=self._doc)
        if len(self._commands) == 1:
            ((command, options),) = self._commands.values()
            _add(parser, command, options)
            return parser
        below = parser.add_subparsers(required=True, metavar="COMMAND")
        for name, (command, options) in self._commands.items():
            doc = command.__doc__ or ""
            part = _new_parser(
                below.add_parser, name=name, description=doc, help=doc.strip().splitlines()[0]
            )
            _add(part, command, options)
        return parser


def _new_parser(make: Callable[..., Any], **settings: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = make(
        **settings, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    return parser


def _add(parser: argparse.ArgumentParser, command: Command, options: Sequence[Option]) -> None:
    for flags, settings in options:
        parser.add_argument(*flags, **settings)
    parser.add_argument("--json", action="store_true", help="one object instead of a table")
    parser.add_argument("--markdown", action="store_true", help="tables for a record")
    parser.set_defaults(run=command)


class Table:
    """Rows as text while they come: a heading again whenever the columns change."""

    def __init__(self) -> None:
        self._widths: dict[str, int] = {}

    def lines(self, row: Row) -> Iterator[str]:
        cells = {name: _text(value) for name, value in row.items()}
        if list(cells) != list(self._widths):
            self._widths = {name: max(len(name), len(text)) for name, text in cells.items()}
            first = next(iter(cells), None)
            if first is not None:
                self._widths[first] = max(self._widths[first], 36)
            yield self._line({name: name for name in cells})
        yield self._line(cells)

    def _line(self, cells: Mapping[str, str]) -> str:
        widths = self._widths.items()
        parts = [
            cells[name].rjust(width) if place else cells[name].ljust(width)
            for place, (name, width) in enumerate(widths)
        ]
        return "  ".join(parts).rstrip()


class MarkdownTable(Table):
    """The same, to be put into a record."""

    def lines(self, row: Row) -> Iterator[str]:
        if list(row) != list(self._widths):
            self._widths = dict.fromkeys(row, 0)
            yield ""
            yield self._line({name: name for name in row})
            yield f"|{'---|' * len(row)}"
        yield self._line({name: _text(value) for name, value in row.items()})

    def _line(self, cells: Mapping[str, str]) -> str:
        return f"| {' | '.join(cells.values())} |"


def _text(value: Any) -> str:
    if isinstance(value, Spread):
        return f"{_text(value.median)} ({_text(value.low)}-{_text(value.high)})"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, dict):
        return " ".join(f"{name}:{_text(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(_text, value))
    return "" if value is None else str(value)


def _plain(value: Any) -> Any:
    """For JSON: what it has no form for."""
    if isinstance(value, Spread):
        return value.as_dict("median")
    return value.item() if isinstance(value, np.generic) else str(value)


def machine_line(machine: Machine) -> str:
    """Processor, cores, system, versions, date."""
    peers = {name: package_version(name) for name in PEERS}
    versions = machine.versions | {name: text for name, text in peers.items() if text}
    load = "" if machine.load_average is None else f", load average {machine.load_average:.1f}"
    found = ", ".join(f"{name} {text}" for name, text in versions.items())
    date = time.strftime("%Y-%m-%d")
    return f"{machine.processor}, {machine.cores} cores, {machine.system}{load}; {found}; {date}"


def alternate(members: Mapping[str, Callable[[], float]], count: int) -> dict[str, list[float]]:
    """What each of these measured in `count` rounds that alternate, after one that warms up.

    Raises PeerError when one of them fails.
    """
    asks = {name: _alone(member) for name, member in members.items()}
    found, failed = take_turns({"": asks}, count)
    for name, reason in failed.items():
        raise PeerError(f"{name}: {reason}")
    return found[""]


def _alone(member: Callable[[], float]) -> Callable[[], list[float]]:
    return lambda: [member()]


def ratios(above: Sequence[float], below: Sequence[float]) -> Spread:
    """Of two that took turns, round by round."""
    return Spread.of(one / other for one, other in zip(above, below, strict=True))


def in_process(function: Callable[..., Any], *arguments: Any, **environment: str) -> Any:
    """What a function of one of these scripts returns in a fresh process; all of it as JSON.

    Where it fails: {"error": its last line}.
    """
    module = f"lab.{Path(function.__code__.co_filename).stem}"
    name = function.__name__
    program = (
        f"import json, sys\nfrom {module} import {name}\n"
        f"print(json.dumps({name}(*json.load(sys.stdin))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(arguments),
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": python_path()} | environment,
        check=False,
    )
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def python_path() -> str:
    """The checkout before what is already there."""
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


class Records:
    """Finished work by its key, a JSON object a line: a run that was stopped goes on from there."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, Any] = {}
        if path is not None and path.exists():
            raw = path.read_bytes()
            whole = raw[: raw.rfind(b"\n") + 1]  # a run that was killed may have left half a line
            os.truncate(path, len(whole))
            for line in whole.splitlines():
                record = json.loads(line)
                self._known[record["key"]] = record["found"]

    def __contains__(self, key: object) -> bool:
        return repr(key) in self._known

    def get(self, key: object, make: Callable[[], Any]) -> Any:
        """What is known under a key, else what `make` returns, which is kept."""
        name = repr(key)
        if name not in self._known:
            self._known[name] = make()
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as out:
                    line = {"key": name, "found": self._known[name]}
                    out.write(json.dumps(line, default=_plain) + "\n")
        return self._known[name]


def read_lines(path: Path) -> Iterator[Any]:
    """The objects of a file of JSON lines, packed by gzip or not."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def forget(engine: Engine) -> None:
    """Empty what drafters keep of earlier replies, so that rounds of one prompt do not find it.

    In place, because new tables would cost page faults that only an engine's first reply pays.
    """
    for session in engine.scheduler.slots:
        session.market.feed_all()  # what a drafter that was not asked would read later
        for source in session.market._sources:
            drafter = source.drafter
            shared = (getattr(drafter, name, None) for name in ("pool", "_history", "past"))
            for owner in (drafter, *shared):
                for name in ("_rows", "_trials", "rows", "_shorts", "_longs"):
                    table = getattr(owner, name, None)
                    if isinstance(table, np.ndarray):
                        table.fill(0)


def start_anew(engine: Engine) -> None:
    """`forget`, and hold no text either: no prompt's keys and values, and nothing set aside."""
    forget(engine)
    engine.scheduler.idle.close()
    for session in engine.scheduler.take_slots(engine.plan.sequences):
        session.sequence.truncate(0)
        session.ids.clear()
        for source in session.market._sources:
            if isinstance(source.drafter, ConsensusDrafter):
                source.drafter.pool.prompt = b""  # what is remembered of it goes with the next


def stored_bytes(engine: Engine) -> int:
    """What the drafters of an engine's own text hold."""
    return market_of(engine).size_bytes


def market_of(engine: Engine) -> Market:
    """Who drafts for an engine's own text."""
    return engine.scheduler.slots[0].market


@contextmanager
def timing_passes(engine: Engine) -> Iterator[list[tuple[float, float]]]:
    """When each of an engine's passes begins and ends, meanwhile; none is in a burst."""
    target, times = engine.scheduler.target, list[tuple[float, float]]()
    forward = target.forward

    def timed(*arguments: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        found = forward(*arguments, **options)
        times.append((begin, time.perf_counter()))
        return found

    target.forward = timed  # type: ignore[method-assign]
    target.compiled_pass = lambda *_: None  # type: ignore[method-assign]
    try:
        yield times
    finally:
        del target.forward, target.compiled_pass
