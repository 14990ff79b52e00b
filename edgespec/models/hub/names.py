"""Short names of models on a hub: those that EdgeSpec recommends, and the user's own."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path

from edgespec.errors import OptionError
from edgespec.models.hub.reference import HubReference, is_reference, parse_reference
from edgespec.system.records import dataclass
from edgespec.system.user_data import user_folder, write_private

_RECOMMENDED = Path(__file__).with_name("recommended.json")
_FILE = "names.json"


@dataclass(frozen=True, slots=True)
class Recommended:
    """A model to start with, for a memory budget."""

    name: str
    reference: str
    download: str
    memory: str
    """The smallest budget in which it runs with a useful context."""
    licence: str
    why: str

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


@cache
def recommended() -> tuple[Recommended, ...]:
    """The table in the package, from small to large."""
    return tuple(Recommended(**row) for row in json.loads(_RECOMMENDED.read_text("utf-8")))


def own_names() -> dict[str, str]:
    """The user's names and what they stand for; none when the file is missing or damaged."""
    try:
        found = json.loads((user_folder() / _FILE).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    pairs = found.items() if isinstance(found, dict) else ()
    return {name: where for name, where in pairs if isinstance(where, str) and is_reference(where)}


def name_model(name: str, reference: HubReference | None) -> None:
    """Let `name` stand for a model, or for nothing any more.

    Others who do so at the same time are waited for. Raises OptionError.
    """
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise OptionError(f"{name!r} is no name for a model; use letters, digits, -, _ and .")
    from filelock import FileLock  # comes with huggingface_hub

    folder = user_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{_FILE}.lock", mode=0o600):
        names = own_names()
        names.pop(name, None)
        if reference is not None:
            names[name] = str(reference)
        write_private(folder / _FILE, [json.dumps(names, indent=2).encode()])


def reference_of(name: str) -> HubReference | None:
    """The model on a hub that a name or reference means; None for other names.

    Raises OptionError for a reference that cannot be read.
    """
    if is_reference(name):
        return parse_reference(name)
    known = {one.name: one.reference for one in recommended()} | own_names()
    return parse_reference(known[name]) if name in known else None
