"""What do drafters bring without a model running, and what do they cost?

    python -m lab.drafting replay FOLDER [--vocab MODEL] [--max-nodes 8] [--drafters all]
    python -m lab.drafting cost [--drafters all] [--contexts 8192,65536] [--nodes 8] [--cold]
    python -m lab.drafting million [--tokens 1000000] [--drafters all] [--bytes 2097152]

`replay`: tokens per step of every drafter, the market, and what others draft with, on transcripts
as `lab.transcripts` writes them. `cost`: microseconds of a step and bytes held. `million`: what a
text of a million tokens costs, and whether caps are kept; exit code 1 if not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.control.controller import Controller
from edgespec.control.cost_curve import CostCurve
from edgespec.control.prospects import Prospects
from edgespec.drafting.base import Drafter
from edgespec.drafting.market.market import Market
from edgespec.drafting.registry import DRAFTERS, drafter_names
from edgespec.drafting.tree import DraftTree, StepOutcome, TopTokens
from edgespec.models.open_model import open_model
from edgespec.models.registry import resolve
from edgespec.system.size import MIB, format_size
from edgespec.tools.replay.lanes import choose_drafters, make, make_market
from edgespec.tools.replay.prompt_lookup import NUM_TOKENS, PromptLookupDrafter
from edgespec.tools.replay.steps import Tally, replay_steps
from edgespec.tools.replay.transcripts import Transcript, read_transcripts
from lab.baselines import NgramModDrafter, NgramSimpleDrafter
from lab.harness import Asked, Rows, Script, names, numbers, option

PEERS: dict[str, tuple[Callable[[], Drafter], int]] = {
    "prompt-lookup": (PromptLookupDrafter, NUM_TOKENS),
    "ngram-simple": (NgramSimpleDrafter, NgramSimpleDrafter.most_tokens),
    "ngram-mod": (NgramModDrafter, NgramModDrafter.most_tokens),
}
"""Each with the tokens it drafts by itself, whatever the budget."""
VOCABULARY = 32_000
STEPS, WARM_UP = 400, 50
CURVE = {1: 13.2e-3, 2: 13.9e-3, 4: 16.2e-3, 8: 19.7e-3, 16: 26.6e-3}
"""A 336M model's in Q8_0."""
COLD_BYTES = 32 * MIB
MARKETS = {"market auto": drafter_names("auto"), "market all": tuple(DRAFTERS)}
PIECE, BETWEEN, NODES = 16, 64, 8
Text = NDArray[np.int32]
TEXTS: dict[str, Callable[[int, np.random.Generator], Text]] = {
    "random": lambda n, rng: rng.integers(0, 50_000, n, np.int32),
    "identical": lambda n, rng: np.full(n, 7, np.int32),
    "alternating": lambda n, rng: np.arange(n, dtype=np.int32) % 2,
    "repeat of 1,000": lambda n, rng: np.resize(rng.integers(0, 50_000, 1000, np.int32), n),
}
DRAFTER_SET = option("--drafters", default="all")
script = Script(__doc__)


@script.command(
    option("folder", type=Path),
    option("--vocab", help="a model whose vocabulary the transcripts are read by"),
    option("--max-nodes", type=int, default=8),
    DRAFTER_SET,
    option("--markets", type=names, default=["auto"], help="sets of drafters: a+b,c+d, or auto"),
    option("--times", type=int, default=1, help="ask for the same again: first/second"),
)
def replay(asked: Asked) -> Rows:
    """Each set by its own instances, one reply after the other; `all` is of all sets."""
    with open_model(resolve(asked.vocab)) as model:
        sets = {
            path.stem: list(read_transcripts(path, model.tokenizer))
            for path in sorted(asked.folder.glob("*.jsonl"))
        }
    rows: list[tuple[str, Callable[[], Drafter], int]] = [
        (name, partial(make, name), asked.max_nodes) for name in choose_drafters(asked.drafters)[0]
    ]
    for market in asked.markets:
        members, _ = choose_drafters(market.replace("+", ","))
        rows.append((f"{Market.name} {market}", partial(make_market, members), asked.max_nodes))
    rows += [(name, *peer) for name, peer in PEERS.items()]
    for name, new, max_nodes in rows:
        tallies = {
            of: _replayed(new(), found, max_nodes, asked.times) for of, found in sets.items()
        }
        steps = sum(tally.steps for times in tallies.values() for tally in times)
        spent_s = sum(tally.drafting_s for times in tallies.values() for tally in times)
        yield {
            "drafter": name,
            **{of: _tokens_a_step([[tally] for tally in times]) for of, times in tallies.items()},
            "all": _tokens_a_step(list(zip(*tallies.values(), strict=True))),
            "us/step": 1e6 * spent_s / steps,
        }


