"""The settings of a plan, and the order in which they are lowered when memory is short.

Each step down costs more speed or comfort than the one before: stores that saturate early, larger
prefill chunks than the caches need, states to return to far back, context nobody has filled yet,
then half the bits of keys and values; only then fewer nodes to verify. Bits, which change the text,
come where less context would cost more: 98 % of Spec-Bench's questions fit 2,048 tokens with their
replies, 72 % fit 1,024 (docs/lab/2026-11-23-kv.md). There is one order of steps, so with more
memory a plan takes fewer of them and no setting is ever lower than with less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

from edgespec.errors import OptionError
from edgespec.memory.plan.state_layout import has_states, most_checkpoints
from edgespec.models.spec import ModelSpec
from edgespec.system.records import dataclass
from edgespec.system.size import KIB, MIB

KV_TYPES = ("f16", "int8", "q4")
"""How keys and values can be kept, largest first; the last only where it is asked for."""
CHOSEN_KV_TYPES = ("f16", "int8")
"""Those that a plan may choose by itself."""
DEFAULT_CONTEXT = 8192
SMALLEST_CONTEXT = 256
DEFAULT_NODES = 16
MOST_NODES = 256
STREAMING_CONTEXT, STREAMING_NODES = 1024, 32
DEFAULT_CHUNK = 256
SMALLEST_CHUNK = 32
LARGEST_DRAFTER_BYTES = 8 * MIB
SMALLEST_DRAFTER_BYTES = 1 * MIB
DRAFTER_BYTES_PER_POSITION = 256
"""Twice what a suffix automaton of the whole context holds, because it grows by doubling."""
BUILT_IN_DRAFTERS = ("suffix-automaton", "trigram")
"""As fast as any set (docs/lab/2026-11-21-replay.md), and no text outlives a run."""

_STEPS_DOWN: tuple[tuple[str, Any], ...] = (
    ("checkpoints", 16),
    ("prefill_chunk", 128),
    ("checkpoints", 8),
    ("context", 4096),
    ("drafter_bytes", 4 * MIB),
    ("max_nodes", 16),
    ("threads", 16),
    ("prefill_chunk", 64),
    ("checkpoints", 4),
    ("context", 2048),
    ("kv_type", "int8"),
    ("context", 1024),
    ("prefill_chunk", SMALLEST_CHUNK),
    ("max_nodes", 8),
    ("context", 512),
    ("drafter_bytes", 2 * MIB),
    ("threads", 4),
    ("max_nodes", 4),
    ("checkpoints", 1),
    ("context", SMALLEST_CONTEXT),
    ("drafter_bytes", SMALLEST_DRAFTER_BYTES),
    ("max_nodes", 2),
    ("max_nodes", 1),
    ("threads", 1),
)
_GRAINS = {"prefill_chunk": 16, "context": 256, "drafter_bytes": 64 * KIB}
"""Between two steps a setting takes multiples of these; others take every whole number."""


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
    """Replies written at once; each has a context, a node of every pass and drafters of its own."""
    checkpoints: int = 0
    """Recurrent states that are set aside for each reply, to return to; 0 without any."""

    def lowered(self, name: str, value: Any) -> Self:
        """These settings with one of them at most `value`; one node a sequence drafts nothing."""
        if name == "kv_type":
            return replace(self, kv_type=max(value, self.kv_type, key=KV_TYPES.index))
        changes = {name: min(value, getattr(self, name))}
        if name == "context":
            changes["checkpoints"] = min(self.checkpoints, most_checkpoints(changes[name]))
        if name == "max_nodes":
            changes[name] = max(changes[name], self.sequences)
            if changes[name] == self.sequences:
                changes["drafter_bytes"] = 0
        return replace(self, **changes)

    def down_to(self, lower: Self, name: str, fits: Callable[[Self], bool]) -> Self:
        """The most of one setting that fits, given that `lower` does and these settings do not."""
        if name == "kv_type":
            return lower
        grain = _GRAINS.get(name, 1)
        bottom, top = getattr(lower, name), getattr(self, name)
        low, high = bottom // grain, -(-top // grain)
        found = lower
        while high - low > 1:
            middle = (low + high) // 2
            between = self.lowered(name, middle * grain)
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
    keeps_bits: bool = False
    """Whether keys and values stay as they are wished for, although nobody asked."""

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

        What is None may be chosen; without `threads`, one per core of `cores` is wished for.
        """
        if context is not None and not 1 <= context <= spec.context_length:
            raise OptionError(
                f"cannot use a context of {context} tokens: {spec.name or 'this model'} takes 1 to "
                f"{spec.context_length}"
            )
        if max_nodes is not None and not 1 <= max_nodes <= MOST_NODES:
            raise OptionError(f"max_nodes is {max_nodes}, but must be 1 to {MOST_NODES}")
        most = MOST_NODES if max_nodes is None else max_nodes
        if not 1 <= sequences <= most:
            raise OptionError(
                f"cannot write {sequences} replies at once: every pass has up to {most} nodes, and "
                f"each reply needs one; use sequences (--max-batch) 1 to {most}"
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
            checkpoints=most_checkpoints(positions) if has_states(spec) else 0,
        )
        given = {
            "context": context, "max_nodes": max_nodes, "kv_type": kv_type, "threads": threads
        }  # fmt: skip
        return cls(wished, frozenset(name for name, value in given.items() if value is not None))

    @property
    def smallest(self) -> Settings:
        """Every setting that is not pinned at its lowest."""
        settings = self.wished
        for name, value in self._steps():
            settings = settings.lowered(name, value)
        return settings

    def before(self, name: str) -> Settings:
        """The settings when the first step of one of them comes."""
        settings = self.wished
        for step, value in self._steps():
            if step == name:
                break
            settings = settings.lowered(step, value)
        return settings

    def keeping_bits(self) -> Self:
        """The same wish, and keys and values stay as they are wished for."""
        return replace(self, keeps_bits=True)

    def with_sequences(self, sequences: int) -> Self:
        """The same wish with fewer replies at once."""
        return replace(self, wished=replace(self.wished, sequences=sequences))

    def for_streaming(self) -> Self:
        """The wish where weights are read from disk in every pass: each megabyte of context that
        nobody fills would hold weights, and further nodes cost next to nothing.
        """
        wished = self.wished
        if "context" not in self.pinned:
            context = min(wished.context, STREAMING_CONTEXT)
            wished = wished.lowered("context", context)
            if wished.drafter_bytes:
                wished = replace(wished, drafter_bytes=_drafter_bytes(wished.context))
        if "max_nodes" not in self.pinned and wished.drafter_bytes:
            nodes = min(max(STREAMING_NODES, 2 * wished.sequences), wished.context)
            wished = replace(wished, max_nodes=max(nodes, wished.max_nodes))
        wished = replace(wished, prefill_chunk=min(wished.prefill_chunk, wished.context))
        return replace(self, wished=wished)

    def unpinned(self, *names: str) -> Self:
        """The same wish, but these settings may be lowered although they were asked for."""
        return replace(self, pinned=self.pinned - frozenset(names))

    def fit(self, fits: Callable[[Settings], bool]) -> Settings | None:
        """The settings that fit with the fewest steps down, None when not even the last ones do."""
        settings = self.wished
        if fits(settings):
            return settings
        for name, value in self._steps():
            lower = settings.lowered(name, value)
            if fits(lower):
                return settings.down_to(lower, name, fits)
            settings = lower
        return None

    def _steps(self) -> list[tuple[str, Any]]:
        fixed = self.pinned | {"kv_type"} if self.keeps_bits else self.pinned
        return [step for step in _STEPS_DOWN if step[0] not in fixed]


def _drafter_bytes(positions: int) -> int:
    wished = max(SMALLEST_DRAFTER_BYTES, positions * DRAFTER_BYTES_PER_POSITION)
    return min(wished, LARGEST_DRAFTER_BYTES)
