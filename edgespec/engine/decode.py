"""The decode loop: draft, verify, commit, yield. For one text, or a step of several at once."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

from edgespec.backends.base import Logits, TokenTree
from edgespec.control.allotment import Allotment, Bid
from edgespec.control.controller import Controller
from edgespec.control.statistics import ReplyStats
from edgespec.drafting.market.account import NOTHING_COSTLY
from edgespec.drafting.tree import DraftTree, StepOutcome, TopTokens
from edgespec.engine.request import Request
from edgespec.engine.slot import Session
from edgespec.verification.match import Verifier
from edgespec.verification.top import top_tokens


@dataclass(slots=True)
class Run:
    """One reply while it is decoded; its session holds the prompt."""

    session: Session
    request: Request
    verifier: Verifier
    end_ids: frozenset[int]
    stats: ReplyStats
    bid: Bid = field(default_factory=Bid)
    """How drafting fares when several texts share passes."""

    def __post_init__(self) -> None:
        self.session.finish_reason = "cancelled"

    def is_over(self) -> bool:
        """Whether the reply has ended; the session is told why."""
        session = self.session
        if session.finish_reason == "stop":
            return True
        if self.stats.output_tokens >= self.request.max_tokens:
            session.finish_reason = "length"
        elif session.sequence.length >= session.sequence.target.context_length:
            session.finish_reason = "context"
        return session.finish_reason != "cancelled"

    @property
    def most_drafts(self) -> int:
        """Most nodes besides the root that may be drafted now."""
        if not self.request.speculation:
            return 0
        left = self.request.max_tokens - self.stats.output_tokens
        sequence = self.session.sequence
        room = min(left, sequence.target.context_length - sequence.length)
        return min(room, self.request.max_nodes or room) - 1

    def accept(
        self, tree: DraftTree, logits: Logits, maxima: Logits | None
    ) -> tuple[StepOutcome, list[int]]:
        """Verify a tree by its logits, commit what the model agrees with, and let the text grow;
        returns the outcome and the new tokens, up to one that ends the reply.
        """
        session = self.session
        ids = session.ids
        recent = ids[-self.request.sampling.repetition_window :]
        position = session.shift + len(ids) - 1
        verdict = self.verifier.verify(logits, tree.tokens, tree.parents, recent, position, maxima)
        session.sequence.commit(verdict.path)
        drafts = verdict.path[1:]
        tokens = [*tree.tokens[drafts].tolist(), verdict.bonus] if drafts else [verdict.bonus]
        new, ended = _until_end(tokens, self.end_ids)
        ids.extend(new)
        if ended:
            session.finish_reason = "stop"
        return StepOutcome(tree, verdict.path, verdict.bonus, tokens), new

    def learn(self, outcome: StepOutcome, new: list[int], logits: Logits) -> float:
        """Tell the drafters what became of a tree; returns the seconds that took."""
        clock, market = self.session.clock, self.session.market
        start = clock()
        if market.wants_top:
            top = TopTokens(*top_tokens(logits, market.wants_top))
            outcome = replace(outcome, top=top)
        market.observe(outcome)
        market.extend(new)
        return clock() - start

    def book(self, outcome: StepOutcome, seconds: float, plain_s: float, token_s: float) -> None:
        """Add a step to the reply's numbers; a plain one takes `plain_s`, a token is worth
        `token_s`.
        """
        self.session.market.token_s = token_s
        self.stats.record(outcome, seconds, plain_s, self.session.market.take_seconds())


def decode(run: Run, controller: Controller) -> Generator[list[int], None, None]:
    """Yield the new tokens of each step until the reply ends.

    The text is a function of model, prompt, sampling and seed alone: drafts decide only how many
    tokens a step yields. Where drafting has not paid lately, most steps do nothing but their pass.
    """
    session = run.session
    sequence, target, clock = session.sequence, session.sequence.target, session.clock
    controller.begin()
    try:
        while not run.is_over():
            start = clock()
            idle = controller.wait and session.market.step < session.market.costly_at
            tree = session.root() if idle else _draft(run, controller)
            drafted = clock()
            logits = target.forward_batch(((sequence, TokenTree(tree.tokens, tree.parents)),))
            outcome, new = run.accept(tree, logits, target.maxima)
            # What drafting did of the pass' work is the pass' price.
            session.market.credit(target.seconds_saved)
            saved_s = session.market.saved_s + target.seconds_saved
            verify_s, draft_s = clock() - drafted + saved_s, drafted - start - saved_s
            if run.request.speculation:
                _learn(run, controller, outcome, new, logits, verify_s, draft_s)
            plain_s = controller.curve.seconds(1)
            # A pass that was held up would have been with one node as well.
            held_up = verify_s / controller.curve.seconds(len(tree))
            run.book(outcome, clock() - start, held_up * plain_s, plain_s)
            yield new
    finally:
        session.settle()


def _draft(run: Run, controller: Controller) -> DraftTree:
    """What to verify next."""
    session, market, limit = run.session, run.session.market, run.most_drafts
    if not run.request.speculation:
        return session.root()
    start = session.clock()
    room = controller.draft_room(
        limit, free=market.has_free, costly=market.step >= market.costly_at
    )
    if room < 1:
        return session.root()
    tree = _fitting(session, market.propose(room, free=controller.asked))
    draft_s = max(session.clock() - start - market.saved_s, 0.0)
    costly_s, risk_s = market.costly_s, market.costly_risk_s
    num_nodes = controller.choose(tree, draft_s, limit, costly_s=costly_s, risk_s=risk_s)
    return tree.take(1 + num_nodes) if num_nodes else session.root()


def _learn(
    run: Run,
    controller: Controller,
    outcome: StepOutcome,
    new: list[int],
    logits: Logits,
    verify_s: float,
    draft_s: float,
) -> None:
    """Let drafters and controller learn from a step; from one without drafts as little as pays."""
    market = run.session.market
    if controller.asked or market.costly_asked:
        draft_s += run.learn(outcome, new, logits)
        controller.observe(outcome, verify_s, draft_s, market.costly_step)
    elif market.wants_top and controller.may_study:
        controller.rest(verify_s, run.learn(outcome, new, logits))
    else:
        market.extend(new)
        controller.rest(verify_s)


def _fitting(session: Session, tree: DraftTree) -> DraftTree:
    """What the target can score of a proposal."""
    return tree if session.sequence.target.capabilities.trees else tree.best_chain()


def decode_together(runs: Sequence[Run], allotment: Allotment) -> list[list[int]]:
    """One step of several replies, none of them over: a pass over all their trees; returns the new
    tokens of each.

    Each text is what `decode` makes of it. After a failure every session is to be settled.
    """
    start = time.perf_counter()
    bids = [run.bid for run in runs]
    markets = [run.session.market for run in runs]
    trees = [_propose(run, allotment, len(runs)) for run in runs]
    draft_s = saved_s = 0.0
    if any(bid.asked or market.costly_asked for bid, market in zip(bids, markets, strict=True)):
        saved_s = sum(market.saved_s for market in markets)
        draft_s = max(time.perf_counter() - start - saved_s, 0.0)
    risk_s = max(market.costly_risk_s for market in markets)
    counts = allotment.choose(bids, trees, draft_s, risk_s)
    trees = [
        tree if len(tree) == 1 else tree.take(1 + count)
        for tree, count in zip(trees, counts, strict=True)
    ]
    drafted = time.perf_counter()
    rows = _forward(runs, trees)
    steps = [run.accept(tree, *own) for run, tree, own in zip(runs, trees, rows, strict=True)]
    verify_s = time.perf_counter() - drafted
    spared_s = runs[0].session.sequence.target.seconds_saved
    for market in markets:
        market.credit(spared_s / len(runs))
    in_pass_s = sum(market.saved_s for market in markets) + spared_s
    verify_s, draft_s = verify_s + in_pass_s, max(draft_s + saved_s - in_pass_s, 0.0)
    study_s, costly = 0.0, [NOTHING_COSTLY] * len(runs)
    for place, (run, (outcome, new), (logits, _)) in enumerate(zip(runs, steps, rows, strict=True)):
        market = run.session.market
        if run.bid.asked or market.costly_asked:
            draft_s += run.learn(outcome, new, logits)
            costly[place] = market.costly_step
        elif run.request.speculation and market.wants_top and allotment.may_study:
            study_s += run.learn(outcome, new, logits)
        elif run.request.speculation:
            market.extend(new)
    outcomes = [outcome for outcome, _ in steps]
    allotment.observe(bids, outcomes, verify_s, draft_s, study_s, costly)
    seconds, plain_s = time.perf_counter() - start, allotment.curve.seconds(len(runs))
    held_up = verify_s / allotment.curve.seconds(sum(map(len, trees)))
    for run, outcome in zip(runs, outcomes, strict=True):
        run.book(outcome, seconds, held_up * plain_s, plain_s / len(runs))
    return [new for _, new in steps]


def _forward(runs: Sequence[Run], trees: Sequence[DraftTree]) -> list[tuple[Logits, Logits | None]]:
    """One pass over all trees: logits and, where there are any, maxima of each."""
    target = runs[0].session.sequence.target
    parts = [
        (run.session.sequence, TokenTree(tree.tokens, tree.parents))
        for run, tree in zip(runs, trees, strict=True)
    ]
    logits, maxima = target.forward_batch(parts), target.maxima
    rows, first = [], 0
    for tree in trees:
        own = slice(first, first + len(tree))
        rows.append((logits[own], None if maxima is None else maxima[own]))
        first += len(tree)
    return rows


def _propose(run: Run, allotment: Allotment, num_texts: int) -> DraftTree:
    """What a text would have verified, if its drafters are worth asking."""
    bid, market = run.bid, run.session.market
    free = market.has_free and not bid.wait
    bid.wait = max(bid.wait - 1, 0)
    costly = market.step >= market.costly_at
    room = allotment.draft_room(bid, run.most_drafts, num_texts, free=free, costly=costly)
    if room < 1:
        return run.session.root()
    return _fitting(run.session, market.propose(room, free=bid.asked))


def _until_end(tokens: list[int], end_ids: frozenset[int]) -> tuple[list[int], bool]:
    """The tokens up to the first that ends the reply, which is kept, and whether there was one."""
    for place, token in enumerate(tokens):
        if token in end_ids:
            return tokens[: place + 1], True
    return tokens, False
