"""What a repository holds: its models, each in one file or several, and which one is meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from pathlib import PurePosixPath

from edgespec.errors import HubError
from edgespec.models.hub.library import library, sentence
from edgespec.models.hub.reference import HubReference, is_safe_name
from edgespec.system.records import dataclass

USUAL = (
    "Q4_K_M", "UD-Q4_K_XL", "Q4_K_XL", "MXFP4", "Q4_0", "IQ4_XS", "Q4_K_S", "Q5_K_M", "Q6_K",
    "Q8_0",
)  # fmt: skip
"""Quantisations that are taken where none is asked for, best choice first."""
_MOST_SHOWN = 12
_MAX_FILES = 10_000
_MOST_BYTES = 1 << 44
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_QUANT = re.compile(
    r"(?:UD-)?(?:I?Q\d_[A-Z0-9]+(?:_[A-Z0-9]+)?|TQ\d_0|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32)", re.I
)
_BESIDE = re.compile(r"(?:^|[-_./])(?:mmproj|imatrix)", re.I)
"""Files that are no language model of their own."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of one commit, as the hub lists it."""

    repo: str
    commit: str
    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class HubModel:
    """One model: its file, or its parts in order."""

    files: tuple[HubFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def name(self) -> str:
        """The first file's name."""
        return self.files[0].name


def find(reference: HubReference, revision: str = "main") -> HubModel:
    """The model that is meant, as the hub has it now. Raises HubError."""
    hub = library()
    try:
        info = hub.HfApi().model_info(reference.repo, revision=revision, files_metadata=True)
    except Exception as error:  # its HTTP library, and so what it raises, changes by version
        raise HubError(f"cannot list {reference.repo}: {sentence(error)}") from error
    listed = [one for one in (info.siblings or [])[:_MAX_FILES] if is_safe_name(one.rfilename)]
    chosen = choose(reference, [one.rfilename for one in listed])
    by_name = {one.rfilename: one for one in listed}
    files = []
    for name in chosen:
        found = by_name[name]
        digest = "" if found.lfs is None else str(found.lfs["sha256"])
        size = found.size
        if not _SHA256.fullmatch(digest) or not isinstance(size, int) or not 0 < size < _MOST_BYTES:
            raise HubError(
                f"{reference.repo} states no size and SHA-256 of {name}, so it cannot be checked; "
                "download it by hand"
            )
        files.append(HubFile(reference.repo, str(info.sha), name, size, digest))
    if not _COMMIT.fullmatch(str(info.sha)):
        raise HubError(f"{reference.repo} states no commit; try again later")
    return HubModel(tuple(files))


def choose(reference: HubReference, names: Iterable[str]) -> list[str]:
    """The names of the one model that is meant, parts in order.

    A file's name (or pattern), else a quantisation, else the first of `USUAL` that is there.
    Raises HubError, with what there is.
    """
    models = models_of(names)
    if not models:
        raise HubError(f"{reference.repo} has no GGUF file; look for a repository whose name ends "
                       "in -GGUF")  # fmt: skip
    if reference.wanted:
        matching = _matching(reference.wanted, models)
    elif len(models) == 1:
        matching = models
    else:
        by_quant = (_matching(quant, models) for quant in USUAL)
        matching = next((found for found in by_quant if found), [])
    if len(matching) != 1:
        what = f"{len(matching)} models" if matching else "no model"
        of = f" called {reference.wanted}" if reference.wanted else " of a usual quantisation"
        raise HubError(
            f"{reference.repo} has {what}{of}; choose with hf:{reference.repo}:NAME one of "
            f"{_shown(matching or models)}"
        )
    return matching[0]


def models_of(names: Iterable[str]) -> list[list[str]]:
    """GGUF files grouped by model: complete sets of parts, and single files."""
    found: dict[str, list[str]] = {}
    for name in sorted(names):
        if name.lower().endswith(".gguf") and not _BESIDE.search(name):
            part = _PART.fullmatch(name)
            found.setdefault(f"{part[1]}/{part[3]}" if part else name, []).append(name)
    return [group for group in found.values() if _complete(group)]


def quantisation(name: str) -> str:
    """The quantisation that a file's name states, in capitals, or nothing."""
    found = _QUANT.findall(PurePosixPath(name).name)
    return found[-1].upper() if found else ""


def _matching(wanted: str, models: Sequence[list[str]]) -> list[list[str]]:
    if wanted.lower().endswith(".gguf"):
        return [
            group
            for group in models
            if any(wanted in (name, PurePosixPath(name).name) for name in group)
            or fnmatch(PurePosixPath(group[0]).name, wanted)
        ]
    return [group for group in models if quantisation(group[0]) == wanted.upper()]


def _complete(group: list[str]) -> bool:
    part = _PART.fullmatch(group[0])
    return part is None or len(group) == int(part[3])


def _shown(models: Sequence[list[str]]) -> str:
    names = [quantisation(group[0]) or PurePosixPath(group[0]).name for group in models]
    if len(set(names)) < len(names):  # the same quantisation twice
        names = [PurePosixPath(group[0]).name for group in models]
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return ", ".join(names[:_MOST_SHOWN]) + more
