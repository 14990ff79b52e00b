"""`config.toml`: what commands take where the command line says nothing.

Keys are long options without their dashes; those at the top are for every command that has the
option, those of a table [COMMAND] for that command alone.

    memory = "4GiB"
    [chat]
    temperature = 0.5
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.errors import OptionError

if TYPE_CHECKING:
    import typer

_LARGEST_BYTES = 2**20
_SILENT = ("doctor", "man")
"""Commands that run whatever is in the file."""
_NEVER = ("help", "version", "install-completion", "show-completion", "json", "yes")


default_models: set[str] = set()
"""Models that the file of this process names; a model that is typed takes their place."""


def config_place() -> Path:
    """Where the file is: EDGESPEC_CONFIG, or in the user's folder of configuration."""
    asked = os.environ.get("EDGESPEC_CONFIG")
    if asked:
        return Path(asked)
    from platformdirs import user_config_path

    return user_config_path("edgespec", appauthor=False) / "config.toml"


def defaults_of(context: typer.Context) -> dict[str, Any]:
    """The file's values by command and parameter; raises OptionError for a file that is wrong."""
    try:
        return _read_config(config_place(), context.command, context)
    except OptionError:
        if context.invoked_subcommand in _SILENT:
            return {}
        raise


def _read_config(place: Path, root: Any, context: Any) -> dict[str, Any]:
    """Defaults for the commands below `root`, {} where there is no file."""
    values = read_values(place)
    tables = {name: table for name, table in values.items() if isinstance(table, dict)}
    general = {name: value for name, value in values.items() if name not in tables}
    known = {name: command for name, command in root.commands.items()}
    for name in tables:
        if name not in known:
            raise _unknown(place, f"[{name}]", name, known, "commands")
    default_models.update(
        table["model"]
        for table in (general, *tables.values())
        if isinstance(table.get("model"), str)
    )
    used: set[str] = set()
    defaults: dict[str, Any] = {}
    for name, command in known.items():
        options = dict(_options(command))
        wrong = [key for key in tables.get(name, {}) if key not in options]
        if wrong:
            raise _unknown(place, f"{wrong[0]} in [{name}]", wrong[0], options, "options")
        given = {key: value for key, value in general.items() if key in options}
        used |= set(given)
        defaults[name] = {
            options[key].name: _checked(place, key, value, options[key], context)
            for key, value in (given | tables.get(name, {})).items()
        }
    for key in sorted(set(general) - used):
        every = {option for command in known.values() for option, _ in _options(command)}
        raise _unknown(place, key, key, every, "options")
    return defaults


def read_values(place: Path) -> dict[str, Any]:
    """What is in the file, {} where there is none; raises OptionError for one that is no TOML."""
    try:
        with place.open("rb") as file:
            raw = file.read(_LARGEST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise OptionError(f"cannot read {place}: {error.strerror or error}") from None
    import tomllib

    try:
        return tomllib.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{place} is not TOML: {error}") from None


def _options(command: Any) -> Iterator[tuple[str, Any]]:
    """Options of a command by their names in the file."""
    for parameter in getattr(command, "params", ()):
        for name in parameter.opts if parameter.param_type_name == "option" else ():
            key = name.removeprefix("--")
            if name.startswith("--") and key not in _NEVER and not parameter.hidden:
                yield key, parameter


def _checked(place: Path, key: str, value: Any, parameter: Any, context: Any) -> Any:
    """A value as the option takes it."""
    import typer

    try:
        parameter.process_value(context, value)
    except typer.BadParameter as error:
        raise OptionError(f"{place}: {key} is {value!r}: {error.message}") from None
    return value


def _unknown(place: Path, what: str, name: str, known: Any, kind: str) -> OptionError:
    import difflib

    near = difflib.get_close_matches(name, list(known), 1)
    hint = f"did you mean {near[0]}?" if near else f"`edgespec --help` shows the {kind}"
    return OptionError(f"{place} has {what}, which is none of the {kind}; {hint}")
