"""`edgespec adapt`: what was fitted, and whether it pays."""

from __future__ import annotations

import sys
from typing import Any

from edgespec.system.size import format_size
from edgespec.terminal.progress import ProgressLine
from edgespec.terminal.text_io import printable
from edgespec.tools.adapt.adapt import adapt


def adapt_model(
    model: str,
    data: str,
    exit_layer: str,
    memory: str,
    threads: int | None,
    max_tokens: int | None,
    *,
    quiet: bool,
) -> dict[str, Any]:
    """Fit and, unless `quiet`, say what came of it; returns the facts for JSON."""
    with ProgressLine(sys.stderr) as line:
        made = adapt(
            model,
            data,
            exit_layer=exit_layer,
            memory=memory,
            threads=threads,
            max_tokens=max_tokens,
            progress=line,
        )
    if quiet:
        return made.as_dict()
    print(
        f"{printable(str(made.path))}: {format_size(made.size_bytes)}, fitted to {made.tokens} "
        f"tokens in {made.seconds:.0f} s, peak memory {format_size(made.peak_memory_bytes)} of a "
        f"budget of {format_size(made.budget_bytes)}"
    )
    print(f"tokens that each exit predicts, of {made.judged_tokens} held out:")
    for fit in made.fits:
        verdict = "" if fit.pays else "   no gain, left out"
        print(
            f"  after layer {fit.layer:<3} {100 * fit.before:5.1f} % -> {100 * fit.after:5.1f} %"
            f"{verdict}"
        )
    if made.pays:
        print("use it with --drafters suffix-automaton,trigram,early-exit")
    return made.as_dict()
