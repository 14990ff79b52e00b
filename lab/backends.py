"""The same model in every backend: speed, agreement, the planner's choice, memory against plans.

    python -m lab.backends speed MODEL... [--backends native,llamacpp,onnx] [--rounds 1]
    python -m lab.backends agreement MODEL... [--backends reference,native,llamacpp,onnx]
    python -m lab.backends choice MODEL... [--tokens 64] [--rounds 2] [--out FILE]
    python -m lab.backends memory MODEL... [--backend llamacpp] [--contexts 512,4096]
    python -m lab.backends onnx-memory [MODEL.gguf...] [--only FORM,...] [--keep FOLDER]

Runs that are timed or weighed are processes of their own. Where a backend reads another format, a
GGUF model is exported first, to a folder that is deleted at the end.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

import edgespec
from edgespec.backends import registry as backends
from edgespec.backends.passes import TokenTree
from edgespec.memory.plan.plan import Footprint, Plan
from edgespec.models.file import ModelFile
from edgespec.models.open_model import open_model
from edgespec.models.registry import resolve
from edgespec.system.size import MIB
from edgespec.tools.export.export import export
from lab import held_memory, onnx_forms
from lab.harness import (
    MODELS,
    Asked,
    Records,
    Row,
    Rows,
    Script,
    in_process,
    names,
    numbers,
    option,
    rounds,
    tokens,
)
from tests.support.parity import TEXTS, matrix_types
from tests.support.passes import Passes

SIZES = (1, 2, 4, 8, 16)
REPEATING = "Once upon a time there was a red ball. " * 4 + "Once"
NEW = "The old man walked to the sea and looked for"
RANDOM_PROMPT = [3 + 7 * i % 11 for i in range(64)]
"""For models whose weights are random: their greedy text falls into loops."""
WORKLOADS = {"repeating": (REPEATING, True), "new text": (NEW, True), "plain": (NEW, False)}
CHOICES = ("native", "llamacpp")
CONTEXT = 256
NODES = 8
PARENTS = np.array([-1, 0, 0, 1, 1, 2, 3, 6], np.int16)
LEAST_COSINE, LEAST_COSINE_F32 = 0.999, 0.99999
Logits = NDArray[np.float32]
script = Script(__doc__)


@script.command(
    MODELS,
    option("--backends", type=names, default=["native", "llamacpp", "onnx"]),
    tokens(64),
    rounds(1),
)
def speed(asked: Asked) -> Rows:
    """Plain and speculative speed, T(n) in ms, peak memory in MiB. Exit code 1: over its budget.

    Greedy replies to a prompt that repeats itself; backends take turns, medians of the rounds.
    """
    for model in asked.models:
        runs: dict[str, list[Row]] = {name: [] for name in asked.backends}
        with TemporaryDirectory(prefix="edgespec-backends-") as folder:
            if "onnx" in runs:
                export(model, folder, check=False)
            for _ in range(asked.rounds):
                for name, found in runs.items():
                    path = folder if name == "onnx" else str(model)
                    found.append(in_process(reply_once, path, name, asked.tokens))
        for name, found in runs.items():
            row: Row = {"model": model.name, "backend": name}
            failed = next((one for one in found if "error" in one), None)
            if failed:
                script.check(False, f"{model.name}, {name}: {failed['error']}")
                continue
            row |= {key: statistics.median(one[key] for one in found) for key in found[0]}
            yield row
            kept = row["peak"] <= row["budget"]
            script.check(kept, f"{model.name}, {name}: within its budget")


def reply_once(model: str, backend: str, num_tokens: int) -> dict[str, float]:
    """What one backend does with a model, in this process."""
    with edgespec.load(model, backend=backend, context=512) as engine:
        random = engine.file.spec.name.startswith("random")
        prompt = RANDOM_PROMPT if random else engine.tokenizer.encode(REPEATING)
        speeds: dict[bool, list[float]] = {False: [], True: []}
        steps = 0.0
        for speculation in (False, True, True, False):
            stats = engine.generate(
                prompt,
                max_tokens=num_tokens,
                temperature=0,
                speculation=speculation,
                ignore_eos=True,
            ).stats
            speeds[speculation].append(stats.tokens_per_second)
            steps = max(steps, stats.tokens_per_step)
        curve = engine.cost_curve()
        return {
            "plain": max(speeds[False]),
            "speculative": max(speeds[True]),
            "tokens/step": steps,
            **{f"T({size})": 1e3 * curve[size] for size in SIZES},
            "peak": stats.peak_memory_bytes / MIB,
            "planned": stats.planned_memory_bytes / MIB,
            "budget": engine.plan.budget_bytes / MIB,
        }


@script.command(
    MODELS,
    option("--tokens", type=int, default=16, help="single tokens after each tree"),
    option("--prompts", type=int, default=4),
    option("--backends", type=names, default=["reference", "native", "llamacpp", "onnx"]),
)
def agreement(asked: Asked) -> Rows:
    """Cosines of every pair's logits. Exit code 1: below 0.999, or 0.99999 for a model in F32.

    Each backend prefills the same texts, scores a tree of eight random tokens on top, and then
    random tokens one by one.
    """
    for path in asked.models:
        with open_model(path) as file:
            prompts = [file.tokenizer.encode(text) or [1] for text in TEXTS[: asked.prompts]]
            found = {name: _logits(file, name, prompts, asked.tokens) for name in asked.backends}
            types = matrix_types(file)
        least = LEAST_COSINE_F32 if types == "F32" else LEAST_COSINE
        for one, two in itertools.combinations(asked.backends, 2):
            cosines = _cosines(found[one], found[two])
            best = found[one].argmax(axis=1) == found[two].argmax(axis=1)
            yield {
                "model": path.name,
                "types": types,
                "pair": f"{one} / {two}",
                "worst cosine": f"{cosines.min():.7f}",
                "mean": f"{cosines.mean():.7f}",
                "same best token": f"{int(best.sum())} of {len(best)}",
            }
            script.check(bool(cosines.min() >= least), f"{one} / {two}: cosines from {least}")


def _logits(file: ModelFile, backend: str, prompts: list[list[int]], num_tokens: int) -> Logits:
    """[rows, vocab] of a tree and of single tokens after each prompt."""
    if backend != "onnx":
        return _scored(file, backend, prompts, num_tokens)
    with TemporaryDirectory(prefix="edgespec-agreement-") as folder:
        made = export(file.path, folder, check=False)
        with open_model(made.path, any_engine=True) as exported:
            return _scored(exported, backend, prompts, num_tokens)


def _scored(file: ModelFile, backend: str, prompts: list[list[int]], num_tokens: int) -> Logits:
    room = max(map(len, prompts)) + num_tokens + NODES
    plan = Plan(backend, "", room, "f16", NODES, 64, 1, 0, 0, Footprint(()))
    rng, found = np.random.default_rng(0), []
    with Passes(backends.open_target(file, plan)) as passes:
        for prompt in prompts:
            ids = rng.integers(3, file.spec.vocab_size, NODES + num_tokens, dtype=np.int32)
            passes.truncate()
            passes.prefill(prompt)
            found.append(passes.score_tree(TokenTree(ids[:NODES], PARENTS)).copy())
            for token in ids[NODES:]:
                found.append(passes.score([int(token)]).copy())
                passes.commit(1)
    return np.concatenate(found)


def _cosines(left: Logits, right: Logits) -> NDArray[np.float64]:
    one, two = left.astype(np.float64), right.astype(np.float64)
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
    result: NDArray[np.float64] = (one * two).sum(axis=1) / lengths
    return result


@script.command(MODELS, tokens(64), rounds(2), option("--out", type=Path))
def choice(asked: Asked) -> Rows:
    """Is the backend that the planner chooses the fastest? By model, budget and workload.

    Two budgets: auto, and the least in which every backend has 256 tokens of context. The planner
    is asked as it is after two starts on this machine; the best round counts. Exit code 1: the
    choice was the fastest in fewer than nine of ten cells, or more than 5 % slower in one.
    """
    records, ratios = Records(asked.out), []
    for model in map(str, asked.models):
        tight = str(in_process(tight_budget, model))
        for budget, memory in (("auto", "auto"), ("tight", tight)):
            cells = records.get((model, budget), partial(_cells, model, memory, asked))
            for name, cell in cells.items():
                speeds, chosen = cell["speeds"], cell["chosen"]
                ratios.append(speeds[chosen] / max(speeds.values()))
                row = {"model": Path(model).name, "budget": budget, "workload": name}
                yield row | speeds | {"chosen": chosen, "ratio": ratios[-1]}
    fastest = sum(ratio == 1.0 for ratio in ratios)
    script.check(fastest >= 0.9 * len(ratios), f"the fastest in {fastest} of {len(ratios)} cells")
    script.check(min(ratios) >= 0.95, f"at worst {min(ratios):.3f} of the fastest")


def _cells(model: str, memory: str, asked: Asked) -> dict[str, Any]:
    """Workload -> what was chosen, and each backend's best speed."""
    chosen = [in_process(chosen_backend, model, memory) for _ in range(2)][-1]
    best: dict[str, dict[str, float]] = {name: {} for name in WORKLOADS}
    for _, backend in itertools.product(range(asked.rounds), CHOICES):
        found = in_process(workload_speeds, model, backend, memory, asked.tokens)
        for name, tokens_per_second in found.items():
            best[name][backend] = max(tokens_per_second, best[name].get(backend, 0.0))
    return {name: {"chosen": chosen, "speeds": speeds} for name, speeds in best.items()}


