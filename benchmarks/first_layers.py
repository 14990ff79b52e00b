"""What drafting with a prepared model's own first layers costs and brings on llama.cpp.

    python benchmarks/first_layers.py PREPARED.gguf [--tokens 64] [--rounds 2] [--threads 2]
                                      [--curve-only] [--only NAME,...]

PREPARED is the first file that `edgespec prepare` wrote. First a pass over n nodes, as the file is
opened by default and mapped, and of its first layers alone, in turns: median ms over rounds, least
and most. Then greedy replies in turns, without drafts, with n-grams, and with n-grams and early
exits on the pages of the model: medians of tokens a second, and how many of the second's tokens are
the first's before one that differs. Last, what was planned and held, and which pages are shared.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import edgespec
from benchmarks.forgetting import forget
from benchmarks.llama_server import PROMPTS
from edgespec.backends.llamacpp.target import LlamaTarget
from edgespec.backends.passes import TokenTree
from edgespec.memory.plan.plan import Footprint, Plan
from edgespec.models.gguf.splitting import first_layers
from edgespec.models.open_model import open_model
from edgespec.system import resident_memory
from edgespec.system.size import MIB

SIZES = (1, 2, 4, 8, 16)
CONTEXT = 1024
N_GRAMS = "suffix-automaton,trigram"


def curves(path: Path, rounds: int, threads: int) -> None:
    """Print what passes take."""
    plan = Plan("llamacpp", "", CONTEXT, "f16", 16, 256, threads, 0, 1 << 40, Footprint(()))
    with open_model(path, any_engine=True) as file:
        targets = {
            "by default": LlamaTarget(file, plan),
            "mapped": LlamaTarget(file, plan, mapped=True),
            "first layers": LlamaTarget(file, plan, layers=first_layers(path)),
        }
        found: dict[str, dict[int, list[float]]] = {name: {} for name in targets}
        for target in targets.values():
            target.own.prefill(np.arange(10, 74, dtype=np.int32))
        for _ in range(rounds):
            for name, target in targets.items():
                for size in SIZES:
                    found[name].setdefault(size, []).append(_pass_ms(target, size))
        for name, by_size in found.items():
            told = (
                f"T({size}) {statistics.median(ms):.2f} ({min(ms):.2f}-{max(ms):.2f})"
                for size, ms in by_size.items()
            )
            print(f"{name:<14}" + "  ".join(told), flush=True)
        for target in targets.values():
            target.close()


def _pass_ms(target: LlamaTarget, size: int) -> float:
    tree, seconds = TokenTree.chain(list(range(50, 50 + size))), []
    for _ in range(5):
        start = time.perf_counter()
        target.own.forward(tree)
        seconds.append(time.perf_counter() - start)
    return 1e3 * statistics.median(seconds)


def replies(path: Path, options: argparse.Namespace) -> None:
    """Print speeds with and without early exits."""
    made = {"backend": "llamacpp", "context": CONTEXT, "threads": options.threads}
    names = options.only.split(",") if options.only else list(PROMPTS)
    with (
        edgespec.load(path, drafters=N_GRAMS, **made) as without,
        edgespec.load(path, drafters=f"{N_GRAMS},early-exit", **made) as early,
    ):
        print(f"{'prompt':<12}{'plain':>9}{'n-grams':>9}{'+ early':>9}{'same':>8}  asked")
        for name in names:
            speeds: dict[str, list[float]] = {"plain": [], "n-grams": [], "+ early": []}
            ids = without.encode(PROMPTS[name][0], raw=PROMPTS[name][1])
            texts: dict[str, list[int]] = {}
            for _ in range(options.rounds):
                for key in speeds:
                    engine = early if key == "+ early" else without
                    forget(engine)
                    reply = engine.generate(
                        ids, max_tokens=options.tokens, temperature=0, ignore_eos=True,
                        speculation=key != "plain",
                    )  # fmt: skip
                    speeds[key].append(reply.stats.tokens_per_second)
                    texts[key] = reply.token_ids
            pairs = zip(texts["plain"], texts["+ early"], strict=True)
            same = next((at for at, (a, b) in enumerate(pairs) if a != b), options.tokens)
            source = reply.stats.by_source.get("early-exit", {})
            told = "".join(f"{statistics.median(speeds[key]):>9.1f}" for key in speeds)
            asked = f"{source.get('accepted', 0)} of {source.get('drafted', 0)} right"
            print(f"{name:<12}{told}{same:>8}  {asked}", flush=True)


def memory(path: Path, threads: int) -> None:
    """Print plan and peak of a session with early exits, and the maps of the file."""
    made = {"drafters": f"{N_GRAMS},early-exit", "threads": threads, "context": CONTEXT}
    before = resident_memory.peak_resident_bytes()
    resident_memory.reset_peak()
    with edgespec.load(path, backend="llamacpp", **made) as engine:
        engine.generate("the red ball and the blue box " * 120, max_tokens=60, ignore_eos=True)
        start_up = engine.plan.footprint["start-up"]
        planned, held = engine.plan.planned_bytes - start_up, resident_memory.peak_resident_bytes()
        draft = engine.plan.footprint["draft model"]
        print(f"planned {planned / MIB:.1f} MiB, of it first layers {draft / MIB:.1f}, "
              f"held at most {held / MIB:.1f} (before {before / MIB:.1f})")  # fmt: skip
        for each in maps(path):
            print("  map: " + ", ".join(f"{key} {size / MIB:.1f}" for key, size in each.items()))


def maps(path: Path) -> list[Mapping[str, int]]:
    """Sizes of each map of a file, from smaps (Linux)."""
    found: list[dict[str, int]] = []
    ours, told = False, Path("/proc/self/smaps")
    for line in told.read_text().splitlines() if told.exists() else []:
        head, *rest = line.split()
        if not head.endswith(":"):
            ours = rest[-1:] == [str(path.resolve())]
            if ours:
                found.append({})
        elif ours and head in ("Rss:", "Pss:", "Private_Dirty:", "Anonymous:"):
            found[-1][head[:-1]] = int(rest[0]) * 1024
    return [*found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--curve-only", action="store_true")
    options = parser.parse_args()
    if not first_layers(options.prepared):
        raise SystemExit(f"{options.prepared} is not the first file that `edgespec prepare` writes")
    if not options.curve_only:
        memory(options.prepared, options.threads)
        replies(options.prepared, options)
    curves(options.prepared, options.rounds, options.threads)
    return 0


if __name__ == "__main__":
    sys.exit(main())
