"""Many requests in one process: what it holds after the first ten, and after all.

    python -m tests.support.endurance MODEL REQUESTS

The first are one of each kind, the others are drawn: a turn of one of six conversations, which
share an arena that holds one or two of them, so that the others are spilled; a text without one,
short or long; a batch of two; a reply that is left after some pieces; a prompt that is too long; an
option that means nothing; a conversation that ends while another begins. Resident memory is this
process's, as the system tells it; the answer is one JSON object.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

WORDS = (
    "a", "story", "of", "the", "old", "train", "that", "went", "over", "hills", "and", "found",
    "small", "house", "where", "light", "was", "on", "all", "night", "nobody", "knew", "why",
)  # fmt: skip
NUM_CHATS = 6
WARM_UP = 10


class Requests:
    """Draws requests and makes them; counts what became of each kind."""

    def __init__(self, engine: Any, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.spilled_tokens = 0
        self._engine = engine
        self._random = random.Random(seed)
        self._chats = [engine.chat(self._words(20)) for _ in range(NUM_CHATS)]
        self._kinds: tuple[tuple[int, Callable[[], None]], ...] = (
            (10, self.turn),
            (3, self.alone),
            (1, self.long),
            (2, self.batch),
            (4, self.left),
            (1, self.too_long),
            (1, self.meaningless),
            (2, self.ended),
        )

    def one(self) -> None:
        """The next request."""
        done = self.counts.total()
        weights = [weight for weight, _ in self._kinds]
        drawn = self._random.choices(self._kinds, weights)[0]
        _, kind = self._kinds[done] if done < len(self._kinds) else drawn
        kind()
        self.counts[kind.__name__] += 1

    def turn(self) -> None:
        chat = self._random.choice(self._chats)
        reply = chat.send(self._words(12), on_overflow="drop-turns", **self._options(40))
        self.spilled_tokens += reply.stats.spilled_tokens

    def alone(self) -> None:
        self._engine.generate(self._words(self._random.choice([3, 60])), **self._options(60))

    def long(self) -> None:
        self._engine.generate(self._words(300), **self._options(60))

    def batch(self) -> None:
        self._engine.generate_batch([self._words(9), self._words(30)], **self._options(20))

    def left(self) -> None:
        stream = self._random.choice(self._chats).stream(
            self._words(8), on_overflow="sliding", **self._options(60)
        )
        for _ in range(self._random.randrange(1, 6)):
            next(stream, None)
        stream.close()

    def too_long(self) -> None:
        from edgespec import ContextOverflowError

        try:
            self._engine.generate(self._words(5000), **self._options(5))
        except ContextOverflowError:
            return
        raise SystemExit("a prompt that is too long was accepted")

    def meaningless(self) -> None:
        from edgespec import OptionError

        try:
            self._engine.generate("hello", temperature=-1.0)
        except OptionError:
            return
        raise SystemExit("a temperature below 0 was accepted")

    def ended(self) -> None:
        place = self._random.randrange(NUM_CHATS)
        if self._random.random() < 0.5:
            self._chats[place].close()
        self._chats[place] = self._engine.chat(self._words(20))

    def _words(self, count: int) -> str:
        return " ".join(self._random.choices(WORDS, k=count))

    def _options(self, most: int) -> dict[str, Any]:
        options = {"max_tokens": self._random.randrange(1, most), "ignore_eos": True}
        return options | {"seed": self._random.randrange(1000)}


def measure(model: str | None, requests: int, context: int = 512, seed: int = 1) -> dict[str, Any]:
    """What the process held, in bytes, and what the requests were."""
    import edgespec
    from edgespec.system.resident_memory import resident_bytes

    with edgespec.load(model, context=context, sequences=2) as engine:
        work = Requests(engine, seed)
        held = []
        for _ in range(requests):
            work.one()
            held.append(resident_bytes())
        return {
            "requests": requests,
            "after_ten": held[min(WARM_UP, requests) - 1],
            "at_the_end": held[-1],
            "most": max(held),
            "growth": held[-1] / held[min(WARM_UP, requests) - 1] - 1.0,
            "planned": engine.plan.planned_bytes,
            "spilled_tokens": work.spilled_tokens,
            "kinds": dict(work.counts),
        }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
