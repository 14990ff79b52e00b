"""Compile, or load from the cache, everything a reply needs, before any model is in memory.

Compiling takes about ten seconds and leaves some 200 MiB behind that a process cannot give back. So
a cold start compiles in child processes (`python -m edgespec.warm_up`), and then starts like any
other: from the cache. One compiles the backend, the other what decodes; both at once where the
memory budget has room for two.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from edgespec import backends
from edgespec.cache import kernels_are_cached, remember_kernels
from edgespec.memory.calibration import KERNELS
from edgespec.memory.monitor import release_free_memory
from edgespec.models.spec import TensorType

_GIVE_BACK_S = 0.25


def warm_up(
    backend: str, kinds: Iterable[TensorType], spare_bytes: int = 0, kv_type: str = "f16"
) -> None:
    """Have all compiled code of a backend, for these weight types and this KV, ready here.

    `spare_bytes` is what the budget has left beside a first start's one child. What only int8 KV
    needs is compiled here when it is first asked for: it takes a second and leaves nothing behind.
    """
    kinds = sorted(kinds, key=lambda kind: kind.type_id)
    if not kernels_are_cached(backend, kinds) and _can_have_children():
        _run_children(backend, kinds, at_once=spare_bytes >= KERNELS["cold"].peak_bytes)
    backends.warm_up(backend, kinds, kv_type)
    _warm_up_decoding()
    remember_kernels(backend, kinds)


def _can_have_children() -> bool:
    """Whether this program is Python itself: nobody knows what starting another one does."""
    name = Path(sys.executable or "").name.lower()
    return name.startswith("python") and not getattr(sys, "frozen", False)


def _run_children(backend: str, kinds: Iterable[TensorType], *, at_once: bool) -> None:
    """Compile into the cache; what goes wrong there happens again here and is reported."""
    package = str(Path(__file__).parent.parent)
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    nothing = subprocess.DEVNULL
    children: list[subprocess.Popen[bytes]] = []
    try:
        for arguments in ([backend, *(kind.name for kind in kinds)], []):
            child = subprocess.Popen(
                [sys.executable, "-m", "edgespec.warm_up", *arguments],
                env=environment,
                stdin=nothing,
                stdout=nothing,
                stderr=nothing,
            )
            children.append(child)
            if not at_once:
                child.wait()
        for child in children:
            child.wait()
    finally:
        for child in children:
            child.kill()


def _warm_up_decoding() -> None:
    """A few steps of everything between two passes, with the drafters that are used by default."""
    from edgespec.control.controller import Controller
    from edgespec.control.cost_curve import CostCurve
    from edgespec.drafting import Market, StepOutcome
    from edgespec.opening import AUTO_DRAFTERS, make_drafter
    from edgespec.verification.acceptance import Verifier
    from edgespec.verification.sampling import SamplingParams

    text = [1, 2, 1, 2]
    market = Market([make_drafter(name, 64 * 1024) for name in AUTO_DRAFTERS])
    controller = Controller(CostCurve({1: 1.0, 2: 1.1, 4: 1.2}), 4)
    verifier = Verifier(16, SamplingParams(seed=0), 4)
    logits = np.zeros((4, 16), np.float32)
    logits[:, 1] = 50.0  # always the same token, until all drafters know it
    market.reset(text)
    for _ in range(6):
        tree = market.propose(3)
        tree = tree.take(1 + max(controller.choose(tree, 0.1), 1))
        verdict = verifier.verify(
            logits[: len(tree)], tree.tokens, tree.parents, text, len(text) - 1
        )
        tokens = [*tree.tokens[verdict.path[1:]].tolist(), verdict.bonus]
        outcome = StepOutcome(tree, verdict.path, verdict.bonus, tokens)
        market.observe(outcome)
        market.extend(tokens)
        controller.observe(outcome, 1.0, 0.1)
        text += tokens


def _give_back_regularly() -> None:
    """Drop library pages as they gather: a third of what compiling would hold at its end."""
    while True:
        time.sleep(_GIVE_BACK_S)
        release_free_memory()


if __name__ == "__main__":
    threading.Thread(target=_give_back_regularly, daemon=True).start()
    if sys.argv[1:]:
        backends.warm_up(sys.argv[1], [TensorType[name] for name in sys.argv[2:]])
    else:
        _warm_up_decoding()
