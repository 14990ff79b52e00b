"""The program: `edgespec`, and `python -m edgespec`."""

from __future__ import annotations

import gc
import sys

_COLLECTIONS = (100_000, 20, 100)
"""When Python looks for garbage: modules are none, and a tenth of a start was looking at them."""


def main() -> None:
    """Run the command line of this process."""
    gc.set_threshold(*_COLLECTIONS)
    try:
        from edgespec.terminal.plain_run import plain_run  # brings more than came before it

        if not plain_run(sys.argv[1:]):
            from edgespec.cli import main as run

            run()
    except KeyboardInterrupt:  # before there is a command that could end in its own way
        sys.exit(130)


if __name__ == "__main__":
    main()
