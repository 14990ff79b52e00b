"""The manual page, in roff, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from edgespec.terminal.config_file import config_place
from edgespec.version import __version__

ENVIRONMENT = {
    "EDGESPEC_CONFIG": "The file of defaults for options.",
    "EDGESPEC_DATA": "Folder of what is kept between runs: conversations, statistics, prefixes.",
    "EDGESPEC_HISTORY": "0 keeps nothing of what is typed and written, and reads none of it.",
    "EDGESPEC_CACHE": "Folder of compiled kernels and measurements.",
    "EDGESPEC_API_KEY": "Key that clients of `edgespec serve` must send.",
    "EDGESPEC_KERNELS": "library or jit: use precompiled kernels, or compile them here.",
    "EDGESPEC_ISA": "Instruction set of the kernels, of those that `edgespec doctor` lists.",
    "EDGESPEC_PIN": "1 keeps each thread on a processor of its own.",
    "OMP_WAIT_POLICY": "How threads of llama.cpp wait for each other; if unset they sleep soon.",
    "EDGESPEC_SPILL": "0 sets no idle conversations aside in files.",
    "EDGESPEC_PROGRESS": "0 says nothing of slow starts where there is no terminal.",
    "EDGESPEC_DEBUG": "1 shows where an error came from.",
    "HF_HOME": "Folder of downloaded models, shared with other programs.",
    "HF_TOKEN": "Token for models that a hub does not give to everyone.",
    "HF_ENDPOINT": "Address of another hub.",
}
"""Variables that commands read, and what they are for."""


def man_page(root: Any) -> str:
    """The whole page."""
    return "\n".join(_lines(root)) + "\n"


def all_commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The commands of a group by their whole names, those of groups inside it too."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for part, inner in command.commands.items():
        yield from all_commands(f"{name} {part}", inner)


def _lines(root: Any) -> Iterator[str]:
    yield f'.TH EDGESPEC 1 "" "edgespec {__version__}" "User Commands"'
    yield ".SH NAME"
    yield "edgespec \\- run language models fast on your own machine, within a memory budget"
    yield ".SH SYNOPSIS"
    yield ".B edgespec\nCOMMAND [OPTION]... [ARGUMENT]..."
    yield ".SH COMMANDS"
    for name, command in all_commands("edgespec", root):
        yield f".SS {_escaped(name)}"
        yield from (f"{_escaped(' '.join(p.split()))}\n" for p in command.help.split("\n\n"))
        for option in command.params:
            if not getattr(option, "hidden", False):
                yield from _option(option)
    yield ".SH ENVIRONMENT"
    for name, said in ENVIRONMENT.items():
        yield f".TP\n.B {name}\n{_escaped(said)}"
    yield ".SH FILES"
    yield f".TP\n.I {_escaped(str(config_place()))}\nDefaults for options."
    yield ".SH EXIT STATUS"
    yield "0 success, 1 failure, 2 wrong usage, 130 interrupted."


def _option(option: Any) -> Iterator[str]:
    is_argument = option.param_type_name == "argument"
    if is_argument:
        names = f".I {_escaped(option.metavar)}"
    else:
        shown = ", ".join(_escaped(one) for one in (*option.opts, *option.secondary_opts))
        value = "" if option.is_flag else f" \\fI{_escaped(option.metavar)}\\fR"
        names = f"\\fB{shown}\\fR{value}"
    yield f".TP\n{names}\n{_escaped(option.help or '')}"


def _escaped(text: str) -> str:
    """Text that roff takes as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text