def tight_budget(model: str) -> int:
    """The least, in bytes, in which every backend has this context."""
    plans = (edgespec.plan(model, backend=b, context=CONTEXT, max_nodes=8) for b in CHOICES)
    return max(plan.planned_bytes for plan in plans)


def chosen_backend(model: str, memory: str) -> str:
    with edgespec.load(model, memory=memory, context=CONTEXT) as engine:
        return engine.plan.backend


def workload_speeds(model: str, backend: str, memory: str, num_tokens: int) -> dict[str, float]:
    """Tokens a second of each workload, in this process."""
    found = {}
    with edgespec.load(model, backend=backend, memory=memory, context=CONTEXT) as engine:
        for name, (prompt, speculation) in WORKLOADS.items():
            options: dict[str, Any] = {
                "temperature": 0,
                "speculation": speculation,
                "ignore_eos": True,
            }
            ids = engine.encode(prompt, raw=True)
            stats = [engine.generate(ids, max_tokens=num_tokens, **options).stats for _ in range(2)]
            found[name] = max(one.tokens_per_second for one in stats)
    return found


@script.command(
    MODELS,
    option("--backend", default="llamacpp"),
    option("--contexts", type=numbers, default=[512, 4096]),
    option("--kv", type=names, default=["f16"]),
    option("--nodes", type=numbers, default=[16]),
    option("--sequences", type=numbers, default=[1]),
    option("--items", action="store_true", help="the plan, and what was resident after each stage"),
)
def memory(asked: Asked) -> Rows:
    """What a plan says against what a session holds, in MiB. Exit code 1: a peak over its plan.

    Every run takes a turn of a chat where the model has a template, fills the context of every
    sequence, replies with speculation included, and scores the widest tree on top of each: that is
    all a plan can be for. `peak` is VmHWM; settings that a model does not take are told.
    """
    # Only a first start compiles, so one comes before all others.
    least = {"context": 256, "kv_type": "f16", "max_nodes": 2, "sequences": 1}
    in_process(held_memory.fill, str(asked.models[0]), asked.backend, least)
    choices = itertools.product(asked.contexts, asked.kv, asked.nodes, asked.sequences)
    for (context, kv, nodes, sequences), model in itertools.product(choices, asked.models):
        settings = {"context": context, "kv_type": kv, "max_nodes": nodes, "sequences": sequences}
        found = in_process(held_memory.fill, str(model), asked.backend, settings)
        yield from _held({"model": model.name} | settings, found, asked.items)


