"""Model names: what `--model` may be, and where it lies."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from edgespec.errors import ModelFileError

BUNDLED = {
    "edgespec-tiny": "edgespec-tiny-q8_0.gguf",
    "edgespec-draft": "edgespec-draft-q8_0.gguf",  # the same vocabulary, to draft for the other
}
DEFAULT = "edgespec-tiny"

_FOLDER = Path(__file__).parent / "bundled"


def resolve(name_or_path: str | os.PathLike[str] | None = None) -> Path:
    """The file of a bundled model or of a path; None is the default model.

    An existing path wins over a bundled name. Raises ModelFileError with the nearest names.
    """
    if name_or_path is None:
        name_or_path = DEFAULT
    path = Path(name_or_path).expanduser()
    if path.exists():
        return path
    name = str(name_or_path)
    if name not in BUNDLED:
        raise ModelFileError(_unknown(name))
    bundled = _FOLDER / BUNDLED[name]
    if not bundled.exists():
        raise ModelFileError(
            f"cannot open the bundled model {name!r}: {bundled} is not in this installation; "
            "install EdgeSpec again, or give the path of a .gguf file"
        )
    return bundled


def _unknown(name: str) -> str:
    here = sorted(path.name for path in Path().glob("*.gguf"))
    near = difflib.get_close_matches(name, [*BUNDLED, *here], n=3, cutoff=0.5)
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    else:
        hint = f"give the path of a .gguf file, or one of the bundled models: {', '.join(BUNDLED)}"
    return f"cannot find the model {name!r}: there is no file or bundled model of that name; {hint}"
