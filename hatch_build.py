"""What goes into a wheel: with EDGESPEC_PLATFORM set, the precompiled kernels of that platform.

    python -m edgespec.system.precompile --platform linux-x86_64 --output FILE
    EDGESPEC_PLATFORM=linux-x86_64 EDGESPEC_LIBRARY=FILE python -m build --wheel

Without, the wheel is for every platform, needs Numba, and compiles at the first start.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

sys.path.insert(0, str(Path(__file__).parent))

from edgespec.system.sources import PACKED, source_hash  # noqa: E402 - needs the path

_TAGS = {
    # Of the C library it asks for no version, and for few functions.
    "linux-x86_64": "manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64",
    "linux-aarch64": "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64",
}
_NEEDS = [
    "numpy>=2.0",
    "psutil>=5.9",
    "typer>=0.26,<0.29",
    "regex>=2024.5.10",
    "jinja2>=3.1.5",
    "rich>=13.7",
    "prompt_toolkit>=3.0.36",
    "platformdirs>=4",
]
_COMPILER = "numba>=0.61"


class Needs(MetadataHookInterface):  # type: ignore[misc]  # hatchling's plugins are untyped
    """What an installation needs: a compiler only where no library is in the wheel."""

    def update(self, metadata: dict[str, Any]) -> None:
        has_library = bool(os.environ.get("EDGESPEC_PLATFORM"))
        metadata["dependencies"] = _NEEDS if has_library else [*_NEEDS, _COMPILER]


class PlatformWheel(BuildHookInterface):  # type: ignore[misc]  # hatchling's plugins are untyped
    """Adds the library of precompiled kernels, and the tag of its platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory()
        name = os.environ.get("EDGESPEC_PLATFORM", "")
        if not name:
            return
        tag = os.environ.get("EDGESPEC_TAG") or _TAGS[name]
        library = Path(os.environ["EDGESPEC_LIBRARY"]).resolve(strict=True)
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{tag}"
        build_data["force_include"][str(library)] = f"edgespec/system/{library.name}"
        packed = Path(self._folder.name) / PACKED
        packed.write_text(_checked_hash(library), "ascii")
        build_data["force_include"][str(packed)] = f"edgespec/system/{PACKED}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._folder.cleanup()


def _checked_hash(library: Path) -> str:
    """The hash of the sources here, which the library must have been made from."""
    found = source_hash()
    if found.encode("ascii") not in library.read_bytes():
        raise RuntimeError(f"{library} was made from other sources; make it again")
    return found
