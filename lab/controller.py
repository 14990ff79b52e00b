"""Are the market's probabilities right, and does the controller ask and verify where that pays?

    python -m lab.controller replay FOLDER [--vocab MODEL] [--passes 13,1.3] [--draft-us 40]
        [--nodes 8] [--replies 60] [--drafters auto] [--fixed 0]
    python -m lab.controller experts MODEL [--tokens 64] [--rounds 5]
    python -m lab.controller plain [MODEL] [--tokens 200] [--rounds 9]

Replays transcripts as `lab.transcripts` writes them, and texts made to mislead, through the
engine's own loop. Passes take what a curve of a 336M model's shape says, scaled to so many
milliseconds for one node; asking for drafts takes a fixed time, so that two versions of the code
can be compared on a busy machine. `--fixed 2` verifies the two surest nodes of every proposal,
whatever they promise. `experts`: what passes of a mixture of experts were predicted to take, and
took. `plain`: what a token takes beyond its pass, step by step and in compiled bursts.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import edgespec
from edgespec.control import accounts
from edgespec.drafting.market.market import Market
from edgespec.drafting.tree import DraftTree, StepOutcome
from edgespec.engine.burst import Burst
from edgespec.models.open_model import open_model
from edgespec.models.registry import resolve
from edgespec.models.spec import ModelSpec
from edgespec.tools.replay.lanes import choose_drafters, make_market
from edgespec.tools.replay.priced import PricedReplay
from edgespec.tools.replay.prices import TYPICAL
from edgespec.tools.replay.transcripts import Transcript, read_transcripts
from lab.harness import (
    MODEL,
    Asked,
    Rows,
    Script,
    alternate,
    forget,
    numbers,
    option,
    ratios,
    rounds,
    tokens,
)
from lab.speculation import NOISE

BINS = (0.02, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
"""Upper bounds of what is said of a proposal's surest node."""
HOSTILE = ("random", "stops", "stops again")
script = Script(__doc__)


def hostile(vocab_size: int, replies: int = 12, length: int = 192) -> dict[str, list[Transcript]]:
    """Texts that nobody can foretell; that repeat the prompt and then are random; both in turns."""
    rng = np.random.default_rng(1)

    def drawn(count: int = length) -> list[int]:
        return [int(token) for token in rng.integers(300, vocab_size, count)]

    found: dict[str, list[Transcript]] = {name: [] for name in HOSTILE}
    for _ in range(replies):
        prompt, piece = drawn(), length // 4
        found["random"].append(Transcript(prompt, drawn()))
        found["stops"].append(Transcript(prompt, prompt[:piece] + drawn(length - piece)))
        turns = [prompt[:piece], drawn(piece), prompt[piece : 2 * piece], drawn(piece)]
        found["stops again"].append(Transcript(prompt, sum(turns, [])))
    return found


class Watched:
    """A market that is watched while it drafts, on a clock that only drafting moves."""

    def __init__(self, market: Market, draft_s: float) -> None:
        self.market, self.draft_s, self.now = market, draft_s, 0.0
        self.asked, self.said = 0, np.zeros((len(BINS), 3))
        """Of proposals by bin: how many, what was said in all, how many were right."""
        self._tree: DraftTree | None = None
        self._propose, self._observe = market.propose, market.observe
        market.propose = self.propose  # type: ignore[method-assign]
        market.observe = self.observe  # type: ignore[method-assign]

    def clock(self) -> float:
        return self.now

    def propose(self, max_nodes: int, *, free: bool = True) -> DraftTree:
        self.asked, self.now = self.asked + 1, self.now + self.draft_s
        tree = self._tree = self._propose(max_nodes, free=free)
        return tree

    def observe(self, outcome: StepOutcome) -> None:
        tree, self._tree = self._tree, None
        if tree is not None and len(tree) > 1:
            said = float(tree.p_accept[1])
            place = int(np.searchsorted(BINS, said))
            right = int(tree.tokens[1]) == int(outcome.new_tokens[0])
            self.said[min(place, len(BINS) - 1)] += (1, said, right)
        self._observe(outcome)


