"""Models in the hub's own cache, which other programs share.

`models--ORG--REPO/snapshots/COMMIT/FILE` is a link to `blobs/SHA256`, or the file itself where a
system has no links; `refs/main` names the commit. Source: huggingface_hub, "Understand caching".
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from edgespec.errors import HubError
from edgespec.models.hub.library import cache_folder
from edgespec.models.hub.listing import HubFile, choose, models_of, quantisation
from edgespec.models.hub.reference import HubReference
from edgespec.system.records import dataclass


@dataclass(frozen=True, slots=True)
class KeptModel:
    """One model in the cache: the paths of its parts, in order."""

    repo: str
    paths: tuple[Path, ...]

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.paths)

    @property
    def reference(self) -> HubReference:
        return HubReference(self.repo, quantisation(self.paths[0].name) or self.paths[0].name)

    def remove(self) -> int:
        """Delete it from the cache and return how many bytes that frees: what a link leads to
        outside the cache stays.
        """
        freed, own = 0, folder_of(self.repo).resolve()
        for path in self.paths:
            blob = path.resolve()
            if blob.is_relative_to(own):
                freed += blob.stat().st_size
                for link in _links_to(blob):
                    link.unlink()
                blob.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        return freed


def folder_of(repo: str) -> Path:
    """Where the cache keeps a repository."""
    return cache_folder() / f"models--{repo.replace('/', '--')}"


def pointer(file: HubFile) -> Path:
    """Where a file lies for its readers."""
    return folder_of(file.repo) / "snapshots" / file.commit / file.name


def find_kept(reference: HubReference) -> Path | None:
    """The first file of a model that was downloaded, by the newest commit that has it."""
    folder = folder_of(reference.repo)
    with suppress(OSError, ValueError):
        newest = (folder / "refs" / "main").read_text("ascii").strip()
        commits = sorted((folder / "snapshots").iterdir(), key=lambda one: one.name != newest)
        for commit in commits:
            names = [path.relative_to(commit).as_posix() for path in _files(commit)]
            with suppress(HubError):
                return commit / choose(reference, names)[0]
    return None


def kept_models() -> Iterator[KeptModel]:
    """All models in the cache, by repository."""
    root = cache_folder()
    folders = sorted(root.glob("models--*--*")) if root.is_dir() else []
    for folder in folders:
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        seen: set[Path] = set()
        for commit in sorted((folder / "snapshots").glob("*")):
            for names in models_of(path.relative_to(commit).as_posix() for path in _files(commit)):
                paths = tuple(commit / name for name in names)
                if paths[0].resolve() not in seen:
                    seen.add(paths[0].resolve())
                    yield KeptModel(repo, paths)


def _files(commit: Path) -> Iterator[Path]:
    """Files of a snapshot whose bytes are there."""
    return (path for path in commit.rglob("*.gguf") if path.is_file())


def _links_to(blob: Path) -> Iterator[Path]:
    snapshots = blob.parent.parent / "snapshots"
    for folder, _, names in os.walk(snapshots):
        for name in names:
            path = Path(folder) / name
            if path.is_symlink() and path.resolve() == blob:
                yield path
