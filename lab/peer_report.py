"""What `peers.py` measured, as text: tables, the shapes of the curves, and the goals."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SIZES = (1, 2, 4, 8, 16)
PREFILL_TOKENS = 512
DECODE_TOKENS = 48
Seconds = dict[str, dict[str, list[float]]]
"""Name of the measure -> engine -> seconds, one figure for each round."""


def text(found: Mapping[str, Any]) -> str:
    """Everything about one model."""
    lines = [
        f"{found['model']}: {found['types']}, {found['weight_bytes'] / 1e6:.0f} MB of weights read "
        f"per pass, {found['isa']}",
        f"llama.cpp: {found['llama_build']}",
        *_lined_up(_prefill_rows(found["prefill"]["seconds"])),
    ]
    for past, part in found["contexts"].items():
        read = [rate / 1e9 for rate in part["read_rates"]]
        lines += [
            f"context {past}: {part['read_bytes'] / 1e6:.0f} MB read at n=1; this machine reads "
            f"{_median(read, '{:.1f}')} GB/s ({_range(read, '{:.1f}')})",
            *_lined_up(_rows(part)),
            *_shapes(part["seconds"]),
        ]
    return "\n".join([*lines, *_lined_up(_goal_rows(found))])


def _prefill_rows(seconds: Seconds) -> list[list[str]]:
    header = ["", "EdgeSpec", "low-high", "llama.cpp", "low-high", "ratio"]
    return [header, *(_rate_row(name, engines) for name, engines in seconds.items())]


def _rows(part: Mapping[str, Any]) -> list[list[str]]:
    header = ["", "EdgeSpec", "low-high", "llama.cpp", "low-high", "ratio", "GB/s"]
    lines = [header]
    for name, engines in part["seconds"].items():
        if not name.startswith("T("):
            lines.append([*_rate_row(name, engines), ""])
            continue
        cells = [name]
        for side in engines.values():
            milliseconds = [1e3 * seconds for seconds in side]
            cells += [_median(milliseconds, "{:.2f} ms"), _range(milliseconds, "{:.2f}")]
        speeds = [part["read_bytes"] / statistics.median(side) / 1e9 for side in engines.values()]
        lines.append([*cells, _faster(engines), f"{speeds[0]:.1f} / {speeds[1]:.1f}"])
    return lines


def _rate_row(name: str, engines: Mapping[str, Sequence[float]]) -> list[str]:
    """A measure whose name ends with the number of tokens that were computed."""
    count, cells = int(name.split()[1]), [name]
    for side in engines.values():
        rates = [count / seconds for seconds in side]
        cells += [_median(rates, "{:.1f} tok/s"), _range(rates, "{:.1f}")]
    return [*cells, _faster(engines)]


def _faster(engines: Mapping[str, Sequence[float]]) -> str:
    return _median(_ratios(engines["llama.cpp"], engines["edgespec"]), "{:.2f}x")


def _shapes(seconds: Seconds) -> list[str]:
    """Both curves in units of their own single token, and ours in units of the peer's."""
    curves = {
        side: {n: statistics.median(seconds[f"T({n})"][side]) for n in SIZES}
        for side in ("edgespec", "llama.cpp")
    }

    def shape(side: str, unit: float) -> str:
        return "  ".join(f"n={n}: {curves[side][n] / unit:.2f}" for n in SIZES)

    lines = [f"T(n)/T(1), {side}:  {shape(side, curves[side][1])}" for side in curves]
    ours = shape("edgespec", curves["llama.cpp"][1])
    return [*lines, f"EdgeSpec's T(n) / llama.cpp's T(1):  {ours}"]


@dataclass(frozen=True, slots=True)
class Goal:
    """A ratio to be reached, one limit for each kind of file."""

    name: str
    limits: Mapping[str, float]
    at_most: bool
    measure: Callable[[Mapping[str, Any]], list[float]]
    """Ratios of a context's measurements, one for each round."""

    def verdict(self, kind: str, ratios: Sequence[float]) -> str:
        limit, found = self.limits[kind], statistics.median(ratios)
        met = found <= limit if self.at_most else found >= limit
        return f"{found:.2f} ({_range(ratios, '{:.2f}')}) {'met' if met else 'MISSED'}"

    def limit(self, kind: str) -> str:
        return f"{'<=' if self.at_most else '>='} {self.limits[kind]:g}"


