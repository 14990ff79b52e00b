"""The report as a picture: how T(n) grows, and how near it comes to this machine's limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.system.records import dataclass
from edgespec.tools.bench.kernel_report import KernelReport
from edgespec.tools.bench.picture import Picture
from edgespec.tools.bench.spread import Spread

_STYLES = (("#111111", "o", "-"), ("#b3462c", "s", "--"), ("#4f7cac", "^", "-."))
"""Colour, marker and line of each engine: told apart in grey by the latter two."""
_ROOF = "#777777"
_SHIFT = 1.03


@dataclass(frozen=True, slots=True)
class _Line:
    """One engine's curve."""

    label: str
    times: Mapping[int, Spread]
    read_bytes: int


class Plotter:
    """Draws to one file; raises OptionError when that cannot work, before anything is measured."""

    def __init__(self, path: Path) -> None:
        self._picture = Picture(path)

    def draw(self, report: KernelReport) -> None:
        """Write the picture; raises EdgeSpecError when the file cannot be written."""
        figure = self._picture.figure(9.0, 4.4)
        left, right = figure.subplots(1, 2)
        lines = list(_lines(report))
        _draw_growth(left, lines)
        _draw_rates(right, lines, report)
        for axes in (left, right):
            _finish(axes, list(report.curve))
        figure.suptitle(_title(report), fontsize=9)
        handles, labels = left.get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=len(labels), frameon=False,
            fontsize=9,
        )  # fmt: skip
        self._picture.save(figure)


def _lines(report: KernelReport) -> Iterator[_Line]:
    yield _Line("EdgeSpec", report.curve, report.model.read_bytes)
    for peer in report.peers:
        if peer.times:
            matmuls = " (matmuls only)" if peer.name == "onnx" else ""
            yield _Line(f"{peer.title}{matmuls}", peer.times, peer.read_bytes)


def _draw_growth(axes: Any, lines: list[_Line]) -> None:
    """T(n)/T(1)."""
    highest = 1.0
    for place, line in enumerate(lines):
        single = line.times[1].median
        points = {n: _scaled(time, 1 / single) for n, time in line.times.items()}
        _draw(axes, line, points, place)
        highest = max(highest, *(point.median for point in points.values()))
    axes.set_ylabel("T(n) / T(1)")
    axes.set_title("What a pass over n tokens costs, in passes over one", fontsize=10)
    axes.set_ylim(0, 1.15 * highest)  # a single slow pass must not flatten all curves


def _draw_rates(axes: Any, lines: list[_Line], report: KernelReport) -> None:
    """Bytes read per second, under what memory and multiplication allow."""
    highest = read = report.roofs.read.median / 1e9
    for place, line in enumerate(lines):
        rates = {n: time.rate(line.read_bytes / 1e9) for n, time in line.times.items()}
        _draw(axes, line, rates, place)
        highest = max(highest, *(rate.median for rate in rates.values()))
    top = 1.3 * highest
    style: dict[str, Any] = {"color": _ROOF, "linewidth": 1.2}
    limits = [axes.axhline(read, linestyle=":", label=f"memory's limit, {read:.1f} GB/s", **style)]
    per_second = report.roofs.multiply.median / report.model.multiplications
    sizes = np.geomspace(1, max(report.curve), 100)
    multiplying = report.model.read_bytes / 1e9 * per_second / sizes
    if multiplying[-1] < top:
        label = f"multiplying's limit, {report.roofs.multiply.median / 1e9:.0f} GMAC/s"
        limits += axes.plot(sizes, multiplying, label=label, **style)
    axes.legend(handles=limits, loc="upper right", fontsize=8, edgecolor="none", framealpha=0.9)
    axes.set_ylabel("weights and KV read, GB/s")
    axes.set_title("How near that is to this machine's limits", fontsize=10)
    axes.set_ylim(0, top)


def _draw(axes: Any, line: _Line, points: Mapping[int, Spread], place: int) -> None:
    """A curve through the medians, with thin bars from the lowest to the highest.

    Each engine's points stand a little to the right of the one's before, so that bars do not hide
    each other.
    """
    colour, marker, stroke = _STYLES[place % len(_STYLES)]
    medians = [point.median for point in points.values()]
    ends = [
        [point.median - point.low for point in points.values()],
        [point.high - point.median for point in points.values()],
    ]
    axes.errorbar(
        [n * _SHIFT**place for n in points], medians, ends, color=colour, marker=marker,
        markersize=5, linestyle=stroke, linewidth=1.6, elinewidth=0.7, capsize=2, label=line.label,
    )  # fmt: skip


def _scaled(spread: Spread, factor: float) -> Spread:
    return Spread(spread.median * factor, spread.low * factor, spread.high * factor)


def _finish(axes: Any, sizes: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.minorticks_off()
    axes.set_xlabel("n, tokens in one pass")
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _title(report: KernelReport) -> str:
    threads = f"{report.threads} thread{'' if report.threads == 1 else 's'}"
    return (
        f"{report.model.name} ({report.model.quantisation}), {report.context} tokens in the cache\n"
        f"{report.machine.processor}, {threads}, {report.isa}, "
        f"EdgeSpec {report.machine.versions['edgespec']}; medians of {report.rounds} rounds, "
        "bars from lowest to highest"
    )
