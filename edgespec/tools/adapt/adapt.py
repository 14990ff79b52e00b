"""Adapters: what lets an exit say more often what the whole model would have said.

"Kangaroo: Lossless Self-Speculative Decoding via Double Early Exiting" puts a trained adapter
between an exit and the head. Here it is one matrix, which has a closed form (`ridge.py`), so that
it takes minutes on a processor and none of the model's weights change: "Eliciting Latent
Predictions from Transformers with the Tuned Lens" fits the like of it to look into models. Drafts
alone go through it, so the text stays what it is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from edgespec.backends import registry as backends
from edgespec.backends.native.code_parts import Compiled
from edgespec.errors import AdaptError, BudgetError, OptionError, UnsupportedModelError
from edgespec.loading import model_drafters
from edgespec.memory.plan.budget import Budget
from edgespec.memory.plan.calibration import runtime
from edgespec.memory.plan.plan import Plan
from edgespec.memory.plan.planner import make_plan
from edgespec.memory.plan.settings import BUILT_IN_DRAFTERS
from edgespec.memory.plan.sizing import Sizing
from edgespec.models.adapter import Fit, place_beside, write_adapter
from edgespec.models.file import ModelFile
from edgespec.models.open_model import open_model
from edgespec.models.registry import resolve
from edgespec.models.spec import TensorType
from edgespec.system.disk_cache import kernels_are_cached
from edgespec.system.hardware import hardware, snapshot
from edgespec.system.records import dataclass
from edgespec.system.resident_memory import peak_resident_bytes
from edgespec.system.size import MIB, format_size
from edgespec.tools.adapt.texts import windows

_WINDOW = 512
"""Tokens of a text that are read at once, and the context they are computed in."""
_NODES = 16
"""Rows that the head computes at a time when agreement is counted."""
_LEAST_TOKENS = 2_000
_LEAST_KEPT = 64
"""Rows of each part that is kept; fewer say nothing."""
_TOKENS, _TOKENS_PER_COLUMN = 100_000, 40
"""Tokens that are read at most, whichever is more: in all, and for each column of a matrix."""
_HELD_BYTES = 24 * MIB
"""For each of both parts of the texts that are kept, to choose and to judge by."""
_LIBRARY_BYTES = 32 * MIB
"""What NumPy's linear algebra holds beside its arrays."""
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Adapted:
    """What was fitted, and where it lies."""

    path: Path
    size_bytes: int
    tokens: int
    """Tokens read."""
    judged_tokens: int
    """Tokens that agreement was counted on."""
    fits: tuple[Fit, ...]
    seconds: float
    budget_bytes: int
    peak_memory_bytes: int

    @property
    def pays(self) -> bool:
        return any(fit.pays for fit in self.fits)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"path": str(self.path), "pays": self.pays}


def adapt(
    model: str | os.PathLike[str] | None,
    data: str | os.PathLike[str],
    *,
    exit_layer: int | str = "auto",
    memory: str | int = "auto",
    threads: int | None = None,
    max_tokens: int | None = None,
    progress: Progress | None = None,
) -> Adapted:
    """Fit adapters for a model's exits to the texts of a file, and write them beside the model.

    `exit_layer` is one, or "auto" for all that drafts may take; exits that do not gain are told of
    in the file and have no matrix there. `max_tokens` is how much of the texts is read. Everything
    stays inside `memory`; where not all exits fit at once, the texts are read again for the rest.
    Raises AdaptError for texts that cannot be used, BudgetError when one exit does not fit,
    OptionError, ModelFileError.
    """
    from edgespec.loading.warm_up import warm_up  # brings Numba

    start, path = time.perf_counter(), resolve(model)
    with ExitStack() as opened:
        file = opened.enter_context(open_model(path))
        layers = _layers(file, exit_layer)
        most = max_tokens or max(_TOKENS, _TOKENS_PER_COLUMN * file.spec.dim)
        if most < _LEAST_TOKENS:
            raise OptionError(
                f"{most} tokens to read were asked for, and fitting takes at least "
                f"{_LEAST_TOKENS}; raise --max-tokens"
            )
        budget = Budget.parse(memory, snapshot())
        kinds = backends.compiled_for("native", file) | {TensorType.F16}
        chosen, at_once = _plan(file, budget, len(layers), threads, kinds)
        warm_up("native", kinds, budget.size_bytes - chosen.planned_bytes)
        from edgespec.tools.adapt.fitting import Fitting

        target = opened.enter_context(backends.open_target(file, chosen))
        fits, matrices, tokens, judged = [], {}, 0, 0
        for first in range(0, len(layers), at_once):
            part = layers[first : first + at_once]
            fitting = Fitting(target, part, _held_rows(file, at_once))
            report = _reporter(progress, first, len(part), len(layers), most)
            for number, window in _read(Path(data), file, chosen.context_length, most, report):
                fitting.read(window, number)
            tokens = fitting.num_tokens
            if tokens < _LEAST_TOKENS:
                raise AdaptError(
                    f"{data} has {tokens} tokens, and fitting takes at least {_LEAST_TOKENS}; "
                    "give more text, of the kind that the model is to write"
                )
            if fitting.num_kept < _LEAST_KEPT:
                raise AdaptError(
                    f"{data} has {tokens} tokens, which leave {fitting.num_kept} to judge by, and "
                    f"it takes {_LEAST_KEPT}: of ten pieces of up to {chosen.context_length} "
                    "tokens, two are kept for that; give more text"
                )
            for layer in part:
                fit, matrix = fitting.finish(layer)
                fits.append(fit)
                if fit.pays:
                    matrices[layer] = matrix
            judged = fitting.num_judged
        place = place_beside(path)
        fingerprint = file.content_fingerprint().hex()
        write_adapter(place, fingerprint, file.spec.dim, judged, fits, matrices)
    return Adapted(
        place,
        place.stat().st_size,
        tokens,
        judged,
        tuple(fits),
        time.perf_counter() - start,
        budget.size_bytes,
        peak_resident_bytes(),
    )


