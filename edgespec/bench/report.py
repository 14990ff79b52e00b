"""What `edgespec bench kernels` found: plain values for JSON, and the same as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from edgespec.bench.curve import Work
from edgespec.bench.machine import BUSY, Machine
from edgespec.bench.spread import Spread
from edgespec.memory.plan import Plan
from edgespec.models.file import ModelFile

Bound = Literal["memory", "multiply", "neither"]
LEAST_SHARE = 0.5
"""A limit bounds a pass when reaching it takes at least this share of the time."""


@dataclass(frozen=True, slots=True)
class Model:
    """The file under test and what one of its passes has to do."""

    path: str
    name: str
    quantisation: str
    weight_bytes: int
    kv_bytes: int
    multiplications: int

    @classmethod
    def of(cls, file: ModelFile, plan: Plan, work: Work) -> Self:
        return cls(
            str(file.path), file.path.name, plan.quantisation,
            work.weight_bytes, work.kv_bytes, work.multiplications,
        )  # fmt: skip

    @property
    def read_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes


@dataclass(frozen=True, slots=True)
class RoofRates:
    """What this machine can do, per second, with as many threads as the model uses."""

    read: Spread
    copy: Spread
    multiply: Spread
    buffer_bytes: int
    instruction: str


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over n tokens, held against the roofs."""

    nodes: int
    time: Spread
    ratio: float
    """To the time of one token."""
    bytes_per_second: float
    read_share: float
    multiplications_per_second: float
    multiply_share: float

    @property
    def bound(self) -> Bound:
        """The limit that is nearer, if it is near at all."""
        if max(self.read_share, self.multiply_share) < LEAST_SHARE:
            return "neither"
        return "memory" if self.read_share >= self.multiply_share else "multiply"

    def as_dict(self) -> dict[str, Any]:
        return {
            "nodes": self.nodes,
            **self.time.as_dict("seconds"),
            "ratio": self.ratio,
            "gigabytes_per_second": self.bytes_per_second / 1e9,
            "read_share": self.read_share,
            "gigamultiplications_per_second": self.multiplications_per_second / 1e9,
            "multiply_share": self.multiply_share,
            "bound": self.bound,
        }


@dataclass(frozen=True, slots=True)
class PeerCurve:
    """What another engine took; `error` says why there is nothing."""

    name: str
    title: str
    version: str
    what: str
    read_bytes: int
    times: Mapping[int, Spread]
    error: str = ""


