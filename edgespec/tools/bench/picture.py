"""A picture in a file, drawn with Matplotlib."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgespec.errors import EdgeSpecError, OptionError

_SUFFIXES = (".png", ".svg")


class Picture:
    """One file to draw to; raises OptionError when that cannot work, before anything is measured.

    Raises EdgeSpecError without Matplotlib.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() not in _SUFFIXES:
            raise OptionError(
                f"--plot draws {' or '.join(_SUFFIXES)} files, and {path} is neither; "
                f"type for example --plot {path.stem or 'plot'}.png"
            )
        if not path.parent.is_dir():
            raise OptionError(f"--plot {path}: there is no folder {path.parent}; make it first")
        if find_spec("matplotlib") is None:
            raise EdgeSpecError(
                "--plot needs matplotlib, which is not installed: pip install 'edgespec[bench]'"
            )
        self._path = path

    def figure(self, width: float, height: float) -> Any:
        """An empty figure, in inches."""
        logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells of its font cache
        from matplotlib.figure import Figure

        return Figure(figsize=(width, height), layout="constrained")

    def save(self, figure: Any) -> None:
        """Write the file; raises EdgeSpecError when it cannot be written."""
        from matplotlib import rc_context

        try:
            with rc_context({"svg.fonttype": "none"}):  # text stays text: smaller, and found
                figure.savefig(self._path, dpi=160)
        except OSError as error:
            raise EdgeSpecError(
                f"cannot write the plot to {self._path} ({error.strerror}); choose another place"
            ) from None