def _ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Round by round: both were measured within seconds of each other."""
    return [one / other for one, other in zip(above, below, strict=True)]


def _between(above: tuple[str, str], below: tuple[str, str]) -> Any:
    """A goal's measure: (name, engine) over (name, engine)."""
    return lambda part: _ratios(
        part["seconds"][above[0]][above[1]], part["seconds"][below[0]][below[1]]
    )


def _bandwidth_share(part: Mapping[str, Any]) -> list[float]:
    rates = [part["read_bytes"] / seconds for seconds in part["seconds"]["T(1)"]["edgespec"]]
    return _ratios(rates, part["read_rates"])


def _limits(q8_0: float, q4_0: float, q4_k_m: float) -> dict[str, float]:
    return {"Q8_0": q8_0, "Q4_0": q4_0, "Q4_K_M": q4_k_m}


_OURS, _THEIRS = "edgespec", "llama.cpp"
_DECODE, _PREFILL = f"decode {DECODE_TOKENS}", f"prefill {PREFILL_TOKENS}"
GOALS = (
    Goal("plain decoding, times llama.cpp's speed", _limits(1.4, 1.5, 1.3), False,
         _between((_DECODE, _THEIRS), (_DECODE, _OURS))),
    Goal("our T(8) / llama.cpp's T(1)", _limits(1.1, 1.2, 1.4), True,
         _between(("T(8)", _OURS), ("T(1)", _THEIRS))),
    Goal("share of read bandwidth at n=1", _limits(0.8, 0.65, 0.6), False, _bandwidth_share),
    Goal("T(4)/T(1)", _limits(1.25, 1.3, 1.4), True, _between(("T(4)", _OURS), ("T(1)", _OURS))),
    Goal("T(8)/T(1)", _limits(1.8, 2.2, 2.4), True, _between(("T(8)", _OURS), ("T(1)", _OURS))),
    Goal("T(8), times faster than llama.cpp's", _limits(3.5, 4.0, 4.0), False,
         _between(("T(8)", _THEIRS), ("T(8)", _OURS))),
    Goal("prefill 512, times llama.cpp's speed", _limits(2.0, 2.0, 1.8), False,
         _between((_PREFILL, _THEIRS), (_PREFILL, _OURS))),
)  # fmt: skip
AVX2_GOALS = (
    Goal("T(1), times faster than llama.cpp's", _limits(1.0, 1.0, 1.0), False,
         _between(("T(1)", _THEIRS), ("T(1)", _OURS))),
    Goal("T(4)/T(1)", _limits(1.6, 1.6, 1.6), True, _between(("T(4)", _OURS), ("T(1)", _OURS))),
)  # fmt: skip


def _goal_rows(found: Mapping[str, Any]) -> list[list[str]]:
    """Each goal for this kind of file with what was found in each context."""
    kind = {"Q8_0": "Q8_0", "Q4_0": "Q4_0", "Q4_K": "Q4_K_M"}.get(found["types"].split("+")[0])
    if kind is None:
        return []
    rows = [[f"goals for {kind}, {found['isa']}", "", *(f"context {n}" for n in found["contexts"])]]
    for goal in AVX2_GOALS if found["isa"] == "avx2" else GOALS:
        cells = []
        for part in found["contexts"].values():
            everything = {**part, "seconds": {**part["seconds"], **found["prefill"]["seconds"]}}
            cells.append(goal.verdict(kind, goal.measure(everything)))
        rows.append([goal.name, goal.limit(kind), *cells])
    return rows


def _lined_up(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _median(values: Sequence[float], form: str) -> str:
    return form.format(statistics.median(values))


def _range(values: Sequence[float], form: str) -> str:
    return f"{form.format(min(values))}-{form.format(max(values))}"
