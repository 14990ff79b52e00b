"""From a name and a budget to an open engine: resolve, read, plan, load, warm up."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.backends import registry as backends
from edgespec.drafting.registry import drafter_names, make_drafter
from edgespec.errors import BudgetError
from edgespec.loading import model_drafters
from edgespec.loading.draft_model import DraftModel, open_draft_model
from edgespec.loading.first_layers import FirstLayers
from edgespec.loading.planning import Planning, matrix_kinds
from edgespec.memory.plan.plan import Plan
from edgespec.memory.plan.sizing import MODEL_DRAFTERS
from edgespec.memory.watch import Watch
from edgespec.models.file import ModelFile
from edgespec.models.open_model import open_model
from edgespec.models.registry import resolve
from edgespec.system.resident_memory import release_free_memory

if TYPE_CHECKING:
    from edgespec.drafting.base import Drafter
    from edgespec.drafting.market.market import Market
    from edgespec.engine.engine import Engine, Progress


def plan(
    model: str | os.PathLike[str] | None = None,
    *,
    memory: str | int = "auto",
    backend: str = "auto",
    threads: int | None = None,
    context: int | None = None,
    max_nodes: int | None = None,
    drafters: str | Sequence[str] = "auto",
    kv_type: str = "auto",
    sequences: int = 1,
    store: str | os.PathLike[str] | None = None,
    draft_model: str | os.PathLike[str] | None = None,
    vram: str | int = "auto",
    workers: str | Sequence[str] | None = None,
    overlap: str = "auto",
    draft_backend: str = "auto",
) -> Plan:
    """What `load` with the same arguments would do: where every byte goes, and why.

    Raises BudgetError when nothing fits, OptionError for arguments that mean nothing.
    """
    names = drafter_names(drafters, store, draft_model)
    model_drafters.check_overlap(overlap, draft_model is not None, sequences)
    with ExitStack() as opened:
        file = opened.enter_context(open_model(resolve(model), any_engine=True))
        drafting = open_draft_model(draft_model, file, draft_backend, sequences, overlap)
        if drafting is not None:
            opened.callback(drafting.close)
        return Planning(
            file, memory, backend, threads, context, max_nodes, names, kv_type, sequences, store,
            drafting, vram, workers, joins=drafters == "auto", compare=True,
        ).plan()  # fmt: skip


def load(
    model: str | os.PathLike[str] | None = None,
    *,
    memory: str | int = "auto",
    backend: str = "auto",
    threads: int | None = None,
    context: int | None = None,
    max_nodes: int | None = None,
    drafters: str | Sequence[str] = "auto",
    kv_type: str = "auto",
    sequences: int = 1,
    store: str | os.PathLike[str] | None = None,
    draft_model: str | os.PathLike[str] | None = None,
    vram: str | int = "auto",
    workers: str | Sequence[str] | None = None,
    overlap: str = "auto",
    draft_backend: str = "auto",
    progress: Progress | None = None,
) -> Engine:
    """Open a model inside a memory budget; None is the model that ships with the package.

    `memory` is bytes, "2GiB", "50%" or "auto"; `kv_type` is how keys and values are kept: "f16",
    "int8" in half the memory, "q4" in a bit over a quarter, or "auto": f16, and int8 where that
    leaves too little context; `sequences`
    how many replies may be written at once (`Engine.generate_batch`), each in a context of its own;
    `store` is a datastore for the drafter "hierarchy"; `draft_model` a smaller model of the same
    vocabulary, which the drafter "draft-model" asks, on `draft_backend`: "native", "llamacpp",
    "onnx" or "auto", native where it reads the file; `overlap` whether that one drafts while the
    other verifies: "on", "off" or "auto", where it is measured to be faster. `workers` are
    addresses of `edgespec worker`s ("host:port,host:port"), which take layers of the model up to
    what they offer; `vram` is the most of GPUs and workers together, "auto" all that workers offer
    and what GPUs have free but for a reserve.
    Raises BudgetError before loading when the model does not fit, ModelFileError when it cannot be
    read, StoreError when the datastore cannot be used, OptionError for arguments that mean nothing.
    """
    names = drafter_names(drafters, store, draft_model)
    model_drafters.check_overlap(overlap, draft_model is not None, sequences)
    path = resolve(model)
    with _refusals(path), ExitStack() as opened:
        file = open_model(path, any_engine=True)
        opened.callback(file.close)
        drafting = open_draft_model(draft_model, file, draft_backend, sequences, overlap)
        if drafting is not None:
            opened.callback(drafting.close)
        chosen = Planning(
            file, memory, backend, threads, context, max_nodes, names, kv_type, sequences, store,
            drafting, vram, workers, joins=drafters == "auto",
        ).plan()  # fmt: skip
        if chosen.mapped:
            drafting = FirstLayers.of(file)
            names = tuple(dict.fromkeys((*names, model_drafters.EARLY_EXIT)))
        engine = _open(file, chosen, names, store, drafting, progress)
        opened.pop_all()  # they are the engine's from here on
        return engine


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """Memory that the system refuses is an error with a sentence."""
    try:
        yield
    except MemoryError:
        raise BudgetError(
            f"the system refused memory while the model was loaded from {path}; close other "
            "programs, or load with less --memory"
        ) from None


def _open(
    file: ModelFile,
    chosen: Plan,
    names: tuple[str, ...],
    store: str | os.PathLike[str] | None,
    draft_model: DraftModel | None,
    progress: Progress | None,
) -> Engine:
    # Imported here because they bring Numba, which planning does not need.
    from edgespec.engine.engine import Engine
    from edgespec.loading.warm_up import warm_up

    def report(stage: str, done: int, total: int) -> None:
        if progress is not None:
            progress(stage, done, total)

    report("kernels", 0, 1)
    release_free_memory()  # so that a first start's children do not come on top of it
    spare_bytes = chosen.budget_bytes - chosen.planned_bytes
    warm_up(chosen.backend, matrix_kinds(file, chosen.backend), spare_bytes, chosen.kv_type, names)
    if draft_model is not None:
        warm_up(draft_model.backend, draft_model.kinds, spare_bytes, drafters=names)
    release_free_memory()  # the compiler's peak must be over before the weights come
    report("kernels", 1, 1)
    make_market = _market_maker(names, chosen, file, store, draft_model)
    watch = Watch(chosen, lambda: 0)  # there are no stores yet that could shrink

    def loaded(done: int, total: int) -> None:
        watch.look()
        report("load", done, total)

    target = backends.open_target(file, chosen, loaded)
    if draft_model is not None:
        draft_model.load(chosen, loaded)
    report("load", 1, 1)
    release_free_memory()
    try:
        return Engine(file, chosen, target, make_market, progress, draft_model)
    except BaseException:
        target.close()
        raise


def _market_maker(
    names: tuple[str, ...],
    chosen: Plan,
    file: ModelFile,
    store: str | os.PathLike[str] | None,
    draft_model: DraftModel | None,
) -> Callable[[], Market]:
    """Makes the drafters asked for, each in what it was planned; none when there is no room for
    any. Called once for each text that may be written at a time.

    What belongs to all texts is made once: what the user said before, a corpus, what other replies
    to the same prompt say, how far each drafter is to be trusted.
    """
    from edgespec.drafting.market.kept_statistics import KeptStatistics
    from edgespec.drafting.market.market import Market

    if not chosen.drafter_bytes:
        return lambda: Market([])
    sizes = {name: chosen.footprint[f"drafter {name}"] // chosen.sequences for name in names}
    shared = {name: _shared(name, file, store) for name in names}
    statistics = KeptStatistics(file.fingerprint, names)

    def make_one(name: str) -> Drafter:
        if name in MODEL_DRAFTERS:
            return model_drafters.make(name, file, draft_model, chosen)
        return make_drafter(name, sizes[name], **shared[name])

    return lambda: Market([make_one(name) for name in names], statistics)


def _shared(name: str, file: ModelFile, store: str | os.PathLike[str] | None) -> dict[str, Any]:
    """What all drafters of a name have in common, as arguments."""
    if name == "hierarchy":
        from edgespec.drafting.text.history import History
        from edgespec.drafting.text.store import Store

        vocabulary = file.tokenizer.fingerprint
        corpus = None if store is None else Store(store, vocabulary)
        return {"history": History(vocabulary, file.tokenizer.vocab_size), "corpus": corpus}
    if name == "consensus":
        from edgespec.drafting.tables.consensus import ConsensusPools

        return {"pools": ConsensusPools()}
    return {}
