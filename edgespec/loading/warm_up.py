"""Compile, or load from the cache, everything a reply needs, before any model is in memory.

Compiling takes about ten seconds and leaves some 200 MiB behind that a process cannot give back. So
a cold start compiles in child processes (`python -m edgespec.loading.warm_up`), and then starts
like any other: from the cache. One compiles the backend, and one for each drafter what decodes with
it; two at a time where the memory budget has room for them.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgespec.backends import registry as backends
from edgespec.backends.native.code_parts import Compiled, named
from edgespec.memory.plan.calibration import KERNELS
from edgespec.memory.plan.settings import BUILT_IN_DRAFTERS, CHOSEN_KV_TYPES
from edgespec.system import precompiled
from edgespec.system.child_process import can_have_children
from edgespec.system.disk_cache import (
    cache_folder,
    drafter_is_cached,
    kernels_are_cached,
    remember_kernels,
)
from edgespec.system.resident_memory import release_free_memory
from edgespec.system.size import KIB

if TYPE_CHECKING:
    from edgespec.control.controller import Controller

_GIVE_BACK_S = 0.25
_DRAFTER_BYTES = 512 * KIB
_STEPS = 4


def warm_up(
    backend: str,
    kinds: Iterable[Compiled],
    spare_bytes: int = 0,
    kv_type: str = "f16",
    drafters: Sequence[str] = BUILT_IN_DRAFTERS,
) -> None:
    """Have all compiled code of a backend, for what `compiled_for` a model says and this KV, and of
    what decodes with these drafters, ready here.

    `spare_bytes` is what the budget has left beside a first start's one child. A first start
    compiles for the KV asked for and for all that a later plan may choose. With precompiled code
    there is nothing to do.
    """
    if precompiled.chosen().source == "library":
        return
    kinds = sorted(kinds, key=lambda kind: kind.name)
    asked = backends.compiled_apart(backend, kv_type)
    drafters = drafters or BUILT_IN_DRAFTERS  # what verifies is compiled with them
    if can_have_children():
        # The backend first: beside it the first drafter compiles what all of them decode with.
        commands = []
        if not kernels_are_cached(backend, kinds, kv_type=asked):
            commands.append(["--backend", backend, kv_type, *(kind.name for kind in kinds)])
        commands += [["--drafter", name] for name in drafters if not drafter_is_cached(name)]
        _run_children(commands, at_once=spare_bytes >= KERNELS["cold"].peak_bytes)
    backends.warm_up(backend, kinds, kv_type)
    for name in drafters:
        warm_up_drafter(name)
    remember_kernels(backend, kinds, drafters, asked)


def _run_children(commands: Sequence[list[str]], *, at_once: bool) -> None:
    """Compile into the cache, by two or one at a time; what goes wrong there happens again here and
    is reported.
    """
    import subprocess

    package = str(Path(__file__).parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "EDGESPEC_CACHE": str(cache_folder()),
    }
    nothing = subprocess.DEVNULL
    running: list[subprocess.Popen[bytes]] = []
    try:
        for arguments in commands:
            if len(running) == (2 if at_once else 1):
                running.pop(0).wait()
            child = subprocess.Popen(
                [sys.executable, "-m", "edgespec.loading.warm_up", *arguments],
                env=environment,
                stdin=nothing,
                stdout=nothing,
                stderr=nothing,
            )
            running.append(child)
        for child in running:
            child.wait()
    finally:
        for child in running:
            child.kill()


def warm_up_drafter(name: str) -> None:
    """Some steps of everything between two passes, on a text of few tokens."""
    from edgespec.control.controller import Controller
    from edgespec.control.cost_curve import CostCurve
    from edgespec.control.prospects import Prospects
    from edgespec.drafting.market.market import Market
    from edgespec.drafting.registry import make_drafter
    from edgespec.drafting.tables.followers import SET_ROWS
    from edgespec.drafting.text.history import COLUMNS
    from edgespec.drafting.text.history import first_bad_row as check_rows
    from edgespec.drafting.text.past import Past
    from edgespec.drafting.tree import StepOutcome, TopTokens
    from edgespec.engine.burst import Burst
    from edgespec.memory.plan.sizing import MODEL_DRAFTERS
    from edgespec.verification.match import Verifier
    from edgespec.verification.sampling import SamplingParams
    from edgespec.verification.top import top_tokens

    text = [1, 2, 1, 2, 1, 2]
    # Two of a kind, so that what merges proposals is compiled, too.
    if name in MODEL_DRAFTERS:
        from edgespec.drafting.model.flat import FlatDrafter

        market = Market([FlatDrafter(16), FlatDrafter(16)])
    else:
        drafters = [make_drafter(name, _DRAFTER_BYTES) for _ in range(2)]
        market = Market(drafters)
        drafters[0].reset(text)
        drafters[0].propose(3)  # as it is asked for what follows a model's chain
    if name == "suffix-automaton":
        Past(_DRAFTER_BYTES).add(np.array(text, np.int32))  # as each reply is when it ends
    if name == "hierarchy":
        check_rows(np.zeros((SET_ROWS, COLUMNS), np.int32), 1)  # what was kept is checked
    controller, prospects = Controller(CostCurve({1: 1.0, 2: 1.1, 4: 1.2}), 4), [Prospects()]
    sampling = SamplingParams(seed=0)
    market.begin(sampling)
    market.reset(text)
    for _ in range(_STEPS):
        tree = market.propose(3)
        tree = tree.take(1 + max(*controller.choose(prospects, [tree], 0.1), 1))
        logits = np.zeros((len(tree), 16), np.float32)
        verifier = Verifier(16, sampling, len(tree))
        verdict = verifier.verify(logits, tree.tokens, tree.parents, text, len(text) - 1)
        tokens = [*tree.tokens[verdict.path[1:]].tolist(), verdict.bonus]
        top = TopTokens(*top_tokens(logits, market.wants_top)) if market.wants_top else None
        outcome = StepOutcome(tree, verdict.path, verdict.bonus, tokens, top)
        market.observe(outcome)
        market.extend(tokens)
        text += tokens
        controller.observe(prospects, [outcome], 1.0, 0.1)
    controller.rest(1.0)
    for one in (market, Market([])):  # plans may have no room for any
        Burst(controller).warm_up(one, Verifier(16, sampling, 1))
    market.statistics.p_accept(1, 0.5, 1)
    _warm_up_rules(controller)


def _warm_up_rules(controller: Controller) -> None:
    """Every rule that is called by itself: which of them a reply needs is up to how it goes, and
    one that is compiled among the weights brings the compiler's 60 MiB with it.
    """
    from edgespec.control import accounts
    from edgespec.control.cost_curve import bent, refresh

    own, sequence = controller.numbers.copy(), np.ones(accounts.NUM_OF_SEQUENCE)
    table = controller.curve.table
    accounts.is_short(own, 1.0)
    accounts.may_ask(own, sequence, 1.0)
    accounts.expect_bill(own, 0.1, 1.0)
    accounts.may_verify(own)
    accounts.earn_study(own, table, 1.0, 0.0)
    accounts.settle(own, table, 1, 2, 1, 0.1, 1)
    accounts.settle_unverified(own, table, 1, True, 0.1)
    accounts.judge(own, sequence, 1.0, 0.1, True)
    accounts.rest(own, 0.0)
    accounts.earn(own, table, 1)
    bent(controller.curve.words[1], 0)
    refresh(*controller.curve.words)


def _give_back_regularly() -> None:
    """Drop library pages as they gather: a third of what compiling would hold at its end."""
    while True:
        time.sleep(_GIVE_BACK_S)
        release_free_memory()


if __name__ == "__main__":
    threading.Thread(target=_give_back_regularly, daemon=True).start()
    if sys.argv[1] == "--drafter":
        warm_up_drafter(sys.argv[2])
    else:
        backend, kv_type, *names = sys.argv[2:]
        for each in dict.fromkeys((kv_type, *CHOSEN_KV_TYPES)):
            backends.warm_up(backend, [named(name) for name in names], each)
