"""From option dataclasses to what can be typed after a command.

`LoadOptions` and `ReplyOptions` say what each option is; `expand` turns a command's parameters of
these types into options of Typer's, so that a command names only what is its own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args

import typer

from edgespec.errors import OptionError
from edgespec.loading.load_options import LoadOptions
from edgespec.system.option_fields import options_of
from edgespec.terminal.config_file import default_models
from edgespec.terminal.help_layout import TUNING
from edgespec.terminal.plain_words import is_switch, typed_as

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def expand(
    *leave_out: str, hidden: tuple[str, ...] = (), **defaults: Any
) -> Callable[[CommandT], CommandT]:
    """A decorator: each parameter of an options dataclass becomes that dataclass's options.

    `leave_out` names fields that make no sense for the command, `hidden` those that it takes only
    to say why not, `defaults` gives others another default.
    """

    def decorate(function: CommandT) -> CommandT:
        own = inspect.signature(function, eval_str=True)
        kinds = {
            name: found.annotation
            for name, found in own.parameters.items()
            if is_dataclass(found.annotation)
        }
        parameters: list[inspect.Parameter] = []
        for name, found in own.parameters.items():
            made = _options(kinds[name], leave_out, hidden, defaults) if name in kinds else [found]
            parameters += made

        @functools.wraps(function)
        def command(**values: Any) -> Any:
            made = {name: _collected(kind, values) for name, kind in kinds.items()}
            return function(**made, **values)

        command.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {found.name: found.annotation for found in parameters}
        return command  # type: ignore[return-value]

    return decorate


def parameter(kind: type, name: str, **changes: Any) -> Any:
    """Typer's option for one field of an options dataclass."""
    _, type_, option = options_of(kind)[name]
    long = option.long(name)
    if is_switch(type_):
        long += f"/{option.negative(name)}"
    flags = [long, *([option.short] if option.short else [])]
    panel = TUNING if option.tuning else None
    shown: dict[str, Any] = {"metavar": option.metavar or None, "rich_help_panel": panel}
    shown["help"] = option.off or option.help
    if name == "model":
        shown["autocompletion"] = _models
    return typer.Option(*flags, **(shown | changes))


def _models(incomplete: str) -> list[str]:
    """Names of models that begin with what a shell completes."""
    from edgespec.terminal.model_list import model_rows

    here = [path.name for path in Path().glob("*.gguf")]
    names = [*(row["name"] for row in model_rows()), *here]
    return [name for name in names if name.startswith(incomplete)]


def _options(
    kind: Any, leave_out: tuple[str, ...], hidden: tuple[str, ...], defaults: dict[str, Any]
) -> Iterator[inspect.Parameter]:
    """The parameters of a command for a dataclass, in its order."""
    for name, (field, type_, option) in options_of(kind).items():
        if option.shell and name not in leave_out:
            yield inspect.Parameter(
                f"no_{name}" if option.off else name,
                inspect.Parameter.KEYWORD_ONLY,
                default=False if option.off else defaults.get(name, field.default),
                annotation=Annotated[_typed(type_), parameter(kind, name, hidden=name in hidden)],
            )


def _collected(kind: Any, values: dict[str, Any]) -> Any:
    """A dataclass from what was typed, which is taken out of `values`."""
    given = {}
    for name, (_, _, option) in options_of(kind).items():
        typed = f"no_{name}" if option.off else name
        if typed in values:
            value = values.pop(typed)
            given[name] = not value if option.off else value
    return kind(**given)


def _typed(type_: Any) -> Any:
    """The type of what is typed, and None where it may be left out."""
    base = typed_as(type_)
    return base | None if NoneType in get_args(type_) else base


Model = Annotated[str | None, parameter(LoadOptions, "model")]
ModelArgument = Annotated[
    str | None, typer.Argument(metavar="MODEL", help="Same as --model.", show_default=False)
]
Source = Annotated[
    str, typer.Argument(metavar="MODEL", help="A .gguf file or a bundled model's name.")
]
Memory = Annotated[str, parameter(LoadOptions, "memory")]
Threads = Annotated[int | None, parameter(LoadOptions, "threads")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON to stdout and nothing else.")]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Also draw a chart to a .png or .svg file."),
]


def one_model(argument: str | None, option: str | None) -> str | None:
    """The model of a command that takes it with and without `--model`."""
    both = argument is not None and option is not None and argument != option
    if both and option not in default_models:
        raise OptionError(f"two models were given, {argument} and {option}; give only one")
    return option if argument is None else argument
