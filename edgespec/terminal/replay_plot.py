"""A replay as a picture: tokens per step of each source, and the speed-up predicted from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edgespec.tools.bench.picture import Picture
from edgespec.tools.replay.report import ReplayReport, SourceReport

_COLOURS = {"market": "#111111", "prompt-lookup": "#b3462c"}
_OTHERS = "#4f7cac"


class ReplayPlotter:
    """Draws to one file; raises OptionError when that cannot work, before anything is replayed."""

    def __init__(self, path: Path) -> None:
        self._picture = Picture(path)

    def draw(self, report: ReplayReport) -> None:
        """Write the picture; raises EdgeSpecError when the file cannot be written."""
        height = 1.6 + 0.34 * len(report.sources)
        figure = self._picture.figure(9.0, height)
        left, right = figure.subplots(1, 2, sharey=True)
        sources = list(reversed(report.sources))
        _bars(left, sources, lambda source: source.tokens_per_step, "{:.2f}")
        _bars(right, sources, lambda source: source.predicted_speedup, "{:.2f}x")
        left.set_title(f"tokens per step, {report.max_nodes} drafted tokens at most", fontsize=10)
        right.set_title("predicted speed against plain decoding", fontsize=10)
        figure.suptitle(
            f"{report.replies} replies, {report.output_tokens} tokens; passes: "
            f"{report.prices.origin}",
            fontsize=9,
        )
        self._picture.save(figure)


def _bars(
    axes: Any,
    sources: Sequence[SourceReport],
    value: Callable[[SourceReport], float],
    form: str,
) -> None:
    values = [value(source) for source in sources]
    colours = [_COLOURS.get(source.name, _OTHERS) for source in sources]
    bars = axes.barh([source.name for source in sources], values, color=colours, height=0.6)
    axes.bar_label(bars, [form.format(number) for number in values], padding=3, fontsize=8)
    axes.axvline(1.0, color="#777777", linewidth=1.0, linestyle=":")
    axes.set_xlim(0, 1.15 * max(1.0, *values))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
