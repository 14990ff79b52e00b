"""Every architecture natively, on small random models: logits, equality, memory.

    python -m lab.architectures parity [--kinds F32,F16,Q8_0,Q4_K_M] [--types qwen3]
    python -m lab.architectures equality [--prompts 10]
    python -m lab.architectures budget [--large]

`parity`: logits beside exact arithmetic and llama.cpp's on the same file, and llama.cpp's greedy
choices; `--types NAME` compares every type on one architecture instead. `equality`: replies with
speculation on and off, in ten ways (`tests/support/architecture_equality.py`). `budget`: plan
beside peak, and exact items beside what was allocated. Files are kept in `--folder`; with `--out`
finished work is kept, and a run that was stopped goes on where it was. Exit code 1: a goal was
missed. `parity` and mixed types need llama-cpp-python.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from edgespec.backends.native.kernels.matmul.tile import FORMATS
from edgespec.errors import EdgeSpecError
from edgespec.system.size import MIB
from lab.harness import Asked, Records, Row, Rows, Script, names, option
from tests.support import architecture_files as files
from tests.support import budget_runs, llama_peer
from tests.support.architecture_budget import exact_items
from tests.support.architecture_equality import opened, written
from tests.support.architecture_parity import compare
from tests.support.parity import ROUNDING_RATIO
from tests.support.random_models import MODELS, text

KINDS = ("F32", "F16", "Q8_0", "Q4_K_M")
MIXED = ("Q4_K_M", "Q8_0", "F16")
"""Types that architectures take in turns where the question is not about types."""
EXACT = ("F32", "F16", "BF16")
LEAST_COSINE = 0.9999
CONTINUED = 64
ONLY = option("--only", type=names, default=list(MODELS), metavar="NAME,...")
FOLDER = option("--folder", type=Path, default=Path("build/architectures"), help="of the files")
OUT = option("--out", type=Path, help="keep what is finished here, and go on from it")
Found = dict[str, Any]
script = Script(__doc__)


@script.command(
    ONLY,
    option("--kinds", type=names, default=list(KINDS)),
    option("--types", metavar="NAME", help="every type on this architecture instead"),
    FOLDER,
    OUT,
)
def parity(asked: Asked) -> Rows:
    """Worst cosines over all positions; choices equal, nearly tied, different.

    "either": with that of both which we are nearer to, position by position.
    "rounding" is how far we are from exact arithmetic, by mean cosine, to how far the peer is.
    """
    every = [kind.name for kind in FORMATS]
    pairs = [(name, kind) for name in asked.only for kind in asked.kinds]
    if asked.types:
        pairs = [(asked.types, kind) for kind in every]
    records, totals = Records(asked.out), Counter[str]()
    low, rough, differing = [], [], []
    for name, kind in pairs:
        work = partial(_parity, asked.folder, name, kind, written=bool(asked.types))
        found = records.get(("parity", name, kind, bool(asked.types)), work)
        if "refused" in found:
            totals["refused"] += 1
            script.note(f"{name} {kind}: {found['refused']}")
            continue
        totals.update({each: found[each] for each in ("equal", "ties", "different")})
        totals["compared"] += 1
        if kind in EXACT:
            low += [f"{name} {kind}"] * (found["ours~either"] < LEAST_COSINE)
            differing += [f"{name} {kind}"] * (found["different"] > 0)
        else:
            rough += [f"{name} {kind}"] * (_rounding(found) > ROUNDING_RATIO)
        yield _parity_row(name, kind, found)
    script.note(", ".join(f"{count} {name}" for name, count in totals.items()))
    script.check(not low, f"floats within {LEAST_COSINE} of one of both; below: {low}")
    script.check(not differing, f"floats choose as llama.cpp up to near ties; not: {differing}")
    script.check(not rough, f"the others as exact as llama.cpp, by {ROUNDING_RATIO}; not: {rough}")


def _parity(folder: Path, name: str, kind: str, *, written: bool) -> Found:
    try:
        path = files.model_file(folder, name, kind, written=written)
        refused = files.native_refusal(path)
        return (
            {"refused": refused}
            if refused
            else compare(path, text(MODELS[name]()), CONTINUED, kind)
        )
    except (EdgeSpecError, llama_peer.PeerError, NotImplementedError) as error:
        return {"refused": str(error)}


def _rounding(found: Found) -> float:
    ours, theirs = (1.0 - float(found[pair]["mean"]) for pair in ("ours~exact", "peer~exact"))
    return ours / max(theirs, 1e-9)


def _parity_row(name: str, kind: str, found: Found) -> Row:
    row: Row = {"architecture": name, "type": kind}
    for pair in ("ours~exact", "ours~peer", "peer~exact"):
        row |= {f"{pair} min": f"{found[pair]['min']:.6f}"}
    row["either"] = f"{found['ours~either']:.6f}"
    row |= {"mean": f"{found['ours~peer']['mean']:.6f}", "rounding": round(_rounding(found), 2)}
    counts = ("equal", "ties", "different", "worst gap", "exact is ours", "exact is theirs")
    return row | {each: found[each] for each in counts}


@script.command(ONLY, option("--prompts", type=int, default=10), FOLDER, OUT)
def equality(asked: Asked) -> Rows:
    """Replies, mismatches, and how much of what was drafted was accepted."""
    records, ways = Records(asked.out), defaultdict[str, Counter[str]](Counter)
    for name, kind in _in_turns(asked.only):
        work = partial(_equality, asked.folder, name, kind, asked.prompts)
        found = records.get(("equality", name, kind, asked.prompts), work)
        if "refused" in found:
            script.note(f"{name}: {found['refused']}")
            continue
        for way, counts in found["ways"].items():
            ways[way].update(counts)
        for line in found["mismatches"]:
            script.note(f"{name} {kind}: {line}")
        yield _equality_row(f"{name} {kind}", sum(map(Counter, found["ways"].values()), Counter()))
    for way, counts in ways.items():
        yield _equality_row(way, counts)
    total = sum(ways.values(), Counter[str]())
    script.check(
        not total["mismatches"],
        f"{total['replies']} replies, {total['mismatches']} mismatches, "
        f"{total['accepted']} of {total['drafted']} drafted tokens accepted",
    )


def _equality(folder: Path, name: str, kind: str, prompts: int) -> Found:
    """Sums of each way, and what was written where it was another reply."""
    path = files.model_file(folder, name, kind)
    refused = files.native_refusal(path)
    if refused:
        return {"refused": refused}
    ways = defaultdict[str, Counter[str]](Counter)
    mismatches = []
    with opened(path) as engines:
        for number, found in enumerate(written(engines, prompts)):
            for way, one in found.items():
                numbers = {key: value for key, value in one.items() if isinstance(value, int)}
                del numbers["equal"]
                ways[way].update(numbers | {"replies": 1, "mismatches": int(not one["equal"])})
                if not one["equal"]:
                    mismatches.append(f"case {number}, {way}: {one}")
    return {"ways": ways, "mismatches": mismatches}


def _equality_row(name: str, counts: Counter[str]) -> Row:
    return {
        "": name,
        "replies": counts["replies"],
        "mismatches": counts["mismatches"],
        "tokens/step": counts["tokens"] / max(counts["steps"], 1),
        "drafted": counts["drafted"],
        "accepted": counts["accepted"],
        "prompt tokens cached": counts["cached"],
    }


@script.command(
    ONLY,
    option("--large", action="store_true", help=f"{len(files.LARGE_MODELS)} of 90 to 280 MB"),
    FOLDER,
    OUT,
)
def budget(asked: Asked) -> Rows:
    """A chat beyond the context at the smallest budget and at 1.5 times it; exact items."""
    records = Records(asked.out)
    over, ratios, inexact = 0, [], []
    for name, path in _large(asked) if asked.large else _small(asked):
        found = records.get(("budget", name, asked.large), partial(_budget, path))
        if "refused" in found:
            script.note(f"{name}: {found['refused']}")
            continue
        inexact += [f"{name}, {line}" for line in _inexact(found["exact"])]
        for run in found["runs"]:
            row: Row = {"model": name, "step": f"{run['step']:g}x"}
            if "error" in run:
                script.note(f"{row}: {run['error']}")
                over += 1
                continue
            over += run["peak_bytes"] > run["budget_bytes"]
            ratios.append(run["planned_bytes"] / run["peak_bytes"])
            yield row | _budget_row(run, found["exact"])
    within = sum(0.95 <= ratio <= 1.05 for ratio in ratios)
    script.check(within == len(ratios), f"plan within 5 % of the peak in {within} of {len(ratios)}")
    script.check(not over, f"{over} runs over budget or failed")
    for line in inexact:
        script.note(line)
    script.check(not inexact, "exact items are the most that was allocated")


def _inexact(exact: Found) -> Iterator[str]:
    """Items of which another size was allocated; several sequences may keep less of windows."""
    for sequences, each in exact.items():
        planned, most = each["planned"], each["allocated"]
        for item in sorted(planned.keys() | most.keys()):
            one, other = planned.get(item, 0), most.get(item, 0)
            if one != other and not (sequences != "1" and item == "KV cache" and other < one):
                yield f"{sequences} sequences: {item}: {one} planned, {other} allocated"


def _budget(make: Callable[[], Path]) -> Found:
    path = make()
    refused = files.native_refusal(path)
    if refused:
        return {"refused": refused}
    runs = budget_runs.measure(str(path), "native", [1, 1.5], 0, cold=False, cgroup=False)
    return {
        "exact": {str(count): exact_items(path, count) for count in (1, 3)},
        "runs": list(runs),
    }


def _budget_row(run: Found, exact: Found) -> Row:
    row: Row = {name: run[f"{name}_bytes"] / MIB for name in ("budget", "planned", "peak")}
    row["planned/peak"] = round(run["planned_bytes"] / run["peak_bytes"], 3)
    row |= {"context": run["context"], "KV": run["kv_type"], "nodes": run["max_nodes"]}
    planned, most = (sum(exact["1"][name].values()) for name in ("planned", "allocated"))
    row |= {"exact": planned / MIB, "allocated": most / MIB}
    kept = ("weights", "KV cache", "states")
    return row | {name: exact["1"]["planned"].get(name, 0) / MIB for name in kept}


def _in_turns(chosen: list[str]) -> Iterator[tuple[str, str]]:
    """Each architecture and its type."""
    for place, name in enumerate(MODELS):
        if name in chosen:
            yield name, MIXED[place % len(MIXED)]


def _small(asked: Asked) -> Iterator[tuple[str, Callable[[], Path]]]:
    for name, kind in _in_turns(asked.only):
        yield f"{name} {kind}", partial(files.model_file, asked.folder, name, kind)


def _large(asked: Asked) -> Iterator[tuple[str, Callable[[], Path]]]:
    for name in files.LARGE_MODELS:
        if name in asked.only:
            yield f"{name} {files.LARGE} wide F16", partial(files.large_file, asked.folder, name)


if __name__ == "__main__":
    script.run()
