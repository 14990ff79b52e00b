"""The levers a plan can pull, and the order in which they are pulled when memory is short.

Each concession costs more speed or comfort than the one before: stores that saturate early, larger
prefill chunks than the caches need, context nobody filled yet; only then fewer nodes to verify.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from edgespec.errors import OptionError
from edgespec.memory.size import MIB
from edgespec.models.spec import ModelSpec

KV_TYPES = ("f16", "int8")
"""How keys and values can be kept; the first is what "auto" means."""
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

_CONCESSIONS: tuple[tuple[str, int], ...] = (
    ("prefill_chunk", 128),
    ("context", 4096),
    ("drafter_bytes", 4 * MIB),
    ("prefill_chunk", 64),
    ("context", 2048),
    ("context", 1024),
    ("prefill_chunk", SMALLEST_CHUNK),
    ("max_nodes", 8),
    ("context", 512),
    ("drafter_bytes", 2 * MIB),
    ("max_nodes", 4),
    ("context", SMALLEST_CONTEXT),
    ("drafter_bytes", SMALLEST_DRAFTER_BYTES),
    ("max_nodes", 2),
    ("max_nodes", 1),
)


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
    """How keys and values are kept: "f16", or "int8" in half the memory."""
    sequences: int = 1
    """Texts written at once; each has a context, a node of every pass and drafters of its own."""

    def conceding(self, lever: str, value: int) -> Self:
        """These settings with one lever at most at `value`; a node a text drafts nothing."""
        lowered = {lever: min(value, getattr(self, lever))}
        if lever == "max_nodes":
            lowered[lever] = max(lowered[lever], self.sequences)
            if lowered[lever] == self.sequences:
                lowered["drafter_bytes"] = 0
        return replace(self, **lowered)

    def restoring(self, lever: str, before: Settings) -> Self:
        """These settings with one lever as it was; nodes come back with what drafts for them."""
        raised = {lever: getattr(before, lever)}
        if lever == "max_nodes" and self.max_nodes == self.sequences:
            raised["drafter_bytes"] = before.drafter_bytes
        if lever == "drafter_bytes" and self.max_nodes == self.sequences:
            return self
        return replace(self, **raised)


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
        kv_type: str = "f16",
        sequences: int = 1,
    ) -> Self:
        """Check what the user gave against the model; OptionError when it cannot be met at all."""
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
        nodes = max_nodes if max_nodes is not None else wished_nodes
        positions = context or min(spec.context_length, DEFAULT_CONTEXT)
        drafts = draft and nodes > sequences
        wished = Settings(
            context=positions,
            prefill_chunk=min(DEFAULT_CHUNK, positions),
            max_nodes=max(min(nodes, positions), sequences),
            drafter_bytes=_drafter_bytes(positions) if drafts else 0,
            kv_type=kv_type,
            sequences=sequences,
        )
        given = {"context": context, "max_nodes": max_nodes}
        return cls(wished, frozenset(name for name, value in given.items() if value is not None))

    @property
    def smallest(self) -> Settings:
        """Every lever that is not pinned at its floor."""
        settings = self.wished
        for lever, value in self._steps():
            settings = settings.conceding(lever, value)
        return settings

    def unpinned(self, spec: ModelSpec) -> Limits:
        """The same wish with nothing pinned, for naming what would fit instead."""
        wished = self.wished
        return Limits.of(
            spec,
            draft=wished.max_nodes > wished.sequences,
            kv_type=wished.kv_type,
            sequences=wished.sequences,
        )

    def with_kv(self, kv_type: str) -> Self:
        """The same wish with keys and values kept otherwise."""
        return replace(self, wished=replace(self.wished, kv_type=kv_type))

    def with_sequences(self, sequences: int) -> Self:
        """The same wish with fewer texts at once."""
        return replace(self, wished=replace(self.wished, sequences=sequences))

    def fit(self, fits: Callable[[Settings], bool]) -> Settings | None:
        """The first settings down the concessions that fit, with needless ones taken back."""
        history = [self.wished]
        steps = self._steps()
        for lever, value in steps:
            if fits(history[-1]):
                break
            history.append(history[-1].conceding(lever, value))
        settings = history[-1]
        if not fits(settings):
            return None
        made = list(zip(steps, history, strict=False))[: len(history) - 1]
        for (lever, _), before in reversed(made):
            restored = settings.restoring(lever, before)
            if fits(restored):
                settings = restored
        return settings

    def _steps(self) -> list[tuple[str, int]]:
        return [step for step in _CONCESSIONS if step[0] not in self.pinned]


def _drafter_bytes(positions: int) -> int:
    wished = max(SMALLEST_DRAFTER_BYTES, positions * DRAFTER_BYTES_PER_POSITION)
    return min(wished, LARGEST_DRAFTER_BYTES)
