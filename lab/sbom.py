"""Say what a wheel is made of: a CycloneDX file beside it.

    python -m lab.sbom dist/edgespec-*.whl [--lock requirements-dev.lock]

Components are what the wheel's metadata names and what those need in turn, in the versions, and
with the hashes, that the lock file has: those the wheel was tested with. The same wheel and lock
give the same bytes. Source: the CycloneDX 1.6 specification (JSON).
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
import zipfile
from collections.abc import Iterable, Iterator
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path
from typing import Any

from lab.harness import Asked, Rows, Script, option

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
script = Script(__doc__)


@script.command(
    option("wheels", nargs="+", type=Path, metavar="WHEEL"),
    option("--lock", type=Path, default=Path("requirements-dev.lock")),
)
def sbom(asked: Asked) -> Rows:
    """One row for each wheel."""
    locked = dict(read_lock(asked.lock))
    for wheel in asked.wheels:
        made = bill(wheel, locked)
        out = wheel.with_name(f"{wheel.name}.cdx.json")
        out.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n", "utf-8")
        yield {"wheel": wheel.name, "components": len(made["components"]), "written": str(out)}


def read_lock(path: Path) -> Iterator[tuple[str, tuple[str, list[str]]]]:
    """Version and hashes of every package, by its plain name."""
    name = version = ""
    hashes: list[str] = []
    for line in path.read_text("utf-8").splitlines():
        match = _PINNED.match(line)
        if match:
            if name:
                yield name, (version, hashes)
            name, version, hashes = _plain(match[1]), match[2], []
        hashes += _HASH.findall(line)
    if name:
        yield name, (version, hashes)


def bill(wheel: Path, locked: dict[str, tuple[str, list[str]]]) -> dict[str, Any]:
    """A CycloneDX object."""
    with zipfile.ZipFile(wheel) as parts:
        place = next(name for name in parts.namelist() if name.endswith(".dist-info/METADATA"))
        about = HeaderParser().parsestr(parts.read(place).decode())
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    needs = [text for text in about.get_all("Requires-Dist") or () if "extra ==" not in text]
    graph = dict(_needs_of(map(_name, needs)))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, digest)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": "edgespec",
                "name": about["Name"],
                "version": about["Version"],
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "hashes": [{"alg": "SHA-256", "content": digest}],
            }
        },
        "components": [_component(name, *locked.get(name, ("", []))) for name in sorted(graph)],
        "dependencies": [
            {"ref": "edgespec", "dependsOn": sorted(set(map(_name, needs)))},
            *({"ref": name, "dependsOn": below} for name, below in sorted(graph.items())),
        ],
    }


def _needs_of(names: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Everything below these names, as it is installed here, with what it needs in turn."""
    waiting, seen = list(names), set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            told = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            told = []
        below = sorted({_name(text) for text in told if ";" not in text})
        waiting += below
        yield name, below


def _component(name: str, version: str, hashes: list[str]) -> dict[str, Any]:
    """One package; of its hashes each is one file of that version."""
    made: dict[str, Any] = {"type": "library", "bom-ref": name, "name": name}
    if version:
        made |= {"version": version, "purl": f"pkg:pypi/{name}@{version}"}
    if hashes:
        files = [{"alg": "SHA-256", "content": one} for one in sorted(hashes)]
        made["externalReferences"] = [
            {"type": "distribution", "url": f"pkg:pypi/{name}@{version}", "hashes": files}
        ]
    return made


def _name(requirement: str) -> str:
    match = _NAME.match(requirement)
    assert match is not None
    return _plain(match[0])


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    script.run()
