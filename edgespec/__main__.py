"""The program: `edgespec`, and `python -m edgespec`."""

from __future__ import annotations

import gc

_COLLECTIONS = (100_000, 20, 100)
"""When Python looks for garbage: modules are none, and a tenth of a start was looking at them."""


def main() -> None:
    """Run the command line of this process."""
    gc.set_threshold(*_COLLECTIONS)
    from edgespec.cli import main as run  # brings more modules than came before it

    run()


if __name__ == "__main__":
    main()
