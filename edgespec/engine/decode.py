"""The decode loop: draft, verify, commit, learn, yield. One sequence is a batch of one.

Where a reply needs no Python between its steps, a burst of them is one compiled call.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

from edgespec.backends.passes import Logits, TokenTree
from edgespec.control.controller import Controller
from edgespec.control.step_clock import StepClock
from edgespec.drafting.market.account import NOTHING_COSTLY, CostlyStep
from edgespec.drafting.tree import DraftTree, StepOutcome, TopTokens
from edgespec.engine.burst import Burst, Written
from edgespec.engine.generation import Generation
from edgespec.engine.grammar_drafts import allowed, certain
from edgespec.verification.match import bad_row
from edgespec.verification.top import top_tokens


def decode(
    running: list[Generation], controller: Controller
) -> Generator[list[list[int]], None, None]:
    """Yield the new tokens of each of the running generations, step after step, until none runs.

    Who reads may add to `running` and take from it between two steps. A reply is a function of
    model, prompt, sampling and seed alone: drafts decide only how many tokens a step yields.
    """
    controller.begin()
    clock, burst = StepClock(running[0].slot.clock), Burst(controller)
    try:
        while running:
            clock.start()
            if len(running) == 1 and (written := burst.write(running[0])) is not None:
                yield [take(running[0], controller, written, clock)]
                continue
            trees = draft(running, controller, clock)
            clock.drafted()
            rows, seconds_saved, experts = verify(running, trees)
            steps = [one.commit(*part) for one, part in zip(running, rows, strict=True)]
            clock.verified(seconds_saved)
            learn(running, controller, steps, rows, clock, experts)
            yield [new for _, new in steps]
    finally:
        for generation in running:
            generation.slot.settle()


def take(
    generation: Generation, controller: Controller, written: Written, clock: StepClock
) -> list[int]:
    """Count the steps of a burst; returns their tokens."""
    if written.status < 0 and not written.steps:
        raise bad_row(generation.position, written.status)
    market, spent = generation.slot.market, {}
    generation.grow(written.tokens, written.num_tokens)
    if generation.request.speculation:
        market.token_s = controller.curve.seconds(1)
        spent = market.take_seconds()
    counts = written.steps, written.num_tokens, written.drafted, written.accepted
    generation.counts.record_steps(
        counts, written.by_source, clock.elapsed_s, written.plain_s, spent
    )
    return written.tokens


def draft(
    running: Sequence[Generation], controller: Controller, clock: StepClock
) -> list[DraftTree]:
    """What to verify next: of all that drafters propose, the nodes that pay; where a grammar leaves
    no choice, what must come.
    """
    room, num_sequences = controller.max_nodes - len(running), len(running)
    trees, was_asked = [], False
    chains: dict[int, DraftTree] = {}
    for place, one in enumerate(running):
        chain = certain(one, room)
        if chain is not None:
            chains[place] = chain
            room -= len(chain) - 1
            one.slot.prospects.asked = False
            trees.append(one.slot.root())
            continue
        trees.append(allowed(one, propose(one, controller, num_sequences)))
        was_asked |= one.slot.prospects.asked or len(trees[-1]) > 1
    if was_asked:
        markets = [one.slot.market for one in running]
        counts = controller.choose(
            [one.slot.prospects for one in running],
            trees,
            max(clock.elapsed_s - sum(market.saved_s for market in markets), 0.0),
            costly_s=sum(market.costly_s for market in markets),
            risk_s=max(market.costly_risk_s for market in markets),
        )
        for place, (one, count) in enumerate(zip(running, counts, strict=True)):
            count = min(count, room)
            room -= count
            trees[place] = trees[place].take(1 + count) if count else one.slot.root()
    for place, chain in chains.items():
        trees[place] = chain
    return trees


def propose(generation: Generation, controller: Controller, num_sequences: int) -> DraftTree:
    """A sequence's drafts, as far as asking its drafters is likely to pay."""
    slot = generation.slot
    if not generation.request.speculation:
        return slot.root()
    market, prospects = slot.market, slot.prospects
    costly = market.step >= market.costly_at
    if not costly and prospects.waits():
        return slot.root()
    room = controller.draft_room(
        prospects, generation.most_drafts, num_sequences, free=market.has_free, costly=costly
    )
    if room < 1:
        return slot.root()
    tree = market.propose(room, free=prospects.asked)
    return tree if slot.sequence.target.capabilities.trees else tree.best_chain()