class FixedChoice:
    """So many nodes of every proposal."""

    def __init__(self, count: int) -> None:
        self._count: int = count
        self.size_bytes = 0

    def counts(self, trees: Sequence[DraftTree], *_: object) -> list[int]:
        most: int = self._count
        return [int(min(most, len(tree) - 1)) for tree in trees]


@script.command(
    option("folder", type=Path),
    option("--vocab", help="a model whose vocabulary the transcripts are read by"),
    option("--passes", type=lambda text: [float(part) for part in text.split(",")],
           default=[13.0, 1.3], help="milliseconds of a pass over one node"),
    option("--draft-us", type=float, default=40.0, help="microseconds that a proposal takes"),
    option("--nodes", type=int, default=8),
    option("--replies", type=int, default=60, help="of each set, at most"),
    option("--drafters", default="auto"),
    option("--fixed", type=numbers, default=[0], help="nodes to verify always; 0: what pays"),
)  # fmt: skip
def replay(asked: Asked) -> Rows:
    """Predicted speed-up against plain decoding, how often drafts were asked for, and what was said
    of the surest node against how often it was right.
    """
    with open_model(resolve(asked.vocab)) as model:
        sets = {
            path.stem: list(read_transcripts(path, model.tokenizer))[: asked.replies]
            for path in sorted(asked.folder.glob("*.jsonl"))
        }
        sets |= hostile(model.spec.vocab_size)
    members, _ = choose_drafters(asked.drafters)
    for pass_ms in asked.passes:
        for fixed in asked.fixed:
            said, logs = np.zeros((len(BINS), 3)), []
            for name, transcripts in sets.items():
                row, found = _replayed(transcripts, members, model.spec, pass_ms, fixed, asked)
                said += found * (name not in HOSTILE)
                logs.append(np.log(row["speed-up"]))
                yield {"passes, ms": pass_ms, "verified": fixed or "what pays", "set": name} | row
            logs = logs[: -len(HOSTILE)]
            mean = float(np.exp(np.mean(logs)))
            yield {"passes, ms": pass_ms, "verified": fixed or "what pays", "set": "mean",
                   "speed-up": mean}  # fmt: skip
            for count, total, right in said[said[:, 0] > 0]:
                script.note(f"  said {total / count:.3f} right {right / count:.3f} of {count:.0f}")


def _replayed(
    transcripts: Sequence[Transcript],
    members: Sequence[str],
    spec: ModelSpec,
    pass_ms: float,
    fixed: int,
    asked: Asked,
) -> tuple[dict[str, Any], Any]:
    scale = pass_ms * 1e-3 / TYPICAL[1]
    curve = {nodes: seconds * scale for nodes, seconds in TYPICAL.items()}
    watched = Watched(make_market(members), asked.draft_us * 1e-6)
    replayed = PricedReplay(watched.market, curve, asked.nodes, spec, watched.clock)
    if fixed:
        replayed._controller.choice = FixedChoice(fixed)  # type: ignore[assignment]
        replayed._controller.numbers[accounts.ACCOUNT_S] = accounts.CREDIT_PASSES
    worst = np.inf
    for transcript in transcripts:
        before = replayed.stats.plain_s, replayed.stats.decode_s
        replayed.replay(transcript)
        plain_s, decode_s = replayed.stats.plain_s - before[0], replayed.stats.decode_s - before[1]
        if decode_s:
            worst = min(worst, plain_s / decode_s)
    stats = replayed.stats
    return {
        "speed-up": stats.estimated_speedup,
        "worst reply": worst,
        "tokens/step": stats.tokens_per_step,
        "asked": watched.asked / max(stats.steps, 1),
        "drafted/step": stats.drafted / max(stats.steps, 1),
    }, watched.said


TEXTS = {
    "repeats": "the red ball and the blue box and " * 12,
    "story": "Tell me a short story about a dog.",
    "random": "",
}


