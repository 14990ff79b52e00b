"""The drafters of an engine, each in the memory that was planned for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from edgespec.drafting.registry import make_drafter
from edgespec.loading import model_drafters
from edgespec.loading.draft_head import DraftHead
from edgespec.loading.draft_model import DraftModel
from edgespec.memory.plan.plan import Plan
from edgespec.memory.plan.sizing import MODEL_DRAFTERS
from edgespec.models.file import ModelFile

if TYPE_CHECKING:
    from edgespec.drafting.base import Drafter
    from edgespec.drafting.market.market import Market


def market_maker(
    names: tuple[str, ...],
    chosen: Plan,
    file: ModelFile,
    store: str | os.PathLike[str] | None,
    draft_model: DraftModel | None,
    adapted: Sequence[int] = (),
    on_trial: Sequence[str] = (),
    head: DraftHead | None = None,
    learn: bool = False,
) -> Callable[[float], Market]:
    """Makes the drafters asked for, none when there is no room for any: called once for each
    sequence that may be written at a time, with the seconds of a plain pass. `adapted` are the
    exits that have an adapter; those `on_trial` nobody asked for, and they are left out where
    passes are short.

    If it may `learn`, what replies say is kept for the next run.

    What belongs to all sequences is made once: what the user said before, a corpus, what other
    replies to the same prompt say, how far each drafter is to be trusted.
    """
    from edgespec.drafting.market.kept_statistics import KeptStatistics
    from edgespec.drafting.market.market import Market
    from edgespec.drafting.tables.table_drafter import TableDrafter

    if not chosen.drafter_bytes:
        return lambda _: Market([])
    sizes = {name: chosen.footprint[f"drafter {name}"] // chosen.sequences for name in names}
    shared = {name: _shared(name, sizes[name], file, store, learn) for name in names}
    statistics = KeptStatistics(file.fingerprint, names)

    def make_one(name: str) -> Drafter:
        if name in MODEL_DRAFTERS:
            return model_drafters.make(name, file, draft_model, chosen, adapted, head)
        made = make_drafter(name, sizes[name], **shared[name])
        if isinstance(made, TableDrafter) and made.is_shared:
            made.share(tables.setdefault(name, made))
        return made

    tables: dict[str, TableDrafter] = {}

    def make(pass_s: float) -> Market:
        is_long = pass_s >= model_drafters.JOIN_SECONDS
        chosen_names = [name for name in names if is_long or name not in on_trial]
        return Market([make_one(name) for name in chosen_names], statistics, on_trial=on_trial)

    return make


def _shared(
    name: str,
    max_bytes: int,
    file: ModelFile,
    store: str | os.PathLike[str] | None,
    learn: bool,
) -> dict[str, Any]:
    """What all drafters of a name have in common, as arguments."""
    tokenizer = file.tokenizer
    if name == "suffix-automaton":
        from edgespec.drafting.text.kept_past import KeptPast
        from edgespec.drafting.text.past import Past, past_bytes

        share = past_bytes(max_bytes)
        if learn:
            return {"past": KeptPast(share, tokenizer.fingerprint, tokenizer.vocab_size)}
        return {"past": Past(share)}
    if name == "hierarchy":
        from edgespec.drafting.text.history import History
        from edgespec.drafting.text.store import Store

        vocabulary = tokenizer.fingerprint
        corpus = None if store is None else Store(store, vocabulary)
        history = History(vocabulary if learn else None, tokenizer.vocab_size)
        return {"history": history, "corpus": corpus}
    if name == "consensus":
        from edgespec.drafting.tables.consensus import ConsensusPools

        return {"pools": ConsensusPools()}
    return {}
