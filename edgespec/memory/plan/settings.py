"""The levers a plan can pull, and the order in which they are pulled when memory is short.

Each concession costs more speed or comfort than the one before: stores that saturate early, larger
prefill chunks than the caches need, context nobody filled yet, then half the bits of keys and
values; only then fewer nodes to verify. The order is one staircase: with more memory a plan stands
higher on it, and no lever is ever lower than with less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from edgespec.errors import OptionError
from edgespec.models.spec import ModelSpec
from edgespec.system.size import KIB, MIB

KV_TYPES = ("f16", "int8", "q4")
"""How keys and values can be kept, largest first; the last only where it is asked for."""
CHOSEN_KV_TYPES = ("f16", "int8")
"""Those that a plan may choose by itself."""
DEFAULT_CONTEXT = 8192
SMALLEST_CONTEXT = 256
DEFAULT_NODES = 16
MOST_NODES = 256
DEFAULT_CHUNK = 256
SMALLEST_CHUNK = 32
LARGEST_DRAFTER_BYTES = 8 * MIB
SMALLEST_DRAFTER_BYTES = 1 * MIB
DRAFTER_BYTES_PER_POSITION = 256
"""Twice what a suffix automaton of the whole context holds, because it grows by doubling."""
BUILT_IN_DRAFTERS = ("suffix-automaton", "trigram")
"""As fast as any set on the transcripts of docs/measurements.md, and no text outlives a run."""

_STAIRS: tuple[tuple[str, Any], ...] = (
    ("prefill_chunk", 128),
    ("context", 4096),
    ("drafter_bytes", 4 * MIB),
    ("max_nodes", 16),
    ("threads", 16),
    ("prefill_chunk", 64),
    ("context", 2048),
    ("kv_type", "int8"),
    ("context", 1024),
    ("prefill_chunk", SMALLEST_CHUNK),
    ("max_nodes", 8),
    ("context", 512),
    ("drafter_bytes", 2 * MIB),
    ("threads", 4),
    ("max_nodes", 4),
    ("context", SMALLEST_CONTEXT),
    ("drafter_bytes", SMALLEST_DRAFTER_BYTES),
    ("max_nodes", 2),
    ("max_nodes", 1),
    ("threads", 1),
)
_GRAINS = {"prefill_chunk": 16, "context": 256, "drafter_bytes": 64 * KIB}
"""Between two stairs a lever takes multiples of these; others take every whole number."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One choice of everything that costs memory and can be chosen."""

    context: int
    """Positions, prompt and reply together."""
    prefill_chunk: int
    """Prompt tokens computed in one pass."""
    max_nodes: int
    drafter_bytes: int
    kv_type: str = "f16"
    """How keys and values are kept: "f16", in half of that "int8", in a quarter "q4"."""
    threads: int = 1
    sequences: int = 1
    """Texts written at once; each has a context, a node of every pass and drafters of its own."""

    def conceding(self, lever: str, value: Any) -> Self:
        """These settings with one lever at most at `value`; a node a text drafts nothing."""
        if lever == "kv_type":
            return replace(self, kv_type=max(value, self.kv_type, key=KV_TYPES.index))
        lowered = {lever: min(value, getattr(self, lever))}
        if lever == "max_nodes":
            lowered[lever] = max(lowered[lever], self.sequences)
            if lowered[lever] == self.sequences:
                lowered["drafter_bytes"] = 0
        return replace(self, **lowered)

    def down_to(self, lower: Self, lever: str, fits: Callable[[Self], bool]) -> Self:
        """The most of one lever that fits, given that `lower` does and these settings do not."""
        if lever == "kv_type":
            return lower
        grain = _GRAINS.get(lever, 1)
        bottom, top = getattr(lower, lever), getattr(self, lever)
        low, high = bottom // grain, -(-top // grain)
        found = lower
        while high - low > 1:
            middle = (low + high) // 2
            between = self.conceding(lever, middle * grain)
            if fits(between):
                low, found = middle, between
            else:
                high = middle
        return found


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings wished for, and which of them the user pinned."""

    wished: Settings
    pinned: frozenset[str]

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        *,
        context: int | None = None,
        max_nodes: int | None = None,
        draft: bool = True,
        kv_type: str | None = None,
        threads: int | None = None,
        cores: int = 1,
        sequences: int = 1,
    ) -> Self:
        """Check what the user gave against the model; OptionError when it cannot be met at all.

        What is None may be chosen; without `threads`, one for each of `cores` is wished for.
        """
        if context is not None and not 1 <= context <= spec.context_length:
            raise OptionError(
                f"a context of {context} tokens was asked for; {spec.name or 'this model'} takes "
                f"1 to {spec.context_length}"
            )
        if max_nodes is not None and not 1 <= max_nodes <= MOST_NODES:
            raise OptionError(f"max nodes must be 1 to {MOST_NODES}, and {max_nodes} was asked for")
        most = MOST_NODES if max_nodes is None else max_nodes
        if not 1 <= sequences <= most:
            raise OptionError(
                f"{sequences} texts at once were asked for; with max nodes {most}, and a node for "
                f"each text in every pass, it can be 1 to {most}"
            )
        wished_nodes = min(max(DEFAULT_NODES, 2 * sequences), MOST_NODES) if draft else sequences
        positions = context or min(spec.context_length, DEFAULT_CONTEXT)
        nodes = max(min(max_nodes or wished_nodes, positions), sequences)
        drafts = draft and nodes > sequences
        wished = Settings(
            context=positions,
            prefill_chunk=min(DEFAULT_CHUNK, positions),
            max_nodes=nodes,
            drafter_bytes=_drafter_bytes(positions) if drafts else 0,
            kv_type=kv_type or KV_TYPES[0],
            threads=threads or cores,
            sequences=sequences,
        )
        given = {
            "context": context, "max_nodes": max_nodes, "kv_type": kv_type, "threads": threads
        }  # fmt: skip
        return cls(wished, frozenset(name for name, value in given.items() if value is not None))

    @property
    def smallest(self) -> Settings:
        """Every lever that is not pinned at its floor."""
        settings = self.wished
        for lever, value in self._stairs():
            settings = settings.conceding(lever, value)
        return settings

    def with_sequences(self, sequences: int) -> Self:
        """The same wish with fewer texts at once."""
        return replace(self, wished=replace(self.wished, sequences=sequences))

    def letting(self, *levers: str) -> Self:
        """The same wish, but these levers may be lowered although they were asked for."""
        return replace(self, pinned=self.pinned - frozenset(levers))

    def fit(self, fits: Callable[[Settings], bool]) -> Settings | None:
        """The highest place on the staircase that fits, None when not even its foot does."""
        settings = self.wished
        if fits(settings):
            return settings
        for lever, value in self._stairs():
            lower = settings.conceding(lever, value)
            if fits(lower):
                return settings.down_to(lower, lever, fits)
            settings = lower
        return None

    def _stairs(self) -> list[tuple[str, Any]]:
        return [step for step in _STAIRS if step[0] not in self.pinned]


def _drafter_bytes(positions: int) -> int:
    wished = max(SMALLEST_DRAFTER_BYTES, positions * DRAFTER_BYTES_PER_POSITION)
    return min(wished, LARGEST_DRAFTER_BYTES)