@script.command(MODEL, tokens(64), rounds(5))
def experts(asked: Asked) -> Rows:
    """Median error of predicted seconds of a pass: by the experts that it read, and by its nodes
    alone; and speeds with speculation over those without.
    """
    with edgespec.load(asked.model) as engine:
        curve, rng = engine.scheduler.controller.curve, np.random.default_rng(2)
        script.note(f"T(n), ms: { {n: round(1e3 * s, 2) for n, s in engine.cost_curve().items()} }")
        found: list[tuple[int, float, float, float]] = []
        update = curve.update

        def watched(num_nodes: int, seconds: float, experts: int = 0) -> None:
            own = curve.predicted(num_nodes, experts), curve.seconds(num_nodes)
            found.append((num_nodes, seconds, *own))
            update(num_nodes, seconds, experts)

        curve.update = watched  # type: ignore[method-assign]
        for name, text in TEXTS.items():
            drawn = [int(token) for token in rng.integers(300, engine.file.spec.vocab_size, 96)]
            prompt: Any = engine.encode(text, raw=True) if text else drawn
            options = {"temperature": 0.0} if text else NOISE

            def write(speculation: bool, prompt: Any = prompt, options: Any = options) -> float:
                forget(engine)
                reply = engine.generate(
                    prompt,
                    max_tokens=asked.tokens,
                    ignore_eos=True,
                    seed=1,
                    speculation=speculation,
                    **options,
                )
                return reply.stats.tokens_per_second

            found.clear()
            speeds = alternate({"on": partial(write, True), "off": partial(write, False)},
                               asked.rounds)  # fmt: skip
            passes = np.array(found)
            errors = np.abs(passes[:, 2:] / passes[:, 1:2] - 1.0)
            yield {
                "text": name,
                "passes": len(passes),
                "nodes": float(passes[:, 0].mean()),
                "error, experts": f"{100 * np.median(errors[:, 0]):.1f} %",
                "error, nodes": f"{100 * np.median(errors[:, 1]):.1f} %",
                "on / off": ratios(speeds["on"], speeds["off"]),
            }


@script.command(MODEL, tokens(200), rounds(9))
def plain(asked: Asked) -> Rows:
    """Speeds of the same reply in turns, and what of a token's time is neither a pass nor a burst:
    all of Python's, from the first token to the reply.
    """
    with edgespec.load(asked.model) as engine:
        write, call, forward = Burst.write, Burst.call, engine.scheduler.target.forward
        compiled, beside = [0.0], defaultdict(list)

        def timed(run: Callable[..., Any]) -> Callable[..., Any]:
            def timed_run(*given: Any) -> Any:
                start = time.perf_counter()
                found = run(*given)
                compiled[0] += time.perf_counter() - start
                return found

            return timed_run

        Burst.call = timed(call)  # type: ignore[method-assign]
        engine.scheduler.target.forward = timed(forward)  # type: ignore[method-assign]

        def reply(bursts: bool, speculation: bool) -> float:
            forget(engine)
            Burst.write = write if bursts else (lambda *_: None)  # type: ignore
            compiled[0], start = 0.0, time.perf_counter()
            made = engine.generate(
                "Tell me a short story about a dog.",
                max_tokens=asked.tokens,
                seed=1,
                ignore_eos=True,
                speculation=speculation,
            )
            seconds = time.perf_counter() - start - made.stats.time_to_first_token_s
            beside[bursts, speculation].append((seconds - compiled[0]) / asked.tokens)
            return made.stats.tokens_per_second

        ways = {
            f"{'speculation' if on else 'plain'}, {'bursts' if bursts else 'steps'}": partial(
                reply, bursts, on
            )
            for on in (False, True)
            for bursts in (False, True)
        }
        speeds = alternate(ways, asked.rounds)
        Burst.write, Burst.call = write, call  # type: ignore[method-assign]
        for (name, values), key in zip(speeds.items(), beside, strict=True):
            base = speeds[name.replace("bursts", "steps")]
            yield {
                "way": name,
                "tokens/s": float(np.median(values)),
                "us a token": float(1e6 / np.median(values)),
                "of it Python": 1e6 * float(np.median(beside[key])),
                "against steps": ratios(values, base),
            }


if __name__ == "__main__":
    script.run()