@script.command(
    option("models", nargs="*", metavar="MODEL.gguf"),
    option("--only", type=names, default=[], help="forms"),
    option("--keep", type=Path, help="keep the exported models here"),
)
def onnx_memory(asked: Asked) -> Rows:
    """The same for ONNX Runtime: precisions, layouts and contexts, as the exporters write them."""
    with ExitStack() as stack:
        root = asked.keep or Path(stack.enter_context(TemporaryDirectory(prefix="edgespec-")))
        for path in map(Path, asked.models or [resolve()]):
            for form, contexts in onnx_forms.forms(path).items():
                if asked.only and form not in asked.only:
                    continue
                graph = onnx_forms.write_form(path, form, root / f"{path.stem}-{form}")
                for context in contexts:
                    settings = {"context": context, "memory": onnx_forms.BUDGET}
                    found = in_process(held_memory.fill, str(graph), "auto", settings)
                    row = {"model": path.name, "form": form, "context": context}
                    yield from _held(row, found, False)


def _held(row: Row, found: dict[str, Any], items: bool) -> Iterator[Row]:
    if "error" in found:
        script.note(f"{row}: {found['error']}")
        return
    planned, peak = found["planned"] / MIB, found["peak"] / MIB
    yield row | {"planned": planned, "peak": peak, "planned/peak": planned / peak}
    for title in ("items", "stages") if items else ():
        sizes = (f"{name} {size / MIB:.1f}" for name, size in found[title].items() if size)
        script.note(f"    {title}: {', '.join(sizes)}")
    if peak > planned:
        script.check(False, "the peak is within the plan")


if __name__ == "__main__":
    script.run()
