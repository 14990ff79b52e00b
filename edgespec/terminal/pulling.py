"""Downloads at a terminal: the plan first, a question, then the bytes."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.errors import BudgetError, EdgeSpecError, ModelFileError, OptionError
from edgespec.loading.load_options import LoadOptions
from edgespec.models.hub.download import download
from edgespec.models.hub.listing import HubModel, find, quantisation
from edgespec.models.hub.names import name_model, reference_of
from edgespec.models.hub.preview import previewed
from edgespec.models.hub.reference import HubReference
from edgespec.models.registry import NotPulledError, resolve
from edgespec.system.records import dataclass
from edgespec.system.size import format_size
from edgespec.terminal.text_io import printable

if TYPE_CHECKING:
    from edgespec.memory.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model that is on this machine now."""

    reference: HubReference
    path: Path
    plan: Plan | None
    """What it would take, as far as that was looked at."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "reference": str(self.reference),
            "path": str(self.path),
            "plan": None if self.plan is None else self.plan.as_dict(),
        }


def pull(
    name: str, load: LoadOptions, *, look_first: bool, yes: bool, alias: str | None
) -> Pulled | None:
    """Download a model, after saying whether it fits; None when the answer was no.

    Raises OptionError for a name that means no model on a hub, HubError, BudgetError.
    """
    reference = reference_of(name)
    if reference is None:
        raise OptionError(
            f"cannot pull {name!r}; give hf:ORG/REPO[:QUANT], or a name that `edgespec list "
            "--recommended` shows"
        )
    model = find(reference)
    made = None
    if look_first:
        made = _looked_at(model, load)
    if not _agreed(f"Download {format_size(model.size_bytes)}?", yes):
        return None
    path = download(model)
    if alias is not None:
        name_model(alias, HubReference(reference.repo, quantisation(model.name) or model.name))
    return Pulled(reference, path, made)


def with_model(load: LoadOptions, *, yes: bool) -> LoadOptions:
    """The same options once their model is on this machine: pulls it after asking."""
    try:
        resolve(load.model)
    except NotPulledError as missing:
        if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        if pull(str(load.model), load, look_first=True, yes=yes, alias=None) is None:
            raise EdgeSpecError(f"{missing.reference} was not downloaded") from None
    return load


def plan_here_or_there(load: LoadOptions, device: str | None = None) -> Plan:
    """The plan of a model, on this machine or another; of a model that is not downloaded, from its
    header on the hub.
    """
    from edgespec.loading.load import plan_for

    try:
        resolve(load.model)
    except NotPulledError as missing:
        with previewed(find(missing.reference)) as path:
            return plan_for(replace(load, model=path), device)
    return plan_for(load, device)


def _looked_at(model: HubModel, load: LoadOptions) -> Plan:
    from edgespec.loading.load import plan_for

    try:
        with previewed(model) as path:
            made = plan_for(replace(load, model=path))
    except (BudgetError, ModelFileError) as error:
        raise type(error)(f"{_name(model)}: {error}") from None
    _say(f"{_name(model)}: {summary(made)}")
    return made


def summary(plan: Plan) -> str:
    """Whether a model fits and how fast it should be, in one sentence."""
    said = (
        f"fits in {format_size(plan.budget_bytes)} with a context of {plan.context_length:,} "
        f"tokens ({format_size(plan.planned_bytes)} planned)"
    )
    if chosen := next((one for one in plan.candidates if one.backend == plan.label), None):
        slow, fast = sorted((chosen.plain_tokens_per_second, chosen.tokens_per_second))
        if fast > 0:
            said += f", about {_rate(slow)} to {_rate(fast)} tokens/s on this machine"
    return said


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _name(model: HubModel) -> str:
    return printable(f"{model.files[0].repo} {quantisation(model.name) or model.name}")


def _agreed(question: str, yes: bool) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        raise OptionError(f"{question} Nobody can answer here; add --yes")
    print(f"{question} [Y/n] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("", "y", "yes")


def _say(text: str) -> None:
    print(text, file=sys.stderr)
