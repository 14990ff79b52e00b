"""The loss curves of one or more runs, each of which went on from the weights of the one before."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib import pyplot

MILLION = 1e6


def plot(logs: Sequence[Path], path: Path) -> None:
    """Draw the losses in nats per token, over millions of tokens, and the share of the peak rate.

    `logs` are `log.jsonl` files; the format of the picture is that of `path`'s name.
    """
    matplotlib.rcParams["svg.hashsalt"] = "edgespec"  # the same picture, the same bytes
    figure, (losses, rates) = pyplot.subplots(
        2, 1, sharex=True, figsize=(8, 5), height_ratios=(4, 1), layout="constrained"
    )
    start = 0.0
    for number, log in enumerate(logs):
        read = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        # A run that was cut off tells of its last steps again.
        by_step = {line["step"]: line for line in read}
        lines = [by_step[step] for step in sorted(by_step)]
        tokens = [start + line["tokens"] / MILLION for line in lines]
        for key, colour, label in (
            ("loss", "C0", "last layer"),
            ("exit_loss", "C1", "early exits"),
        ):
            losses.plot(
                tokens, [line[key] for line in lines], colour, label=None if number else label
            )
        rates.plot(tokens, [line["lr_factor"] for line in lines], "C2")
        if number:
            losses.axvline(start, color="0.7", linestyle=":")
        start = tokens[-1]
    losses.set_ylabel("training loss, nats per token")
    losses.set_ylim(top=min(losses.get_ylim()[1], 6.0))
    losses.grid(alpha=0.3)
    losses.legend()
    rates.set_ylabel("rate / peak")
    rates.set_xlabel("million tokens")
    rates.set_ylim(0, 1.05)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