@dataclass(frozen=True, slots=True)
class KernelReport:
    """Everything one run measured."""

    machine: Machine
    others_processors: float
    """Processors that other programs kept busy meanwhile."""
    model: Model
    threads: int
    isa: str
    context: int
    rounds: int
    roofs: RoofRates
    curve: Mapping[int, Spread]
    peers: Sequence[PeerCurve] = field(default=())

    @property
    def passes(self) -> list[Pass]:
        """T(n) by n, with shares of the roofs."""
        found = []
        for n, time in self.curve.items():
            read = self.model.read_bytes / time.median
            multiplied = n * self.model.multiplications / time.median
            found.append(
                Pass(
                    n,
                    time,
                    time.median / self.curve[1].median,
                    read,
                    read / self.roofs.read.median,
                    multiplied,
                    multiplied / self.roofs.multiply.median,
                )
            )
        return found

    @property
    def warning(self) -> str:
        """A sentence when other programs took part of the machine, else ""."""
        if self.others_processors <= BUSY * self.machine.cores:
            return ""
        return (
            f"other programs kept {self.others_processors:.1f} of {self.machine.cores} processors "
            "busy meanwhile: times are too long and ratios uncertain; close them and measure again"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        model, roofs = self.model, self.roofs
        return {
            "model": {
                "path": model.path,
                "quantisation": model.quantisation,
                "weight_bytes": model.weight_bytes,
                "kv_bytes": model.kv_bytes,
                "multiplications_per_token": model.multiplications,
            },
            "machine": self.machine.as_dict()
            | {"other_programs_processors": self.others_processors, "warning": self.warning},
            "isa": self.isa,
            "threads": self.threads,
            "context": self.context,
            "rounds": self.rounds,
            "roofs": {
                "read": roofs.read.as_dict("gigabytes_per_second", 1e-9),
                "copy": roofs.copy.as_dict("gigabytes_per_second", 1e-9),
                "multiply": roofs.multiply.as_dict("gigamultiplications_per_second", 1e-9)
                | {"instruction": roofs.instruction},
                "buffer_bytes": roofs.buffer_bytes,
            },
            "curve": [found.as_dict() for found in self.passes],
            "peers": [self._peer(peer) for peer in self.peers],
        }

    def _peer(self, peer: PeerCurve) -> dict[str, Any]:
        single = peer.times[1].median if peer.times else 0.0
        return {
            "name": peer.name,
            "version": peer.version,
            "what": peer.what,
            "read_bytes": peer.read_bytes,
            "error": peer.error or None,
            "curve": [
                {
                    "nodes": n,
                    **time.as_dict("seconds"),
                    "ratio": time.median / single,
                    "gigabytes_per_second": peer.read_bytes / time.median / 1e9,
                    "times_ours": time.median / self.curve[n].median,
                    "ours_to_its_single": self.curve[n].median / single,
                }
                for n, time in peer.times.items()
            ],
        }

    def lines(self) -> Iterator[str]:
        """The whole report as text, in 80 columns where names allow."""
        yield from self._head()
        yield ""
        yield from self._roof_lines()
        yield ""
        yield f"EdgeSpec, {self.isa}"
        yield from table(_HEADER, [_row(found) for found in self.passes])
        yield "  bound by: the nearer limit, where reaching it takes half the time or more"
        for peer in self.peers:
            yield ""
            yield from self._peer_lines(peer)
        if self.warning:
            yield ""
            yield from wrapped(f"! {self.warning}")

    def _head(self) -> Iterator[str]:
        model, machine = self.model, self.machine
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        load = "" if machine.load_average is None else f", load average {machine.load_average:.1f}"
        yield f"{model.name}, {model.quantisation}"
        yield (
            f"  a pass reads {_megabytes(model.weight_bytes)} of weights and "
            f"{_megabytes(model.kv_bytes)} of keys and values ({self.context} tokens)"
        )
        yield (
            f"  and multiplies {model.multiplications / 1e6:.1f} million times a token "
            "(attention's not counted)"
        )
        yield f"{machine.processor}, {machine.cores} cores, {machine.system}{load}"
        yield "  " + ", ".join(f"{name} {text}" for name, text in machine.versions.items())
        yield (
            f"{threads}; {self.rounds} round{'' if self.rounds == 1 else 's'} of taking turns; "
            "medians, lowest and highest"
        )

    def _roof_lines(self) -> Iterator[str]:
        roofs = self.roofs
        limits = (
            ("read", roofs.read, "GB/s", f"{_megabytes(roofs.buffer_bytes)}, as often as needed"),
            ("copy", roofs.copy, "GB/s", "what is read and what is written"),
            ("multiply", roofs.multiply, "GMAC/s", roofs.instruction),
        )
        yield "This machine"
        rows = [
            [name, f"{rate.median / 1e9:.1f}", *_ends(rate, 1e-9), unit, note]
            for name, rate, unit, note in limits
        ]
        for line in table(["", "", "low-high", "", ""], rows, left=(0, 3, 4))[1:]:
            yield line.rstrip()

    def _peer_lines(self, peer: PeerCurve) -> Iterator[str]:
        if peer.error:
            yield from wrapped(f"! {peer.error}")
            return
        yield from wrapped(f"{peer.title} {peer.version}: {peer.what}")
        single, rows = peer.times[1].median, []
        for n, time in peer.times.items():
            rate = peer.read_bytes / time.median
            ours = self.curve[n].median
            rows.append(
                [
                    *_time_cells(n, time, time.median / single),
                    *(_number(rate / 1e9), _percent(rate / self.roofs.read.median)),
                    *(f"{time.median / ours:.2f}x", f"{ours / single:.2f}"),
                ]
            )
        yield from table(_PEER_HEADER, rows)


_TIME_HEADER = ["n", "T(n), ms", "low-high", "T(n)/T(1)", "GB/s", "of read"]
_HEADER = [*_TIME_HEADER, "GMAC/s", "of peak", "bound by"]
_PEER_HEADER = [*_TIME_HEADER, "/ ours", "ours / its T(1)"]


def _row(found: Pass) -> list[str]:
    return [
        *_time_cells(found.nodes, found.time, found.ratio),
        _number(found.bytes_per_second / 1e9),
        _percent(found.read_share),
        _number(found.multiplications_per_second / 1e9),
        _percent(found.multiply_share),
        found.bound,
    ]


def _time_cells(n: int, time: Spread, ratio: float) -> list[str]:
    return [str(n), f"{time.median * 1e3:.2f}", *_ends(time, 1e3), f"{ratio:.2f}"]


def _ends(spread: Spread, scale: float) -> list[str]:
    low, high = spread.low * scale, spread.high * scale
    digits = 2 if high < 100 else 1
    return [f"{low:.{digits}f}-{high:.{digits}f}"]


def _number(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB"


def wrapped(text: str) -> list[str]:
    """Lines of prose in 80 columns, those after the first indented."""
    return textwrap.wrap(text, 80, subsequent_indent="  ", break_long_words=False)


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = ()
) -> list[str]:
    """Lines of cells in columns, flush right but for those in `left`, the header first."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        for cells in (header, *rows)
    ]
