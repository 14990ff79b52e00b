"""The table of drafters: every name that `--drafters` takes, and what makes each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from edgespec.errors import OptionError
from edgespec.memory.plan.settings import BUILT_IN_DRAFTERS
from edgespec.memory.plan.sizing import DRAFT_MODEL, MODEL_DRAFTERS

if TYPE_CHECKING:
    from edgespec.drafting.base import Drafter

DRAFTERS = {
    "suffix-automaton": ("text.suffix_automaton", "SuffixAutomatonDrafter"),
    "ngram": ("tables.ngram", "NgramDrafter"),
    "trigram": ("tables.trigram", "TrigramDrafter"),
    "recycling": ("tables.recycling", "RecyclingDrafter"),
    "stand": ("tables.stand", "StandDrafter"),
    "jacobi": ("tables.jacobi", "JacobiDrafter"),
    "copy": ("text.copying", "CopyDrafter"),
    "hierarchy": ("text.hierarchy", "HierarchyDrafter"),
    "consensus": ("tables.consensus", "ConsensusDrafter"),
}
"""Every drafter's module in edgespec.drafting and its class, by name."""


def make_drafter(name: str, max_bytes: int, **shared: Any) -> Drafter:
    """A drafter by its name; `shared` is what it has in common with others of that name."""
    module, kind = DRAFTERS[name]
    made: Drafter = getattr(import_module(f"edgespec.drafting.{module}"), kind)(max_bytes, **shared)
    return made


def drafter_names(
    names: str | Sequence[str],
    store: str | os.PathLike[str] | None = None,
    draft_model: str | os.PathLike[str] | None = None,
) -> tuple[str, ...]:
    """The drafters asked for: "auto", "none", or names separated by commas; a draft model is one
    more.
    """
    if names == "auto":
        names = BUILT_IN_DRAFTERS
    elif isinstance(names, str):
        names = [] if names in ("none", "") else [name.strip() for name in names.split(",")]
    for name in names:
        if name not in (*DRAFTERS, *MODEL_DRAFTERS):
            known = ", ".join((*DRAFTERS, *MODEL_DRAFTERS))
            raise OptionError(f"no drafter is called {name!r}; choose auto, none or {known}")
    if store is not None and "hierarchy" not in names:
        raise OptionError("a datastore is for the drafter hierarchy; name it: --drafters hierarchy")
    if draft_model is not None:
        names = [*names, DRAFT_MODEL]
    elif DRAFT_MODEL in names:
        raise OptionError("the drafter draft-model asks a model; name it: --draft-model FILE")
    return tuple(dict.fromkeys(names))
