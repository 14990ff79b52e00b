"""Model names: what `--model` may be, and where it lies."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.errors import EdgeSpecError, ModelFileError
from edgespec.models.gguf.parts import open_gguf

if TYPE_CHECKING:
    from edgespec.models.hub.reference import HubReference

BUNDLED = {
    "edgespec-tiny": "edgespec-tiny-q8_0.gguf",
    "edgespec-draft": "edgespec-draft-q8_0.gguf",  # the same vocabulary, to draft for the other
}
DEFAULT = "edgespec-tiny"


class NotPulledError(ModelFileError):
    """The model is on a hub, as far as its name says, and was not downloaded yet."""

    def __init__(self, name: str, reference: HubReference) -> None:
        super().__init__(
            f"the model {name} is not on this machine; download it with `edgespec pull {name}`"
        )
        self.reference = reference


_FOLDER = Path(__file__).parent / "bundled"


def resolve(name_or_path: str | os.PathLike[str] | None = None) -> Path:
    """The file of a path, a bundled model or a downloaded one; None is the default model.

    An existing path wins over a name. Raises ModelFileError with the nearest names, NotPulledError
    for a model that has to be downloaded first.
    """
    if name_or_path is None:
        name_or_path = DEFAULT
    path = Path(name_or_path).expanduser()
    if path.exists():
        return path
    name = str(name_or_path)
    if name not in BUNDLED:
        return _downloaded(name)
    bundled = _FOLDER / BUNDLED[name]
    if not bundled.exists():
        raise ModelFileError(
            f"cannot open the bundled model {name!r}: {bundled} is not in this installation; "
            "install EdgeSpec again, or give the path of a .gguf file"
        )
    return bundled


def _downloaded(name: str) -> Path:
    from edgespec.models.hub.kept import find_kept
    from edgespec.models.hub.names import reference_of

    reference = reference_of(name)
    if reference is None:
        raise ModelFileError(_unknown(name))
    found = find_kept(reference)
    if found is None:
        raise NotPulledError(name, reference)
    return found


def _is_sound(path: Path) -> bool:
    """Whether a file is worth suggesting."""
    try:
        open_gguf(path)[0].close()
    except EdgeSpecError:
        return False
    return True


def _unknown(name: str) -> str:
    import difflib

    from edgespec.models.hub.names import own_names, recommended

    here = sorted(path.name for path in Path().glob("*.gguf"))
    known = [*BUNDLED, *here, *own_names(), *(one.name for one in recommended())]
    near = difflib.get_close_matches(name, known, n=8, cutoff=0.5)
    near = [one for one in near if one not in here or _is_sound(Path(one))][:3]
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    else:
        hint = "give the path of a .gguf file, or a name that `edgespec list` shows"
    return f"cannot find the model {name!r}: there is no file or model of that name; {hint}"
