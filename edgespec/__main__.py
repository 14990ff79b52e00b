"""The program: `edgespec`, and `python -m edgespec`."""

from __future__ import annotations

import gc
import os
import sys

from edgespec.system.few_collections import THRESHOLDS


def main() -> None:
    """Run the command line of this process."""
    gc.set_threshold(*THRESHOLDS)
    # NumPy's BLAS lets its threads spin when it is imported, for a quarter of a start's processor
    # time; now they sleep at once, and wake for work.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    try:
        from edgespec.terminal.plain_run import plain_run  # brings more than came before it

        if not plain_run(sys.argv[1:]):
            from edgespec.cli import main as run

            run()
    except KeyboardInterrupt:  # before there is a command that could end in its own way
        sys.exit(130)


if __name__ == "__main__":
    main()
