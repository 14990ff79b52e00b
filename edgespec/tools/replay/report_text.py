"""A report of a replay as text, in 80 columns where names allow."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from edgespec.tools.replay.report import ReplayReport, SourceReport

_HEADER = f"{'':17}{'tokens/step':>12}{'drafted':>10}{'accepted':>10}{'us/step':>9}{'speed-up':>10}"


def lines(report: ReplayReport) -> Iterator[str]:
    """The whole report."""
    yield (
        f"{report.replies} repl{'y' if report.replies == 1 else 'ies'}, "
        f"{report.output_tokens} tokens, to prompts of {report.prompt_tokens}; "
        f"{report.vocabulary}"
    )
    yield ""
    yield _HEADER
    for source in report.sources:
        yield _row(source)
    yield ""
    yield from _notes(report)


def _row(source: SourceReport) -> str:
    tally = source.tally
    return (
        f"{source.name:17}{source.tokens_per_step:12.2f}{tally.drafted:10}{tally.accepted:10}"
        f"{source.microseconds_per_step:9.1f}{source.predicted_speedup:9.2f}x"
    )


def _notes(report: ReplayReport) -> Iterator[str]:
    members = ", ".join(report.in_market)
    yield from _wrapped(
        f"tokens/step: with up to {report.max_nodes} drafted tokens verified in every step, "
        f"whatever that costs; market: {members}; prompt-lookup: 10 tokens after a match of 3"
    )
    curve = ", ".join(
        f"T({n}) {1e3 * seconds:.3g}" for n, seconds in sorted(report.prices.curve.items())[:6]
    )
    yield from _wrapped(
        "speed-up: predicted against plain decoding, when only what pays is verified "
        f"(prompt-lookup: always); passes in ms: {curve} ({report.prices.origin})"
    )
    if report.left_out:
        yield from _wrapped(
            "not replayed, because they learn from the model's logits, which a log does not hold: "
            + ", ".join(report.left_out)
        )


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 80, subsequent_indent="  ", break_long_words=False)