def verify(
    running: Sequence[Generation], trees: Sequence[DraftTree]
) -> tuple[list[tuple[DraftTree, Logits, Logits | None]], float, int]:
    """One pass over all trees: each with the logits and maxima of its nodes, the seconds that
    drafting spared the pass, and the experts that it read.
    """
    target = running[0].slot.sequence.target
    found = target.forward(
        [
            (one.slot.sequence, TokenTree(tree.tokens, tree.parents))
            for one, tree in zip(running, trees, strict=True)
        ]
    )
    logits, maxima, first, rows = found.logits, found.maxima, 0, []
    if len(trees) == 1:  # slices take longer than a short pass should wait
        saved_s = saved_by(running[0], found.seconds_saved)
        return [(trees[0], logits, maxima)], saved_s, found.experts
    for tree in trees:
        own = slice(first, first + len(tree))
        rows.append((tree, logits[own], None if maxima is None else maxima[own]))
        first += len(tree)
    share_s = found.seconds_saved / len(running)
    return rows, sum(saved_by(one, share_s) for one in running), found.experts


def saved_by(generation: Generation, in_pass_s: float) -> float:
    """Seconds of the pass' work that a sequence's drafters did: what proposing told, and what the
    pass itself found done.
    """
    market = generation.slot.market
    if not market.costly_asked:
        return in_pass_s
    market.credit(in_pass_s)
    return market.saved_s + in_pass_s


def learn(
    running: Sequence[Generation],
    controller: Controller,
    steps: Sequence[tuple[StepOutcome, list[int]]],
    rows: Sequence[tuple[DraftTree, Logits, Logits | None]],
    clock: StepClock,
    experts: int,
) -> None:
    """Let drafters and controller learn from a step, from one without drafts as little as pays;
    and count it.
    """
    was_asked = speculates = False
    num_nodes, num_sequences = 0, len(running)
    costly: dict[int, CostlyStep] = {}
    for place, one in enumerate(running):
        outcome, new = steps[place]
        num_nodes += len(outcome.tree)
        if not one.request.speculation:
            continue
        market, speculates = one.slot.market, True
        if one.slot.prospects.asked or market.costly_asked:
            was_asked = True
            feed(one, outcome, new, rows[place][1])
            costly[place] = market.costly_step
            clock.learnt()
            continue
        if len(outcome.tree) > 1:  # a grammar's: nobody's to answer for
            costly[place] = CostlyStep(0.0, len(outcome.path) - 1, len(outcome.tree) - 1)
        if market.wants_top and controller.may_study:
            feed(one, outcome, new, rows[place][1])
            clock.studied()
        else:
            market.extend(new)
    if was_asked:
        asked, outcomes = [one.slot.prospects for one in running], [step[0] for step in steps]
        parts = [costly.get(place, NOTHING_COSTLY) for place in range(num_sequences)]
        controller.observe(
            asked, outcomes, clock.verify_s, clock.draft_s, clock.study_s, parts, experts
        )
    elif speculates and num_nodes == num_sequences:
        controller.rest(clock.verify_s, clock.study_s, num_sequences, experts)
    plain_s = controller.curve.seconds(num_sequences)
    # A pass that was held up would have been with one node for each sequence as well.
    held_up_s = clock.verify_s / controller.curve.seconds(num_nodes) * plain_s
    seconds = clock.elapsed_s
    for place, one in enumerate(running):
        spent = None
        if one.request.speculation:
            one.slot.market.token_s = plain_s / num_sequences
            spent = one.slot.market.take_seconds()
        one.counts.record(steps[place][0], seconds, held_up_s, spent)


def feed(generation: Generation, outcome: StepOutcome, new: list[int], logits: Logits) -> None:
    """Tell a sequence's drafters what became of a tree, and what was written."""
    market = generation.slot.market
    if market.wants_top:
        outcome = replace(outcome, top=TopTokens(*top_tokens(logits, market.wants_top)))
    market.observe(outcome)
    market.extend(new)
