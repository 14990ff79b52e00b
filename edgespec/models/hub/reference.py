"""How a model on a hub is named: `hf:ORG/REPO[:FILE|QUANT]`, or a page's address."""

from __future__ import annotations

import re

from edgespec.errors import OptionError
from edgespec.system.records import dataclass

PREFIX = "hf:"
_PAGES = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/", re.IGNORECASE)
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_FILE_PAGE = re.compile(r"([^/]+/[^/]+)/(?:blob|resolve)/[^/]+/(.+\.gguf)(?:\?.*)?")


@dataclass(frozen=True, slots=True)
class HubReference:
    """A repository and which of its models: a file's name, a quantisation, or the usual one."""

    repo: str
    wanted: str = ""

    def __str__(self) -> str:
        return f"{PREFIX}{self.repo}{f':{self.wanted}' if self.wanted else ''}"


def is_reference(name: str) -> bool:
    """Whether this names a model on a hub."""
    return name.startswith(PREFIX) or _PAGES.match(name) is not None


def parse_reference(name: str) -> HubReference:
    """The reference in `hf:ORG/REPO`, `hf:ORG/REPO:Q4_K_M`, `hf:ORG/REPO:FILE.gguf`, or in the
    address of a repository or file. Raises OptionError.
    """
    rest = name.removeprefix(PREFIX)
    if page := _PAGES.match(rest):
        rest = rest[page.end() :]
        if file := _FILE_PAGE.fullmatch(rest):
            return _checked(name, file[1], file[2])
    repo, _, wanted = rest.partition(":")
    return _checked(name, repo.strip("/"), wanted)


def is_safe_name(name: str) -> bool:
    """Whether a file's name stays inside the folder that it is relative to, on every system, and
    says nothing to a terminal.
    """
    if not name.isprintable() or set(name) & set('\\:*?"<>|'):
        return False
    return all(part.strip(". ") for part in name.split("/"))


def _checked(name: str, repo: str, wanted: str) -> HubReference:
    parts = repo.split("/")
    safe = len(parts) == 2 and all(_PART.fullmatch(part) and ".." not in part for part in parts)
    if not safe or (wanted and not is_safe_name(wanted)):
        raise OptionError(
            f"cannot read the model name {name!r}; write hf:ORG/REPO, hf:ORG/REPO:Q4_K_M or "
            "hf:ORG/REPO:FILE.gguf"
        )
    return HubReference(repo, wanted)
