"""Downloads into the hub's cache that go on where they stopped and are checked by their SHA-256.

Through huggingface_hub. Its own `hf_hub_download` (2.4) begins anew when it is started again and
compares sizes only, so the loop around its request is here.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from pathlib import Path

from edgespec.errors import HubError, OptionError
from edgespec.models.hub.kept import find_kept, folder_of, pointer
from edgespec.models.hub.library import cache_folder, library, sentence
from edgespec.models.hub.listing import HubFile, HubModel, find
from edgespec.models.hub.names import reference_of
from edgespec.system.size import format_size
from edgespec.system.whole_file import whole_file

ATTEMPTS = 5
"""Requests in a row that may bring nothing."""


def pull(name: str) -> Path:
    """Download a model: `hf:ORG/REPO`, `hf:ORG/REPO:Q4_K_M`, `hf:ORG/REPO:FILE.gguf`, or a name
    from `edgespec list --recommended`. Returns its path, at once when it is here already.

    Raises HubError, OptionError for a name that means no model on a hub.
    """
    reference = reference_of(name)
    if reference is None:
        raise OptionError(
            f"cannot pull {name!r}; give hf:ORG/REPO[:QUANT], or a name that `edgespec list "
            "--recommended` shows"
        )
    return find_kept(reference) or download(find(reference))


def download(model: HubModel) -> Path:
    """Download what is not here yet; returns the path of the model's (first) file.

    Raises HubError; what has come so far is kept, wrong bytes are deleted.
    """
    missing = sum(_missing(file) for file in model.files)
    _check_room(model, missing)
    first = model.files[0]
    try:
        for file in model.files:
            _place(file, _fetch(file))
        ref = folder_of(first.repo) / "refs" / "main"
        ref.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(ref, private=False) as out:
            out.write(first.commit.encode("ascii"))
    except OSError as error:  # as for a name that is too long, or that of a folder
        raise HubError(
            f"cannot write {error.filename or folder_of(first.repo)}: {error.strerror or error}; "
            "choose another file, or set HF_HOME to another folder"
        ) from None
    return pointer(first)


def _blob(file: HubFile) -> Path:
    return folder_of(file.repo) / "blobs" / file.sha256


def _part(file: HubFile, place: Path) -> Path:
    """Where the bytes lie that came so far."""
    return place.with_name(f"{place.name}.{file.sha256[:12]}.part")


def _missing(file: HubFile) -> int:
    """Bytes of a file still to come."""
    if _size(_blob(file)) == file.size_bytes or _size(pointer(file)) == file.size_bytes:
        return 0
    return file.size_bytes - min(_size(_part(file, _blob(file))), file.size_bytes)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _check_room(model: HubModel, missing: int) -> None:
    folder = folder_of(model.files[0].repo)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise HubError(
            f"cannot write to {folder}: {error.strerror or error}; set HF_HOME to another folder"
        ) from None
    if free < missing:
        raise HubError(
            f"cannot download {model.name}: {format_size(missing)} are to come and "
            f"{format_size(free)} are free in {folder}; make room, or set HF_HOME to a folder on "
            "another disk"
        )


def _fetch(file: HubFile) -> Path:
    """The blob, or where a system has no links, the file in its place."""
    for path in (_blob(file), pointer(file)):
        if _size(path) == file.size_bytes:
            return path
    return fetch(file, _blob(file))


def fetch(file: HubFile, place: Path) -> Path:
    """Download a file, or what a stopped download lacks, and check it; returns `place`.

    Raises HubError; what has come so far is kept, wrong bytes are deleted.
    """
    part = _part(file, place)
    part.parent.mkdir(parents=True, exist_ok=True)
    locks = cache_folder() / ".locks"  # kept, as huggingface_hub keeps its own
    locks.mkdir(parents=True, exist_ok=True)
    with library().utils.WeakFileLock(locks / f"{file.sha256}.lock"):  # two may want one file
        if _size(place) != file.size_bytes:  # it is checked before it gets this name
            _fill(file, part)
            _check(file, part)
            part.replace(place)
    return place


def _check(file: HubFile, part: Path) -> None:
    with part.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != file.sha256:
        part.unlink()
        raise HubError(
            f"the hub sent other bytes of {file.name} than it lists (SHA-256 {found[:12]}..., not "
            f"{file.sha256[:12]}...); they are deleted, try again"
        )


def _fill(file: HubFile, part: Path) -> None:
    hub = library()
    from huggingface_hub.file_download import http_get

    url = hub.hf_hub_url(file.repo, file.name, revision=file.commit)
    left = ATTEMPTS
    while (done := _size(part)) < file.size_bytes:
        try:
            with part.open("ab") as out:
                http_get(
                    url,
                    out,
                    resume_size=done,
                    headers=hub.utils.build_hf_headers(),
                    expected_size=file.size_bytes,
                    displayed_filename=file.name.rpartition("/")[2],
                )
        except Exception as error:
            full = isinstance(error, OSError) and error.errno == errno.ENOSPC
            left = left - 1 if _size(part) <= done else ATTEMPTS
            if full or not left:
                held = f"{format_size(_size(part))} of {format_size(file.size_bytes)} are kept"
                what = "the disk is full" if full else sentence(error)
                raise HubError(
                    f"cannot download {file.name}: {what}; {held}, pull again to go on"
                ) from error


def _place(file: HubFile, blob: Path) -> None:
    """Put a blob where readers look: a relative link, or the file itself."""
    place = pointer(file)
    if place.exists() or blob == place:
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        place.unlink(missing_ok=True)  # a link to nothing
        place.symlink_to(os.path.relpath(blob, place.parent))
    except (OSError, NotImplementedError):
        blob.replace(place)
