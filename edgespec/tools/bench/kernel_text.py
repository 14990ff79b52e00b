"""A report of the kernels as text, in 80 columns where names allow."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from edgespec.tools.bench.kernel_report import KernelReport, Pass, PeerCurve
from edgespec.tools.bench.spread import Spread

_TIME_HEADER = ["n", "T(n), ms", "low-high", "T(n)/T(1)", "GB/s", "of read"]
_HEADER = [*_TIME_HEADER, "GMAC/s", "of peak", "bound by"]
_PEER_HEADER = [*_TIME_HEADER, "/ ours", "ours / its T(1)"]


def lines(report: KernelReport) -> Iterator[str]:
    """The whole report as text, in 80 columns where names allow."""
    yield from _head(report)
    yield ""
    yield from _roof_lines(report)
    yield ""
    yield f"EdgeSpec, {report.isa}"
    yield from _table(_HEADER, [_row(found) for found in report.passes])
    yield "  bound by: the nearer limit, where reaching it takes half the time or more"
    energy = {found.nodes: found.joules_per_token for found in report.passes}
    told = {n: joules for n, joules in energy.items() if joules is not None}
    yield from _energy(told) if told else ["  energy: not available on this machine"]
    for peer in report.peers:
        yield ""
        yield from _peer_lines(report, peer)
    if report.warning:
        yield ""
        yield from _wrapped(f"! {report.warning}")


def _head(report: KernelReport) -> Iterator[str]:
    model, machine = report.model, report.machine
    threads = f"{report.threads} thread{'' if report.threads == 1 else 's'}"
    load = "" if machine.load_average is None else f", load average {machine.load_average:.1f}"
    yield f"{model.name}, {model.quantisation}"
    yield (
        f"  a pass reads {_megabytes(model.weight_bytes)} of weights and "
        f"{_megabytes(model.kv_bytes)} of keys and values ({report.context} tokens)"
    )
    yield (
        f"  and multiplies {model.multiplications / 1e6:.1f} million times a token "
        "(attention's not counted)"
    )
    yield f"{machine.processor}, {machine.cores} cores, {machine.system}{load}"
    yield "  " + ", ".join(f"{name} {text}" for name, text in machine.versions.items())
    yield (
        f"{threads}; {report.rounds} round{'' if report.rounds == 1 else 's'} of taking turns; "
        "medians, lowest and highest"
    )


def _roof_lines(report: KernelReport) -> Iterator[str]:
    roofs = report.roofs
    limits = (
        ("read", roofs.read, "GB/s", f"{_megabytes(roofs.buffer_bytes)}, as often as needed"),
        ("copy", roofs.copy, "GB/s", "what is read and what is written"),
        ("multiply", roofs.multiply, "GMAC/s", roofs.instruction),
    )
    yield "This machine"
    rows = [
        [name, f"{rate.median / 1e9:.1f}", _ends(rate, 1e-9), unit, note]
        for name, rate, unit, note in limits
    ]
    for line in _table(["", "", "low-high", "", ""], rows, left=(0, 3, 4))[1:]:
        yield line.rstrip()


def _peer_lines(report: KernelReport, peer: PeerCurve) -> Iterator[str]:
    if peer.error:
        yield from _wrapped(f"! {peer.error}")
        return
    yield from _wrapped(f"{peer.title} {peer.version}: {peer.what}")
    single, rows = peer.times[1].median, []
    for n, time in peer.times.items():
        rate = peer.read_bytes / time.median
        ours = report.curve[n].median
        rows.append(
            [
                *_time_cells(n, time, time.median / single),
                *(_number(rate / 1e9), _percent(rate / report.roofs.read.median)),
                *(f"{time.median / ours:.2f}x", f"{ours / single:.2f}"),
            ]
        )
    yield from _table(_PEER_HEADER, rows)
    yield from _energy(peer.joules_per_token)


def _energy(joules: Mapping[int, float]) -> list[str]:
    """The whole machine's, by n."""
    told = ", ".join(f"{each:.3g} at n={n}" for n, each in joules.items())
    return _wrapped(f"  joules a token: {told}") if joules else []


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
    return [str(n), f"{time.median * 1e3:.2f}", _ends(time, 1e3), f"{ratio:.2f}"]


def _ends(spread: Spread, scale: float) -> str:
    low, high = spread.low * scale, spread.high * scale
    digits = 2 if high < 100 else 1
    return f"{low:.{digits}f}-{high:.{digits}f}"


def _number(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB"


def _wrapped(text: str) -> list[str]:
    """Lines of prose in 80 columns, those after the first indented."""
    return textwrap.wrap(text, 80, subsequent_indent="  ", break_long_words=False)


def _table(
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
