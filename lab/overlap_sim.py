"""What drafting while the target verifies would bring on machines that are not here.

    python benchmarks/overlap_sim.py                     12 profiles, of the assumptions in PROFILES
    python benchmarks/overlap_sim.py --validate DRAFT.gguf --model MODEL [options of
    overlapped_drafter.py]

The engine's own loop, market, controller and overlap run on a clock of their own: passes and drafts
compute nothing and take what a profile says, and drafts are right as often as it says. Drafting in
turn is compared with drafting ahead without branches ("chain", as PEARL does), with branches, and
with what `auto` makes of it. `--validate` takes the profile from two real models, what passes and
drafts take alone and beside each other, and where the draft model is right and how sure it is; and
holds what it predicts against real runs.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.overlap import add_machine
from benchmarks.overlap_pairs import validate
from benchmarks.overlap_world import OPTIONS, Profile, Trace, play
from edgespec.drafting.model.chains import NUM_MARGINS, first_rates
from edgespec.drafting.model.model_drafter import Draw
from edgespec.models.file import open_model
from edgespec.models.registry import resolve

SIZES = (1, 2, 3, 4, 6, 8, 12, 16)


def profile(
    name: str, pass_ms: float, more: float, draft_ms: float, right: float, slowdown: float,
    hold_up: float,
) -> Profile:  # fmt: skip
    """Each node more adds the part `more` of the first to a pass, and 5 % to a draft."""
    passes = {n: 1e-3 * pass_ms * (1 + more * (n - 1)) for n in SIZES}
    drafts = {n: 1e-3 * draft_ms * (1 + 0.05 * (n - 1)) for n in SIZES}
    return Profile(name, passes, drafts, right, slowdown, hold_up)


PROFILES = (
    # Assumed: a pass reads the weights once (pass = bytes / bandwidth); nodes are nearly free on
    # GPUs and cost more where arithmetic is short; a draft model has 1/8 to 1/30 of the bytes; both
    # on one memory hold each other up, on two machines not at all.
    profile("phone, big cores + little cores", 120, 0.08, 18, 0.75, 1.0, 0.35),
    profile("phone, NPU + little cores", 45, 0.01, 7, 0.75, 1.0, 0.15),
    profile("laptop, iGPU + CPU", 60, 0.03, 7, 0.75, 1.0, 0.30),
    profile("laptop, dGPU + CPU", 22, 0.005, 4, 0.75, 1.0, 0.0),
    profile("laptop, P cores + E cores", 80, 0.05, 14, 0.75, 1.05, 0.30),
    profile("desktop, dGPU + CPU", 35, 0.004, 3, 0.80, 1.0, 0.0),
    profile("desktop, 16 cores", 90, 0.06, 8, 0.75, 1.05, 0.40),
    profile("mini PC, 4 cores", 140, 0.07, 20, 0.70, 1.15, 0.50),
    profile("board, 4 small cores", 400, 0.10, 60, 0.70, 1.30, 0.60),
    profile("2 cores of a server", 8, 0.04, 1.8, 0.75, 1.45, 0.45),
    profile("GPU of another machine, RPC", 28, 0.005, 4, 0.75, 1.0, 0.0),
    profile("CPU of another machine, RPC", 150, 0.06, 20, 0.70, 1.0, 0.0),
)


def made_up(told: Profile, length: int, vocab_size: int, seed: int) -> Trace:
    """A text whose drafts are right as often as the profile says, the sure ones more often, and
    every other runner-up where the draft is wrong.
    """
    rng = np.random.default_rng(seed)
    rates = np.array(first_rates()[:NUM_MARGINS])
    low, high = -60.0, 60.0
    for _ in range(60):  # weights of kinds whose mean rate is the one asked for
        tilt = (low + high) / 2
        weights = np.exp(tilt * rates) / np.exp(tilt * rates).sum()
        low, high = (tilt, high) if weights @ rates < told.right else (low, tilt)
    tokens, draws = rng.integers(0, vocab_size - 2, length).tolist(), []
    for token in tokens:
        kind, first, second = int(rng.choice(NUM_MARGINS, p=weights)), token + 1, token + 2
        if rng.random() < rates[kind]:
            first = token
        elif rng.random() < 0.5:
            second = token
        draws.append(Draw(first, second, kind))
    return Trace([1, 2, 3], tokens, draws)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--validate", metavar="DRAFT.gguf")
    parser.add_argument("--model")
    add_machine(parser)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    if asked.validate:
        asked.tokens = asked.tokens or 96
        validate(asked)
        return
    with open_model(resolve()) as file:
        spec = replace(file.spec, vocab_size=1024)
    print(f"{'tokens/s':<34}{'in turn':>9}{'chain':>14}{'branches':>16}{'auto':>16}")
    for told in PROFILES:
        traces = [made_up(told, asked.tokens or 3000, spec.vocab_size, seed=1)]
        speeds = {way: play(told, way, traces, spec) for way in OPTIONS}
        base = speeds["in turn"]
        cells = "".join(
            f"{speeds[way]:>8.1f} {speeds[way] / base:.2f}x"
            for way in ("chain", "branches", "auto")
        )
        print(f"{told.name:<34}{base:>9.1f}{cells}")


if __name__ == "__main__":
    main()
