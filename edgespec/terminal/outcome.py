"""How a command ends: what it raises becomes one line on stderr and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

from edgespec.errors import EdgeSpecError
from edgespec.terminal.text_io import printable, tolerate_any_encoding


def exit_code(command: Callable[[], object]) -> int:
    """Run a command and say what went wrong; 0 is success."""
    try:
        command()
        sys.stdout.flush()
    except EdgeSpecError as error:
        if _debugging():
            raise
        _say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        abandon_output()  # the reader has what it wanted
    return 0


@contextlib.contextmanager
def faults_told() -> Iterator[None]:
    """What no command should raise becomes a line too: that it is a fault, and where to learn
    more.
    """
    tolerate_any_encoding()
    try:
        yield
    except Exception as error:
        if _debugging():
            raise
        what = " ".join(f"{type(error).__name__}: {error}".split())
        _say(
            f"{what}; this is a bug in EdgeSpec: please report it with what EDGESPEC_DEBUG=1 shows"
        )
        try:
            sys.stdout.flush()
        except OSError:
            abandon_output()
        sys.exit(1)


def abandon_output() -> None:
    """Let what is still buffered go nowhere: Python would fail to flush it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(message: str) -> None:
    text = f"edgespec: {printable(message)}"
    if sys.stderr.isatty():  # lines end between words
        import shutil
        import textwrap

        width = shutil.get_terminal_size().columns
        text = textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
    print(text, file=sys.stderr)


def _debugging() -> bool:
    return os.environ.get("EDGESPEC_DEBUG", "") not in ("", "0")
