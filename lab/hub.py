"""Files of a model hub: found by a pattern, fetched with resumption, checked by their SHA-256.

Through huggingface_hub, which reads HF_ENDPOINT and HF_TOKEN. Its `hf_hub_download` (2.4) begins
anew when it is started again and compares sizes only, so the loop around its request is here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from edgespec.errors import EdgeSpecError
from edgespec.system.size import format_size

ATTEMPTS = 5
"""Requests in a row that may bring nothing."""
_MOST_SHOWN = 8


class HubError(EdgeSpecError):
    """The hub is out of reach, lacks the file, or sent other bytes; says which."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of one commit, as the hub lists it."""

    repo: str
    commit: str
    name: str
    size_bytes: int
    sha256: str


def find(repo: str, pattern: str, revision: str = "main") -> list[HubFile]:
    """The file whose name matches, or all parts of one that is published in several.

    Raises HubError.
    """
    try:
        info = _library().HfApi().model_info(repo, revision=revision, files_metadata=True)
    except Exception as error:  # its HTTP library, and so what it raises, changes by version
        raise HubError(f"cannot list {repo}: {_sentence(error)}") from error
    files = [one for one in info.siblings or [] if one.rfilename.endswith(".gguf")]
    matching = [one for one in files if fnmatch(PurePosixPath(one.rfilename).name, pattern)]
    if not matching or not _one_model([one.rfilename for one in matching]):
        what = f"{len(matching)} models" if matching else "no file"
        raise HubError(f"{repo} has {what} of the name {pattern}; it has {_shown(files)}")
    if bare := [one.rfilename for one in matching if one.lfs is None or not one.size]:
        raise HubError(f"{repo} states no size and SHA-256 of {bare[0]}; it cannot be checked")
    return [
        HubFile(repo, str(info.sha), one.rfilename, int(one.size), one.lfs["sha256"])
        for one in matching
    ]


def fetch(file: HubFile, folder: Path) -> Path:
    """Download a file, or what a stopped download lacks, and check it; returns its path.

    Raises HubError; wrong bytes are deleted first.
    """
    path = folder / PurePosixPath(file.name).name
    if path.exists():
        return path  # it was checked before it got this name
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{file.sha256[:12]}.part")
    _fill(file, part)
    with part.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != file.sha256:
        part.unlink()
        raise HubError(
            f"{file.repo} sent other bytes of {file.name} than it lists (SHA-256 {found[:12]}..., "
            f"not {file.sha256[:12]}...); they are deleted, try again"
        )
    return part.rename(path)


def _fill(file: HubFile, part: Path) -> None:
    hub = _library()
    from huggingface_hub.file_download import http_get

    url = hub.hf_hub_url(file.repo, file.name, revision=file.commit)
    left = ATTEMPTS
    while (done := part.stat().st_size if part.exists() else 0) < file.size_bytes:
        try:
            with part.open("ab") as out:
                http_get(
                    url,
                    out,
                    resume_size=done,
                    headers=hub.utils.build_hf_headers(),
                    expected_size=file.size_bytes,
                    displayed_filename=part.name,
                )
        except Exception as error:
            left = left - 1 if part.stat().st_size <= done else ATTEMPTS
            if not left:
                held = f"{format_size(done)} of {format_size(file.size_bytes)} are kept"
                raise HubError(f"cannot fetch {file.name}: {_sentence(error)}; {held}") from error


def _library() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise HubError("huggingface_hub is not installed; `pip install 'edgespec[hub]'`") from None
    return huggingface_hub


def _one_model(names: Sequence[str]) -> bool:
    """Whether these are one file, or parts `NAME-00001-of-0000N.gguf` of one model."""
    return len(names) == 1 or (
        all("-of-" in name for name in names)
        and len({name.rpartition("-of-")[0].rpartition("-")[0] for name in names}) == 1
    )


def _shown(files: Sequence[Any]) -> str:
    names = [one.rfilename for one in files]
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return ", ".join(names[:_MOST_SHOWN]) + more if names else "no GGUF file"


def _sentence(error: Exception) -> str:
    """What a library says over several lines, in one."""
    return " ".join(str(error).split())[:300] or type(error).__name__
