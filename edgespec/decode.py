"""The decode loop: draft, verify, commit, yield."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass, field

from edgespec.backends.base import Target, TokenTree
from edgespec.control.controller import Controller
from edgespec.control.stats import ReplyStats
from edgespec.drafting import DraftTree, Market, StepOutcome, TopTokens
from edgespec.reply import FinishReason, Request
from edgespec.verification.acceptance import Verifier
from edgespec.verification.top import top_tokens


@dataclass(slots=True)
class Session:
    """The text so far and everything that works on it.

    Invariant between steps, and after an abandoned or failed one: the target has committed all of
    `ids` but the last.
    """

    target: Target
    market: Market
    controller: Controller
    ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason = "cancelled"
    _root: DraftTree = field(default_factory=lambda: DraftTree.root(0))

    def root(self) -> DraftTree:
        """The text's last token alone: a pass over it is plain decoding. Good until the next."""
        self._root.tokens[0] = self.ids[-1]
        return self._root

    def settle(self) -> None:
        """Drop what an interrupted step committed beyond the text."""
        self.target.truncate(min(self.target.length, max(len(self.ids) - 1, 0)))


def decode(
    session: Session,
    request: Request,
    verifier: Verifier,
    end_ids: frozenset[int],
    stats: ReplyStats,
) -> Generator[list[int], None, None]:
    """Yield the new tokens of each step until the reply ends; `session.ids` must hold the prompt.

    Sets `session.finish_reason`. The text is a function of model, prompt, sampling and seed alone:
    drafts decide only how many tokens a step yields.
    """
    target, controller, ids = session.target, session.controller, session.ids
    session.finish_reason = "cancelled"
    remaining = request.max_tokens
    try:
        while remaining > 0:
            start = time.perf_counter()
            room = min(remaining, target.context_length - target.length)
            if room < 1:
                session.finish_reason = "context"
                return
            tree = _draft(session, request, room - 1)
            drafted = time.perf_counter()
            logits = target.forward(TokenTree(tree.tokens, tree.parents))
            recent = ids[-request.sampling.repetition_window :]
            verdict = verifier.verify(
                logits, tree.tokens, tree.parents, recent, len(ids) - 1, target.maxima
            )
            target.commit(verdict.path)
            tokens = [*tree.tokens[verdict.path[1:]].tolist(), verdict.bonus]
            new, ended = _until_end(tokens, end_ids)
            ids.extend(new)
            verified = time.perf_counter()
            wants_top = session.market.wants_top if request.speculation else 0
            top = TopTokens(*top_tokens(logits, wants_top)) if wants_top else None
            outcome = StepOutcome(tree, verdict.path, verdict.bonus, tokens, top)
            if request.speculation:
                session.market.observe(outcome)
                session.market.extend(new)
                draft_s = drafted - start + time.perf_counter() - verified
                controller.observe(outcome, verified - drafted, draft_s)
            plain_s = session.market.token_s = controller.curve.seconds(1)
            spent = session.market.take_seconds()
            stats.record(outcome, time.perf_counter() - start, plain_s, spent)
            remaining -= len(new)
            if ended:
                session.finish_reason = "stop"
            yield new
            if ended:
                return
        session.finish_reason = "length"
    finally:
        session.settle()


def _draft(session: Session, request: Request, limit: int) -> DraftTree:
    """What to verify next."""
    if not request.speculation:
        return session.root()
    if request.max_nodes is not None:
        limit = min(limit, request.max_nodes - 1)
    start = time.perf_counter()
    room = session.controller.draft_room(limit)
    if room < 1:
        return session.root()
    tree = session.market.propose(room)
    draft_s = time.perf_counter() - start
    num_nodes = session.controller.choose(tree, draft_s, limit)
    return tree.take(1 + num_nodes) if num_nodes else session.root()


def _until_end(tokens: list[int], end_ids: frozenset[int]) -> tuple[list[int], bool]:
    """The tokens up to the first that ends the reply, which is kept, and whether there was one."""
    for place, token in enumerate(tokens):
        if token in end_ids:
            return tokens[: place + 1], True
    return tokens, False
