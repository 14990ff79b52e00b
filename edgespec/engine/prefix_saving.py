"""Computing the beginning of prompts once, and keeping it with its keys and values."""

from __future__ import annotations

from dataclasses import replace

from edgespec.engine import prompts
from edgespec.engine.idle_sequences import NO_PREFIXES
from edgespec.engine.line import Line
from edgespec.engine.prompts import check_prompt
from edgespec.engine.scheduler import Scheduler
from edgespec.errors import BackendError
from edgespec.memory.kv import saved_prefixes


def save_prefix(
    line: Line, scheduler: Scheduler, name: str, text: str, *, raw: bool
) -> saved_prefixes.Prefix:
    """What `Engine.save_prefix` says."""
    saved_prefixes.check_name(name)
    file = scheduler.file
    store, raw = scheduler.target.store, raw or file.chat_template is None
    if store is None:
        raise BackendError(f"a prefix cannot be saved: {NO_PREFIXES}; load with backend native")
    ids = prompts.prefix_ids(file, text, raw=raw)
    prompt = [*ids, *ids[-1:]]  # the last token of a prompt is left to be computed
    check_prompt(len(prompt), scheduler.plan, file.spec.context_length)
    with line.free_slot() as slot:
        scheduler.idle.switch(slot, None, prompt)
        slot.begin(prompt, scheduler.cached_besides(slot), scheduler.prefilled)
        scheduler.idle.drop_saved(name)
        store.settle(slot.sequence)
        outline, contents = store.outline(slot.sequence), store.contents(slot.sequence)
        header, model = scheduler.idle.header(ids, contents), file.spec.name
        prefix = saved_prefixes.Prefix(name, text, raw, model or file.path.name, header, 0)
        if store.only is None:
            prefix = replace(prefix, outline=outline)
        return replace(prefix, size_bytes=saved_prefixes.save(prefix, contents))
