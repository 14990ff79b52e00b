"""Tokens per step of every drafter, the market, and what others draft with, on transcripts.

    python benchmarks/replay.py FOLDER [--vocab MODEL] [--max-nodes 8] [--drafters all]

FOLDER holds what `benchmarks/transcripts.py` makes. Each set is replayed by its own instances, one
reply after the other. `all` is of the tokens and steps of all sets together. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from baselines import NgramModDrafter, NgramSimpleDrafter

from edgespec.drafting.base import Drafter
from edgespec.drafting.market.market import Market
from edgespec.models.open_model import open_model
from edgespec.models.registry import resolve
from edgespec.tools.replay.lanes import choose_drafters, make, make_market
from edgespec.tools.replay.prompt_lookup import NUM_TOKENS, PromptLookupDrafter
from edgespec.tools.replay.steps import Tally, replay_steps
from edgespec.tools.replay.transcripts import Transcript, read_transcripts

PEERS = {
    "prompt-lookup": (PromptLookupDrafter, NUM_TOKENS),
    "ngram-simple": (NgramSimpleDrafter, NgramSimpleDrafter.most_tokens),
    "ngram-mod": (NgramModDrafter, NgramModDrafter.most_tokens),
}
"""Each with the tokens it drafts by itself, whatever the budget."""


def rate(drafter: Drafter, replies: list[Transcript], max_nodes: int) -> Tally:
    tally = Tally()
    for reply in replies:
        replay_steps(drafter, reply, max_nodes, tally)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--vocab")
    parser.add_argument("--max-nodes", type=int, default=8)
    parser.add_argument("--drafters", default="all")
    parser.add_argument("--markets", default="auto", help="sets of drafters: a+b,c+d, or auto")
    asked = parser.parse_args()
    with open_model(resolve(asked.vocab)) as model:
        sets = {
            path.stem: list(read_transcripts(path, model.tokenizer))
            for path in sorted(asked.folder.glob("*.jsonl"))
        }
    names, _ = choose_drafters(asked.drafters)
    rows: dict[str, list[Tally]] = {}

    def run(row: str, make_drafter: type[Drafter] | object, max_nodes: int) -> None:
        rows[row] = [rate(make_drafter(), replies, max_nodes) for replies in sets.values()]  # type: ignore[operator]

    for name in names:
        run(name, lambda name=name: make(name), asked.max_nodes)
    for market in asked.markets.split(","):
        members, _ = choose_drafters(market.replace("+", ","))
        run(f"{Market.name} {market}", lambda m=members: make_market(m), asked.max_nodes)
    for name, (kind, max_nodes) in PEERS.items():
        run(name, kind, max_nodes)
    print(f"{'':34}" + "".join(f"{name[:12]:>13}" for name in sets) + f"{'all':>8}{'us/step':>9}")
    for name, tallies in rows.items():
        cells = "".join(f"{tally.tokens / tally.steps:13.3f}" for tally in tallies)
        steps = sum(tally.steps for tally in tallies)
        whole = sum(tally.tokens for tally in tallies) / steps
        micros = 1e6 * sum(tally.drafting_s for tally in tallies) / steps
        print(f"{name[:34]:34}{cells}{whole:8.3f}{micros:9.1f}", flush=True)
    replies, tokens = (
        sum(map(len, sets.values())),
        sum(tally.tokens for tally in next(iter(rows.values()))),
    )
    print(f"{replies} replies, {tokens} tokens")


if __name__ == "__main__":
    main()
