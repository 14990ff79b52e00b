"""What the command line asked for, checked before anything is loaded."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from edgespec.errors import OptionError

if TYPE_CHECKING:
    from edgespec.engine.engine import Engine
    from edgespec.engine.scheduler import Progress
    from edgespec.memory.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The arguments of `edgespec.load` and `edgespec.plan`."""

    model: str | None = None
    memory: str = "auto"
    backend: str = "auto"
    threads: int | None = None
    context: int | None = None
    drafters: str = "auto"
    kv_type: str = "auto"
    store: str | None = None
    sequences: int = 1
    draft_model: str | None = None
    vram: str = "auto"
    workers: str | None = None
    overlap: str = "auto"
    draft_backend: str = "auto"

    def load(self, progress: Progress | None = None) -> Engine:
        from edgespec.loading.load import load

        return load(**asdict(self), progress=progress)

    def plan(self) -> Plan:
        from edgespec.loading.load import plan

        return plan(**asdict(self))


@dataclass(frozen=True, slots=True)
class ReplyOptions:
    """The arguments of `Engine.stream`; the defaults are its own."""

    max_tokens: int = 512
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repetition_penalty: float = 1.0
    seed: int | None = None
    speculation: bool = True
    ignore_eos: bool = False
    accept: str = "exact"
    on_overflow: str = "stop"

    def check(self) -> None:
        """Raise OptionError for a value that means nothing."""
        from edgespec.engine.context import check_policy
        from edgespec.engine.request import Request
        from edgespec.verification.sampling import SamplingParams

        sampling = SamplingParams(
            self.temperature,
            self.top_k,
            self.top_p,
            self.min_p,
            self.repetition_penalty,
            seed=self.seed or 0,
        )
        Request((), sampling, self.max_tokens, accept=self.accept)
        check_policy(self.on_overflow)

    def as_arguments(self) -> dict[str, Any]:
        return asdict(self)


def drafting_options(
    drafters: str,
    draft_model: str | None,
    draft_backend: str,
    overlap: str = "auto",
    *,
    none: bool,
) -> dict[str, Any]:
    """What of `LoadOptions` is about guessing ahead; with `none` nobody does."""
    if none:
        return {"drafters": "none", "overlap": "off"}
    return {
        "drafters": drafters,
        "draft_model": draft_model,
        "draft_backend": draft_backend,
        "overlap": overlap,
    }


def one_model(argument: str | None, option: str | None) -> str | None:
    """The model of a command that takes it with and without `--model`."""
    if argument is not None and option is not None and argument != option:
        raise OptionError(f"two models were given, {argument} and {option}; name one")
    return option if argument is None else argument