def _replayed(
    drafter: Drafter, replies: list[Transcript], max_nodes: int, times: int
) -> list[Tally]:
    found = []
    for _ in range(times):
        found.append(tally := Tally())
        for reply in replies:
            replay_steps(drafter, reply, max_nodes, tally)
    return found


def _tokens_a_step(times: Sequence[Sequence[Tally]]) -> str:
    """Of each time, all tallies together."""
    rates = [sum(one.tokens for one in all_) / sum(one.steps for one in all_) for all_ in times]
    return "/".join(f"{rate:.3f}" for rate in rates)


@script.command(
    DRAFTER_SET,
    option("--contexts", type=numbers, default=[8192, 65_536]),
    option("--nodes", type=int, default=8),
    option("--cold", action="store_true", help="read 32 MiB before each step, as a pass would"),
)
def cost(asked: Asked) -> Rows:
    """Median microseconds of each call of a step, after a warm-up.

    `propose` and `select` are what an asked step adds before its pass: the proposal, and choosing
    how much of it to verify. `observe` and `extend` come after it. The text is made: words drawn by
    Zipf's law into sentences, of which every third comes again; the made-up target goes on with it,
    and its runners-up are drawn by the same law.
    """
    known = [*MARKETS, *DRAFTERS]
    cold = np.zeros(COLD_BYTES // 8 if asked.cold else 0, np.int64)
    for name in known if asked.drafters == "all" else asked.drafters.split(","):
        for context in asked.contexts:
            _timed(name, 256, asked.nodes, cold)  # compiles
            yield {"drafter": name, "context": context} | _timed(name, context, asked.nodes, cold)


def _timed(name: str, context: int, nodes: int, cold: NDArray[np.int64]) -> dict[str, Any]:
    drafter = make_market(MARKETS[name]) if name in MARKETS else make(name, 2 * MIB)
    controller, prospects = Controller(CostCurve(CURVE), nodes + 1), Prospects()
    text, rng = _zipf_text(context + 16 * STEPS), np.random.default_rng(3)
    start = time.perf_counter()
    drafter.reset(text[:context])
    drafter.propose(1)
    reset_s, place = time.perf_counter() - start, context
    times: dict[str, list[float]] = {}
    accepted = drafted = 0
    for _ in range(STEPS):
        cold.sum()
        controller.draft_room(prospects, nodes)
        clock = [time.perf_counter()]
        tree = drafter.propose(nodes)
        clock.append(time.perf_counter())
        controller.choose([prospects], [tree], clock[1] - clock[0])
        clock.append(time.perf_counter())
        outcome = _outcome(tree, text[place : place + 16].tolist(), drafter, rng)
        cold.sum()
        clock.append(time.perf_counter())
        drafter.observe(outcome)
        clock.append(time.perf_counter())
        drafter.extend(list(outcome.new_tokens))
        clock.append(time.perf_counter())
        if isinstance(drafter, Market):
            drafter.take_seconds()
        place += len(outcome.new_tokens)
        accepted += len(outcome.path) - 1
        drafted += len(tree) - 1
        propose, select, _, observe, extend = np.diff(clock).tolist()
        for key, seconds in (
            ("propose+select", propose + select),
            ("propose", propose),
            ("select", select),
            ("observe", observe),
            ("extend", extend),
            ("step, us", propose + select + observe + extend),
        ):
            times.setdefault(key, []).append(seconds)
    found = {key: 1e6 * statistics.median(values[WARM_UP:]) for key, values in times.items()}
    return found | {
        "reset, ms": 1e3 * reset_s,
        "drafted": drafted / STEPS,
        "accepted": accepted / STEPS,
        "holds": format_size(drafter.size_bytes),
    }


def _zipf_text(num_tokens: int) -> Text:
    rng = np.random.default_rng(7)
    sentences: list[Text] = []
    length = 0
    while length < num_tokens:
        if sentences and rng.random() < 0.33:
            sentence = sentences[int(rng.integers(len(sentences)))]
        else:
            words = rng.zipf(1.2, int(rng.integers(5, 30)))
            sentence = (words % VOCABULARY).astype(np.int32)
        sentences.append(sentence)
        length += len(sentence)
    return np.concatenate(sentences)[:num_tokens]


def _outcome(
    tree: DraftTree, coming: list[int], drafter: Drafter, rng: np.random.Generator
) -> StepOutcome:
    """Accept what goes on as the text does."""
    path, node, new = [0], 0, []
    for token in coming:
        new.append(token)
        below = np.flatnonzero((tree.parents == node) & (tree.tokens == token))
        if not len(below) or len(new) == len(coming):
            break
        node = int(below[0])
        path.append(node)
    top = None
    if drafter.wants_top:
        shape = len(tree), drafter.wants_top
        tokens = (rng.zipf(1.2, shape) % VOCABULARY).astype(np.int32)
        logits = -np.sort(-rng.normal(0.0, 3.0, shape)).astype(np.float32)
        for place, node in enumerate(path):
            tokens[node, 0] = new[place]
        top = TopTokens(tokens, logits)
    return StepOutcome(tree, path, new[-1], new, top)


@script.command(
    option("--tokens", type=int, default=1_000_000),
    DRAFTER_SET,
    option("--bytes", type=int, default=2 * MIB),
)
def million(asked: Asked) -> Rows:
    """Reading 16 tokens at a time, as after steps that accept many, and 8 nodes after every 64.

    `us/token` is reading, `us/draft` proposing, each the mean; `worst ms` the longest reading of 16
    tokens: where a store forgets and is built anew.
    """
    most_bytes = 0
    for name in DRAFTERS if asked.drafters == "all" else asked.drafters.split(","):
        _fed(name, np.arange(1000, dtype=np.int32) % 9, asked.bytes)  # compiles
        for kind, text_of in TEXTS.items():
            text = text_of(asked.tokens, np.random.default_rng(1))
            reading, proposing, longest, held = _fed(name, text, asked.bytes)
            most_bytes = max(most_bytes, held)
            yield {
                "drafter": name,
                "text": kind,
                "us/token": 1e6 * reading / asked.tokens,
                "us/draft": 1e6 * proposing * BETWEEN / asked.tokens,
                "worst ms": 1e3 * longest,
                "holds": format_size(held),
            }
    script.check(most_bytes <= asked.bytes, f"held {most_bytes} bytes at most, of {asked.bytes}")


def _fed(name: str, text: Text, max_bytes: int) -> tuple[float, float, float, int]:
    """Seconds of all reading, of all proposing, of the longest reading; most bytes held."""
    drafter = make(name, max_bytes)
    drafter.reset(text[:PIECE])
    pieces = [text[place : place + PIECE].tolist() for place in range(PIECE, len(text), PIECE)]
    reading = proposing = longest = 0.0
    most_bytes = 0
    for number, piece in enumerate(pieces):
        start = time.perf_counter()
        drafter.extend(piece)
        read = time.perf_counter()
        reading += read - start
        longest = max(longest, read - start)
        if number % (BETWEEN // PIECE) == 0:
            drafter.propose(NODES)
            proposing += time.perf_counter() - read
            most_bytes = max(most_bytes, drafter.size_bytes)
    return reading, proposing, longest, most_bytes


if __name__ == "__main__":
    script.run()