def _layers(file: ModelFile, exit_layer: int | str) -> list[int]:
    """The exits to fit, ascending."""
    from edgespec.backends.native.limits import refusal

    why_not = refusal(file.spec, file.tensors.values())
    if why_not:
        raise UnsupportedModelError(f"{file.path} has no exits to fit: {why_not}")
    most = file.spec.num_layers - 1
    if most < 1:
        raise OptionError(f"{file.path} has one layer, so it cannot be left early")
    if exit_layer == "auto":
        return sorted(model_drafters.exit_layers(file))
    layer = int(exit_layer) if str(exit_layer).isdecimal() else 0
    if not 1 <= layer <= most:
        raise OptionError(
            f"exit layer {exit_layer} was asked for, and {file.path.name} can be left after layer "
            f"1 to {most}; choose one of these, or auto"
        )
    return [layer]


def _plan(
    file: ModelFile,
    budget: Budget,
    num_layers: int,
    threads: int | None,
    kinds: Collection[Compiled],
) -> tuple[Plan, int]:
    """How the model is loaded, and how many exits are fitted at a time, as many as there is room
    for; BudgetError when there is none for one.
    """
    ready = kernels_are_cached("native", kinds, BUILT_IN_DRAFTERS)
    resident = budget.snapshot.process_resident_bytes
    now = runtime(resident, "cached" if ready else "cold")
    sizing = Sizing(file.spec, tuple(file.tensors.values()), now, drafters=())
    context = min(_WINDOW, file.spec.context_length)
    for at_once in range(num_layers, 0, -1):
        needed = _fitting_bytes(file, at_once)
        left = replace(budget, size_bytes=max(budget.size_bytes - needed, 0))
        try:
            chosen = make_plan(
                sizing, left, hardware(),
                context=context, threads=threads, max_nodes=_NODES, kv_type="f16",
            )  # fmt: skip
            return chosen, at_once
        except BudgetError as error:
            if at_once == 1:
                raise BudgetError(
                    f"fitting the adapter of one exit takes {format_size(needed)} of the "
                    f"{format_size(budget.size_bytes)} asked for, and the model what is left: "
                    f"{error}"
                ) from None
    raise AssertionError("there is at least one exit")


def _fitting_bytes(file: ModelFile, at_once: int) -> int:
    """What fitting holds beside the model: sums and matrices of all exits, solving for one, rows
    that are kept, and a window's streams with copies.
    """
    from edgespec.tools.adapt.ridge import SOLVER_MATRICES

    dim = file.spec.dim
    matrices = dim * dim * (at_once * (2 * 8 + 2 + 2) + SOLVER_MATRICES * 8)
    streams = 4 * dim * _WINDOW * (at_once + 1 + 6)
    held = 2 * _held_rows(file, at_once) * dim * 4 * (at_once + 1)
    return matrices + streams + 2 * held + _LIBRARY_BYTES


def _held_rows(file: ModelFile, at_once: int) -> int:
    """Rows of each kept part."""
    return max(256, min(4096, _HELD_BYTES // (4 * file.spec.dim * (at_once + 1))))


def _read(
    data: Path, file: ModelFile, length: int, most: int, report: Callable[[int], None]
) -> Iterator[tuple[int, Any]]:
    """Numbered pieces of the texts, up to so many tokens."""
    done = 0
    for number, window in enumerate(windows(data, file, length)):
        yield number, window
        done += len(window)
        report(min(done, most))
        if done >= most:
            break


def _reporter(
    progress: Progress | None, first: int, part: int, layers: int, most: int
) -> Callable[[int], None]:
    """Tell of tokens read, over all readings."""

    def report(done: int) -> None:
        if progress is not None:
            progress("adapt", first * most + part * done, layers * most)

    return report
