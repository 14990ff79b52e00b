"""From a name and a budget to an open engine: resolve, read, plan, load, warm up."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.backends import registry as backends
from edgespec.drafting.registry import drafter_names
from edgespec.errors import BudgetError
from edgespec.loading import model_drafters
from edgespec.loading.draft_head import DraftHead, open_draft_head
from edgespec.loading.draft_model import DraftModel, check_overlap, open_draft_model
from edgespec.loading.first_layers import FirstLayers
from edgespec.loading.load_options import LoadOptions
from edgespec.loading.make_market import market_maker
from edgespec.loading.planning import Planning, compiled_for
from edgespec.memory.plan.head_sizes import HEAD_ITEM
from edgespec.memory.plan.plan import Plan
from edgespec.memory.watch import Watch
from edgespec.models.open_model import open_model
from edgespec.models.registry import resolve
from edgespec.system import precompiled
from edgespec.system.device import device_named
from edgespec.system.few_collections import few_collections
from edgespec.system.listening import listener
from edgespec.system.option_fields import check_types, takes
from edgespec.system.power import check_power
from edgespec.system.resident_memory import release_free_memory

if TYPE_CHECKING:
    from edgespec.engine.engine import Engine

_engines = count()


@takes(LoadOptions)
def plan(options: LoadOptions) -> Plan:
    """What `load` with the same arguments would do: where every byte goes, and why.

    Raises BudgetError when nothing fits, OptionError for arguments that mean nothing.
    """
    return plan_for(options)


@takes(LoadOptions)
def load(options: LoadOptions) -> Engine:
    """Open a model inside a memory budget.

    Raises BudgetError before loading when the model does not fit, ModelFileError when it cannot be
    read, StoreError when the datastore cannot be used, OptionError for arguments that mean nothing.
    """
    return open_engine(options)


def plan_for(options: LoadOptions, device: str | None = None) -> Plan:
    """`plan`, for options in one object; with the name of a device, of what it would do there."""
    check_types(options)
    there = None if device is None else device_named(device)
    with ExitStack() as opened, _planning(options, opened, compare=True) as planning:
        return planning.plan() if there is None else planning.plan_for(there)


def open_engine(options: LoadOptions) -> Engine:
    """`load`, for options in one object."""
    check_types(options)
    with few_collections(), _refusals(resolve(options.model)), ExitStack() as opened:
        report = options.progress or _nobody
        report("plan", 0, 1)
        with _planning(options, opened) as planning:
            chosen = planning.plan()
            report("plan", 1, 1)
            names = planning.drafters_on(chosen.backend, chosen.streaming)
            draft_model = planning.draft_model
            head = planning.head if HEAD_ITEM in chosen.footprint.names else None
            if head is not None:
                names = tuple(dict.fromkeys((*names, head.drafter)))
            if chosen.mapped:
                draft_model = FirstLayers.of(planning.file)
                names = tuple(dict.fromkeys((*names, model_drafters.EARLY_EXIT)))
            engine = _load(planning, chosen, names, draft_model, head)
        if log := listener(__name__):
            log.info("opened %s: %s", resolve(options.model), chosen.footprint.summary())
        opened.pop_all()  # the files are the engine's from here on
        return engine


def _nobody(stage: str, done: int, total: int) -> None:
    """Takes note of no progress."""


@contextmanager
def _planning(
    options: LoadOptions, opened: ExitStack, *, compare: bool = False
) -> Iterator[Planning]:
    """What planning needs, for as long as it takes; the models' files close with `opened`."""
    names = drafter_names(options.drafters, options.store, options.draft_model)
    check_overlap(options)
    check_power(options.power)
    file = open_model(resolve(options.model), any_engine=True)
    opened.callback(file.close)
    head = open_draft_head(options, names, file)
    if head is not None:
        opened.callback(head.close)
    is_head = head is not None and not head.is_own
    draft_model = None if is_head else open_draft_model(options, file)
    if draft_model is not None:
        opened.callback(draft_model.close)
    adapter, note = model_drafters.adapter_beside(file, names)
    try:
        yield Planning(file, options, names, draft_model, adapter, note, head, compare)
    finally:
        if adapter is not None:
            adapter.close()


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """Memory that the system refuses is an error with a sentence."""
    try:
        yield
    except MemoryError:
        raise BudgetError(
            f"the system refused memory while loading {path}; close other programs, or use less "
            "--memory"
        ) from None


def _load(
    planning: Planning,
    chosen: Plan,
    names: tuple[str, ...],
    draft_model: DraftModel | None,
    head: DraftHead | None,
) -> Engine:
    # Imported here because they bring Numba, which planning does not need.
    from edgespec.engine.engine import Engine
    from edgespec.loading.warm_up import warm_up

    file, options, adapter = planning.file, planning.options, planning.adapter
    report = options.progress or _nobody
    report("kernels", 0, 1)
    if next(_engines):  # parts of one that was closed hold each other, megabytes of them
        gc.collect()
    if precompiled.chosen().source != "library":
        release_free_memory()  # so that a first start's children do not come on top of it
    spare_bytes = chosen.budget_bytes - chosen.planned_bytes
    kinds = compiled_for(file, chosen.backend, adapter, head)
    warm_up(chosen.backend, kinds, spare_bytes, chosen.kv_type, names)
    if draft_model is not None:
        warm_up(draft_model.backend, draft_model.kinds, spare_bytes, drafters=names)
    release_free_memory()  # the compiler's peak must be over before the weights come
    report("kernels", 1, 1)
    adapted = () if adapter is None else adapter.layers
    trial: tuple[str, ...]
    trial = () if model_drafters.EARLY_EXIT in planning.drafters else (model_drafters.EARLY_EXIT,)
    if head is not None and head.is_optional:
        trial += (head.drafter,)
    watch = Watch(chosen, lambda: 0)  # there are no stores yet that could shrink

    def loaded(done: int, total: int) -> None:
        watch.look()
        report("load", done, total)

    target = backends.open_target(file, chosen, loaded, adapter)
    if draft_model is not None:
        draft_model.load(chosen, loaded)
    if head is not None:
        head.load(chosen, target, loaded)
    drafting = tuple(one for one in (draft_model, head) if one is not None)
    report("load", 1, 1)
    release_free_memory()
    try:
        # Not before the weights: a store wants the tokenizer, which would come on top of them.
        make_market = market_maker(
            names, chosen, file, options.store, draft_model, adapted, trial, head, options.learn
        )
        return Engine(file, chosen, target, make_market, options.progress, drafting)
    except BaseException:
        target.close()
        raise
