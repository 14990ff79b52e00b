"""One reply written in many ways, which must all be equal: without speculation, and with it.

Drafts come from the engine's own drafters, or from one that knows the reply and strews wrong tokens
in, as a chain or with branches, so that long drafts are accepted and cut short at every place. All
are verified, paying or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.control.accounts import WAIT
from edgespec.control.controller import Controller
from edgespec.control.cost_curve import CostCurve
from edgespec.control.prospects import Prospects
from edgespec.drafting.base import Drafter
from edgespec.drafting.market.account import CostlyAccount, CostlyStep
from edgespec.drafting.market.market import Market
from edgespec.drafting.model.model_drafter import ModelDrafter
from edgespec.drafting.tree import DraftTree, StepOutcome
from edgespec.engine.engine import Engine
from edgespec.engine.reply import Reply
from edgespec.engine.request import Request
from edgespec.memory.plan.settings import MOST_NODES

SHAPES = ("drafter", "chain", "tree")
SMALL_CHUNK = 7
TASKS = (
    "Tell me a short story about {}.",
    "Write three sentences about {}.",
    "What is {}?",
    "Repeat after me: {}, {}, {}.",
    "Make a list of five things to do with {}.",
    'Write a JSON object with the keys "name" and "size" about {}.',
    "Once upon a time there was {}. Once upon a time there was {}. Once",
    "Hello! I like {}. Do you?",
    "Fix this text: i has seen {} yesterday",
    "Explain {} to a child, step by step.",
)
SUBJECTS = (
    "a fox", "a red ball", "the sea", "my grandmother", "a loaf of bread", "a robot", "the moon",
    "an old house", "a small boat", "a lost key", "the forest", "a birthday cake", "two cats",
    "a rainy day", "a garden", "the night train", "a blue bird", "a long letter", "snow", "a drum",
    "a tall tree", "my best friend", "the wind", "a market", "an honest king", "a green coat",
    "the school", "a slow river", "an apple", "a bridge",
)  # fmt: skip


class Boundless(CostlyAccount):
    """Lets its drafter be asked at every step."""

    next_step = 0

    def may_want(self, step: int) -> bool:
        del step
        return True

    def wants(self, step: int, sure: float, *, follows: bool = False) -> bool:
        del step, sure, follows
        return True


class Eager(Controller):
    """Verifies every draft it can get, whether it pays or not."""

    is_compiled = False

    def __init__(self, max_nodes: int) -> None:
        super().__init__(CostCurve({1: 1.0, max(max_nodes, 2): 1.0}), max_nodes)
        self.most = max_nodes - 1

    def draft_room(
        self,
        prospects: Prospects,
        limit: int,
        num_sequences: int = 1,
        *,
        free: bool = True,
        costly: bool = False,
    ) -> int:
        prospects.asked, prospects.numbers[WAIT] = True, 0.0
        return min(self.most, limit)

    def choose(
        self,
        prospects: Sequence[Prospects],
        trees: Sequence[DraftTree],
        draft_s: float = 0.0,
        *,
        costly_s: float = 0.0,
        risk_s: float = 0.0,
    ) -> list[int]:
        return [min(len(tree) - 1, self.most) for tree in trees]

    def observe(
        self,
        prospects: Sequence[Prospects],
        outcomes: Sequence[StepOutcome],
        seconds: float,
        draft_s: float = 0.0,
        study_s: float = 0.0,
        costly: Sequence[CostlyStep] = (),
        experts: int = 0,
    ) -> None:
        """Nothing is learnt."""


def verify_everything(engine: Engine) -> None:
    """Let the controller believe that passes of any size take a second."""
    engine.scheduler.controller.curve.table[:] = 1.0
    engine.scheduler.controller.curve.update = lambda *_: None  # type: ignore[method-assign]


class Knowing(Drafter):
    """Drafts from the reply that is to come, with wrong tokens strewn in, as chains or trees."""

    name = "knowing"

    def __init__(self, reply: Sequence[int], vocab_size: int, *, branches: bool, seed: int) -> None:
        self._reply, self._vocab_size, self._branches = list(reply), vocab_size, branches
        self._rng = np.random.default_rng(seed)
        self._done, self._root = 0, 0

    def reset(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        self._done, self._root = 0, int(tokens[-1])

    def extend(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        self._done += len(tokens)
        self._root = int(tokens[-1])

    def propose(self, max_nodes: int) -> DraftTree:
        rng, coming = self._rng, self._reply[self._done :]
        num_nodes = 1 + int(rng.integers(0, max_nodes + 1))
        tokens, parents, depths = [self._root], [-1], [0]
        for node in range(1, num_nodes):
            oldest = max(0, node - 3) if self._branches else node - 1
            parent = int(rng.integers(oldest, node))
            depth = depths[parent] + 1
            right = depth <= len(coming) and rng.random() < 0.85
            tokens.append(coming[depth - 1] if right else int(rng.integers(self._vocab_size)))
            parents.append(parent)
            depths.append(depth)
        return DraftTree(
            np.array(tokens, np.int32),
            np.array(parents, np.int16),
            np.full(num_nodes, 0.5, np.float32),
            np.array([0] + [1] * (num_nodes - 1), np.uint8),
        )

    @property
    def size_bytes(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Case:
    """One reply to be written, however."""

    prompt: str | tuple[int, ...]
    """A text, or token ids."""
    temperature: float
    seed: int
    max_tokens: int
    ignore_eos: bool = False

    def plain(self, engine: Engine) -> Reply:
        """Without speculation, from an empty cache."""
        engine.scheduler.target.own.truncate(0)
        return self._write(engine, speculation=False)

    def speculative(
        self,
        engine: Engine,
        shape: str,
        chunk: int | None,
        expected: Reply,
        *,
        continued: bool = False,
    ) -> Reply:
        """With every draft verified, from an empty cache; the engine is left as it was.

        `continued` keeps what the cache holds, of which the prompt may have a part.
        """
        slot, target = engine.scheduler.slots[0], engine.scheduler.target
        before = slot.market, engine.scheduler.controller, target.prefill_chunk
        engine.scheduler.controller = Eager(engine.plan.max_nodes)
        for source in slot.market._costly:
            source.account = Boundless()
            if isinstance(source.drafter, ModelDrafter):
                source.drafter._prices = np.ones(MOST_NODES)  # seconds: so that every draft pays
        if shape != "drafter":
            vocab_size, branches = target.spec.vocab_size, shape == "tree"
            knowing = Knowing(expected.token_ids, vocab_size, branches=branches, seed=self.seed)
            slot.market = Market([knowing])
        target._chunk = chunk or target.prefill_chunk  # type: ignore[attr-defined]
        if not continued:
            target.own.truncate(0)
        try:
            return self._write(engine, speculation=True)
        finally:
            slot.market, engine.scheduler.controller = before[:2]
            target._chunk = before[2]  # type: ignore[attr-defined]

    def _write(self, engine: Engine, *, speculation: bool) -> Reply:
        return engine.generate(self.prompt, **self._options(engine), speculation=speculation)

    def request(self, engine: Engine) -> Request:
        """As one of a batch."""
        return engine.request(self.prompt, **self._options(engine))

    def _options(self, engine: Engine) -> dict[str, Any]:
        return {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "ignore_eos": self.ignore_eos,
            "raw": engine.file.chat_template is None,
        }


def same(one: Reply, other: Reply) -> bool:
    """Whether two replies are the same to the byte."""
    parts = ((reply.token_ids, reply.text, reply.finish_reason) for reply in (one, other))
    return len({repr(part) for part in parts}) == 1


def prompts() -> Iterator[str]:
    """300 prompts: stories, lists, JSON, repetition."""
    for subject, task in product(SUBJECTS, TASKS):
        yield task.replace("{}", subject)


def compared(expected: Reply, reply: Reply) -> dict[str, Any]:
    """Whether a reply is the expected one, and its numbers."""
    stats = reply.stats
    numbers = {"tokens": stats.output_tokens, "steps": stats.steps}
    numbers |= {"drafted": stats.drafted, "accepted": stats.accepted}
    found: dict[str, Any] = {"equal": same(expected, reply), **numbers}
    if not found["equal"]:
        found |= {"expected": expected.token_ids, "found": reply.token_ids}
    return found
