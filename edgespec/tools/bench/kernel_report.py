"""What `edgespec bench kernels` found, as plain values; `text.py` and `plot.py` show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Literal, Self

from edgespec.memory.plan.plan import Plan
from edgespec.models.file import ModelFile
from edgespec.system.records import dataclass
from edgespec.tools.bench.curve import Work
from edgespec.tools.bench.machine import BUSY, Machine
from edgespec.tools.bench.spread import Spread

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
    joules_per_token: float | None = None
    """Of the whole machine; None where it does not tell."""

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
            "joules_per_token": self.joules_per_token,
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
    watts: Mapping[int, float] = field(default_factory=dict)
    """Of the whole machine while it computed; empty where that does not tell."""

    @property
    def joules_per_token(self) -> dict[int, float]:
        """By n."""
        return _joules_per_token(self.times, self.watts)


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
    watts: Mapping[int, float] = field(default_factory=dict)
    """Of the whole machine while our passes ran; empty where it does not tell."""

    @property
    def passes(self) -> list[Pass]:
        """T(n) by n, with shares of the roofs."""
        found, joules = [], _joules_per_token(self.curve, self.watts)
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
                    joules.get(n),
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
                    "joules_per_token": peer.joules_per_token.get(n),
                }
                for n, time in peer.times.items()
            ],
        }


def _joules_per_token(times: Mapping[int, Spread], watts: Mapping[int, float]) -> dict[int, float]:
    return {n: watts[n] * time.median / n for n, time in times.items() if n in watts}
