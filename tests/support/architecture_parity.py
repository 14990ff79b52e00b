"""Native logits of one text beside exact ones and llama.cpp's, and the greedy choices after it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.native.target import NativeTarget
from edgespec.backends.passes import TokenTree
from edgespec.backends.reference import ReferenceTarget
from edgespec.models.open_model import open_model
from tests.support import llama_peer
from tests.support.targets import PLAN, cosines

CHUNK = 16
MARGINS = {"F32": 1e-3, "F16": 1e-2, "BF16": 1e-2}
QUANTISED_MARGIN = 0.05
"""Logits that are nearer than this, by their spread, tie."""
Rows = NDArray[np.float32]


def compare(path: Path, ids: list[int], continued: int, kind: str) -> dict[str, Any]:
    """Cosines at every position of a text and of what llama.cpp goes on with, and its choices.

    All keep keys and values in f16. Raises PeerError, PeerMissing.
    """
    context = len(ids) + continued
    [theirs] = llama_peer.scores([path], ids, continued, context=context)
    ours = native_logits(path, theirs.tokens, context)
    exact = reference_logits(path, theirs.tokens, context)
    found: dict[str, Any] = {"positions": context}
    pairs = {"ours~exact": (ours, exact), "ours~peer": (ours, theirs.logits)}
    pairs["peer~exact"] = theirs.logits, exact
    for name, (one, two) in pairs.items():
        each = cosines(one, two)
        found[name] = {"min": float(each.min()), "mean": float(each.mean())}
    # Where a router nearly ties, f32 may choose other experts than exact arithmetic; llama.cpp then
    # chooses them too.
    either = np.maximum(cosines(ours, exact), cosines(ours, theirs.logits))
    found["ours~either"] = float(either.min())
    choices = slice(len(ids) - 1, context - 1)
    margin = MARGINS.get(kind, QUANTISED_MARGIN)
    return found | _choices(ours[choices], theirs.logits[choices], exact[choices], margin)


def native_logits(path: Path, ids: list[int], context: int) -> Rows:
    """Of every token, computed CHUNK at a time."""
    plan = replace(PLAN, context_length=context, max_nodes=CHUNK)
    rows = []
    with open_model(path) as file:
        target = NativeTarget(file, plan)
    with target:
        for start in range(0, len(ids), CHUNK):
            part = np.asarray(ids[start : start + CHUNK], np.int32)
            rows.append(target.own.forward(TokenTree.chain(part)).logits.copy())
            target.own.commit(range(len(part)))
    return np.concatenate(rows)


def reference_logits(path: Path, ids: list[int], context: int) -> Rows:
    """Of every token in exact arithmetic."""
    plan = replace(PLAN, backend="reference", context_length=context, max_nodes=context)
    with open_model(path) as file:
        target = ReferenceTarget(file, plan)
    with target:
        return target.own.forward(TokenTree.chain(ids)).logits.copy()


def _choices(ours: Rows, theirs: Rows, exact: Rows, margin: float) -> dict[str, Any]:
    """How many choices are equal, nearly tie, or differ, and whose the exact ones are there."""
    counts = {"equal": 0, "ties": 0, "different": 0, "exact is ours": 0, "exact is theirs": 0}
    worst = 0.0
    for one, two, right in zip(ours, theirs, exact, strict=True):
        best, other = int(one.argmax()), int(two.argmax())
        gap = float(min(one[best] - one[other], two[other] - two[best]) / two.std())
        if best == other:
            counts["equal"] += 1
            continue
        worst = max(worst, gap)
        counts["ties" if gap <= margin else "different"] += 1
        if gap > margin:
            chosen = int(right.argmax())
            counts["exact is ours"] += chosen == best
            counts["exact is theirs"] += chosen == other
    return counts | {"worst gap": worst}
