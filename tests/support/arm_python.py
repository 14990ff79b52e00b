"""`python -m tests.support.arm_python build`, then `test`, or `run ARGUMENTS`: a Python for ARM.

Debian's, unpacked below build/arm64 and run by qemu-user, with the wheels that ARM machines get
from the package index. Our own is made here, with precompiled kernels; no compiler is there.
Needs Debian's apt-get (not as root), qemu-user, gcc-aarch64-linux-gnu and libc6-dev-arm64-cross.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "build" / "arm64"
PYTHON = PLACE / "bin" / "python3"
LIBRARY = ROOT / "build" / "precompiled" / "linux-aarch64" / "_kernels.abi3.so"
DEBIAN = (
    *(
        "libc6",
        "libgcc-s1",
        "libstdc++6",
        "zlib1g",
        "libssl3",
        "libexpat1",
        "libffi8",
        "libbz2-1.0",
    ),
    *("liblzma5", "libuuid1", "libsqlite3-0", "libncursesw6", "libtinfo6", "libreadline8"),
    *("libcrypt1", "libpython3.11-minimal", "python3.11-minimal", "libpython3.11-stdlib"),
)
WHEELS = (
    *("numpy", "psutil", "regex", "jinja2", "typer<0.29", "rich", "prompt_toolkit", "platformdirs"),
    *("pytest", "hypothesis", "gguf"),
)
TESTS = ("tests/control", "tests/system")
"""Tests of which few compile; those say so."""
PLATFORMS = ("manylinux2014_aarch64", "manylinux_2_28_aarch64", "any")
_WRAPPER = """#!/bin/sh
exec qemu-aarch64 -L {root} {root}/usr/bin/python3.11 "$@"
"""
_SITE = """import sys
sys.executable = {python!r}  # what children are started with: the emulator and Python
"""


def build() -> None:
    """Bring everything up to date; what is there already stays."""
    PLACE.mkdir(parents=True, exist_ok=True)
    if not (PLACE / "root").is_dir():
        _unpack(PLACE / "root")
    if not (PLACE / "site").is_dir():
        _install(PLACE / "site", *WHEELS)
    if not _is_current(LIBRARY):
        made = [sys.executable, "-m", "edgespec.system.precompile", "--platform", "linux-aarch64"]
        _do(*made, "--output", LIBRARY)
    wheels = PLACE / "dist"
    shutil.rmtree(wheels, ignore_errors=True)
    names = {"EDGESPEC_PLATFORM": "linux-aarch64", "EDGESPEC_LIBRARY": str(LIBRARY)}
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    _do(*pip, "wheel", "--no-deps", "--wheel-dir", wheels, ROOT, **names)
    for old in (PLACE / "site").glob("edgespec*"):
        shutil.rmtree(old)
    _install(PLACE / "site", "--no-deps", *wheels.glob("*.whl"))
    for name in ("tests", "pyproject.toml", "hatch_build.py"):
        _copy(ROOT / name, PLACE / "site" / name)
    (PLACE / "site" / "sitecustomize.py").write_text(_SITE.format(python=str(PYTHON)), "utf-8")
    PYTHON.parent.mkdir(exist_ok=True)
    PYTHON.write_text(_WRAPPER.format(root=PLACE / "root"), "utf-8")
    PYTHON.chmod(0o755)


def _copy(source: Path, place: Path) -> None:
    """Tests lie beside the package that they test, as in a checkout."""
    if source.is_file():
        shutil.copyfile(source, place)
        return
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__"))


def run(*arguments: str) -> NoReturn:
    """Become the emulator with Python."""
    os.chdir(PLACE / "site")
    os.execve(PYTHON, [str(PYTHON), *arguments], environment() | {"EDGESPEC_KERNELS": "library"})


def environment() -> dict[str, str]:
    """What programs run with there."""
    unset = ("EDGESPEC_KERNELS", "EDGESPEC_ISA", "EDGESPEC_CONFIG")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    return kept | {
        "PYTHONPATH": str(PLACE / "site"),
        "EDGESPEC_CACHE": str(PLACE / "cache"),
        "EDGESPEC_DATA": str(PLACE / "data"),
    }


def _unpack(root: Path) -> None:
    """Debian's packages, by an apt-get that knows nothing of this machine's."""
    state = root.with_name("apt")
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    settings = root.with_name("apt.conf")
    settings.write_text(
        'APT::Architecture "arm64";\nAPT::Architectures { "arm64"; };\n'
        f'Dir::State "{state}/state";\nDir::State::status "{state}/status";\n'
        f'Dir::Cache "{state}/cache";\n',
        "utf-8",
    )
    apt = {"APT_CONFIG": str(settings)}
    _do("apt-get", "--quiet", "update", **apt)
    _do("apt-get", "--quiet", "download", *DEBIAN, cwd=state, **apt)
    for package in sorted(state.glob("*.deb")):
        _do("dpkg", "-x", package, root)


def _install(site: Path, *what: object) -> None:
    tags = [part for platform in PLATFORMS for part in ("--platform", platform)]
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install")
    options = ("--target", site, "--python-version", "3.11", "--only-binary=:all:")
    _do(*pip, *options, *tags, *what)


def _is_current(library: Path) -> bool:
    from edgespec.system.sources import source_hash

    return library.exists() and source_hash().encode("ascii") in library.read_bytes()


def _do(*command: object, cwd: Path = ROOT, **variables: str) -> None:
    words = [str(part) for part in command]
    subprocess.run(words, cwd=cwd, env=os.environ | variables, check=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["build"]:
        build()
    elif sys.argv[1:2] == ["run"]:
        run(*sys.argv[2:])
    elif sys.argv[1:2] == ["test"]:
        run("-m", "pytest", "-m", "not slow", "-p", "no:cacheprovider", *(sys.argv[2:] or TESTS))
    else:
        sys.exit(__doc__)
