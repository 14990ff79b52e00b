"""`edgespec doctor`: what this machine and installation are like, and what could be better."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from typing import Any, Literal

from edgespec.errors import EdgeSpecError
from edgespec.memory.plan.budget import Budget
from edgespec.models.registry import resolve
from edgespec.system import precompiled
from edgespec.system.disk_cache import cached_kernels, chosen_folder, unusable
from edgespec.system.hardware import hardware, snapshot
from edgespec.system.records import dataclass
from edgespec.system.size import format_size
from edgespec.terminal.config_file import config_place, read_values
from edgespec.version import __version__

Status = Literal["ok", "absent", "note", "problem"]
_PACKAGES = ("numpy", "regex", "jinja2", "psutil", "typer", "rich", "prompt_toolkit")
_COMPILERS = ("numba", "llvmlite")
_EXTRAS = {"hub": ("huggingface_hub", "downloads"), "bench": ("matplotlib", "`edgespec bench`")}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: a problem keeps EdgeSpec from working, a note could be better, and what
    is absent is for uses of its own.
    """

    name: str
    text: str
    value: Any
    """The same for JSON; sizes are bytes."""
    status: Status = "ok"
    advice: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def examine() -> list[Finding]:
    """Look at everything; nothing is written but an empty file in the cache folder."""
    return [
        *_versions(),
        *_processor(),
        *_memory(),
        *_cache(),
        _prompts(),
        _kernels(),
        _llamacpp(),
        _onnx(),
        *_extras(),
        _devices(),
        _workers(),
        _bundled_model(),
        _configuration(),
        *_environment(),
    ]


def _versions() -> Iterator[Finding]:
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    python = f"{platform.python_implementation()} {platform.python_version()}"
    yield Finding("edgespec", __version__, __version__)
    yield Finding("system", f"{system}, {python}", {"system": system, "python": python})
    found = {name: _version(name) for name in _PACKAGES}
    text = ", ".join(f"{name} {version or 'missing'}" for name, version in found.items())
    missing = [name for name, version in found.items() if version is None]
    if missing:
        advice = f"reinstall EdgeSpec, which needs {', '.join(missing)}"
        yield Finding("packages", text, found, "problem", advice)
    else:
        yield Finding("packages", text, found)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> Iterator[Finding]:
    cpu = hardware()
    quota = "" if cpu.cpu_quota is None else f", limited to {cpu.cpu_quota:g} by a control group"
    threads = cpu.usable_threads()
    yield Finding(
        "processor",
        f"{cpu.cpu_name}: {cpu.physical_cores} cores, {cpu.logical_cores} logical, "
        f"{cpu.allowed_logical} for this process{quota}; {threads} "
        f"thread{'' if threads == 1 else 's'} by default",
        asdict(cpu) | {"threads": threads},
    )
    from edgespec.backends.native.kernels.codegen import isa

    available = isa.available()
    value: dict[str, Any] = {"available": list(available), "extensions": list(cpu.isa)}
    try:
        used = isa.chosen()
    except EdgeSpecError as error:
        advice = "unset EDGESPEC_ISA, or set it to one that is available"
        if not available:
            advice = "use --backend reference, or give the virtual machine its host's CPU features"
        yield Finding("instruction set", str(error), value, "problem", advice)
        return
    value["used"] = used
    text = f"{used}; available: {', '.join(available)}"
    if used != isa.PLAIN:
        yield Finding("instruction set", text, value)
    elif len(available) > 1:
        advice = f"unset EDGESPEC_ISA: {available[0]} is much faster"
        yield Finding("instruction set", text, value, "note", advice)
    else:
        advice = "expect low speed: fast kernels need AVX2 with FMA, or ARM dotprod"
        yield Finding("instruction set", text, value, "note", advice)


def _memory() -> Iterator[Finding]:
    memory = snapshot()
    limit = memory.cgroup_limit_bytes
    limited = "no control group limit" if limit is None else f"limited to {format_size(limit)}"
    yield Finding(
        "memory",
        f"{format_size(memory.free_bytes)} of {format_size(memory.usable_bytes)} free, "
        f"{limited}, {format_size(memory.swap_bytes)} of swap free (never used for plans)",
        asdict(memory),
    )
    try:
        budget = Budget.parse("auto", memory).size_bytes
    except EdgeSpecError as error:
        yield Finding("budget", str(error), None, "problem", "close other programs")
        return
    yield Finding("budget", f"--memory auto is currently {format_size(budget)}", budget)


def _cache() -> Iterator[Finding]:
    folder = chosen_folder()
    problem = unusable(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    compiled = cached_kernels()
    value = {
        "folder": str(folder),
        "bytes": size,
        "writable": not problem,
        "kernels_cached": list(compiled),
    }
    text = f"{folder}, {format_size(size)}"
    if problem:
        advice = "set EDGESPEC_CACHE to a folder of your own, or every start compiles again"
        yield Finding("cache", f"{text}, cannot be used: {problem}", value, "note", advice)
    else:
        yield Finding("cache", f"{text}, writable", value)
    if precompiled.chosen().source == "library":
        return
    if compiled:
        yield Finding("compiled kernels", f"in the cache: {', '.join(compiled)}", list(compiled))
    else:
        advice = "the next start compiles them, which takes some seconds, once"
        yield Finding("compiled kernels", "not in the cache yet", [], "note", advice)


def _prompts() -> Finding:
    """What `--prompt-cache` has kept."""
    from edgespec.memory.kv.prompt_cache import cached_prompts

    count, size = cached_prompts()
    value = {"blocks": count, "bytes": size}
    if not count:
        return Finding("prompt cache", "empty (optional, --prompt-cache SIZE)", value, "absent")
    text = f"{count} block{'' if count == 1 else 's'} of prompts, {format_size(size)}"
    return Finding("prompt cache", f"{text}; `edgespec forget` deletes them", value)


def _kernels() -> Finding:
    """Where machine code comes from, and why."""
    versions = {name: _version(name) for name in _COMPILERS}
    compiler = f"Numba {versions['numba'] or 'is not installed'}"
    value: dict[str, Any] = {"refusal": precompiled.refusal(), **versions}
    try:
        choice = precompiled.chosen()
    except EdgeSpecError as error:
        return Finding("kernels", str(error), value, "problem", "unset EDGESPEC_KERNELS")
    value |= asdict(choice)
    if choice.source == "library":
        return Finding("kernels", f"precompiled: {choice.why} ({compiler})", value)
    if choice.source == "python":
        advice = "unset NUMBA_DISABLE_JIT: nothing is compiled, and all is much slower"
        return Finding("kernels", f"{compiler}, off", value, "problem", advice)
    text = f"compiled here by {compiler}; precompiled kernels: {choice.why}"
    if versions["numba"] is None:
        return Finding("kernels", text, value, "problem", "pip install 'edgespec[jit]'")
    return Finding("kernels", text, value)


def _llamacpp() -> Finding:
    """The llamacpp backend: tried out in a process of its own, unless that was done before."""
    from edgespec.backends.llamacpp import library, probe

    name, why = "backend llamacpp", library.missing()
    value: dict[str, Any] = {
        "installed": not why,
        "version": None if why else library.version(),
    }
    if why:
        text = f"{why} (optional, runs what the native backend cannot)"
        return Finding(name, text, value, "absent")
    found = probe.probed()
    value |= asdict(found)
    text = f"{library.PACKAGE} {library.version()}"
    if not found.runs:
        advice = f"build it without AMX: {probe.REBUILD}"
        return Finding(name, f"{text} does not run: {found.complaint}", value, "note", advice)
    note = found.note()
    if note:
        return Finding(name, text, value, "note", note)
    return Finding(name, f"{text}, runs", value)


def _onnx() -> Finding:
    """The onnx backend, and what writes models for it."""
    from edgespec.backends.onnx import runtime_library

    name, why, writer = "backend onnx", runtime_library.missing(), _version("onnx")
    value = {
        "installed": not why,
        "version": None if why else runtime_library.version(),
        "writer": writer,
    }
    if why:
        return Finding(name, f"{why} (optional, for ONNX models)", value, "absent")
    writes = f"onnx {writer} exports models" if writer else "onnx, to export, is not installed"
    return Finding(name, f"{runtime_library.PACKAGE} {runtime_library.version()}; {writes}", value)


def _devices() -> Finding:
    """What else than the processor could compute, as llama.cpp and ONNX Runtime see it."""
    from edgespec.backends.llamacpp import library
    from edgespec.backends.llamacpp.remote import devices
    from edgespec.backends.onnx import runtime_library as onnx

    value: dict[str, Any] = {"devices": [], "onnx_providers": []}
    with suppress(EdgeSpecError):
        value["onnx_providers"] = list(onnx.library().get_available_providers())
    providers = ", ".join(value["onnx_providers"]) or "none"
    if library.missing():
        text = f"llama.cpp: not installed; ONNX Runtime: {providers}"
        return Finding("devices", text, value, "ok" if value["onnx_providers"] else "absent")
    try:
        found = devices.local_devices()
    except EdgeSpecError as error:
        return Finding("devices", str(error), value, "note", "update the driver")
    value["devices"] = [device._asdict() for device in found]
    names = ", ".join(
        f"{one.kind} {one.name} ({one.description}, {format_size(one.free_bytes)} of "
        f"{format_size(one.total_bytes)} free)"
        for one in found
    )
    return Finding("devices", f"llama.cpp: {names}; ONNX Runtime: {providers}", value)


def _workers() -> Finding:
    """Whether layers can be put on other machines."""
    from edgespec.backends.llamacpp import library

    why = library.missing() or library.missing_rpc()
    text = why or "available: run `edgespec worker` there, and use --workers here"
    return Finding("workers", text, not why, "absent" if why else "ok")


def _extras() -> Iterator[Finding]:
    for extra, (package, use) in _EXTRAS.items():
        version = _version(package)
        text = f"{package} {version}" if version else f"{package} is not installed (optional)"
        status: Status = "ok" if version else "absent"
        yield Finding(f"extra {extra}", f"{text} (used by {use} only)", version, status)


def _bundled_model() -> Finding:
    try:
        path = resolve()
    except EdgeSpecError as error:
        advice = "reinstall EdgeSpec, or always give a --model"
        return Finding("bundled model", str(error), None, "problem", advice)
    size = path.stat().st_size
    text = f"{path.name}, {format_size(size)}"
    return Finding("bundled model", text, {"path": str(path), "bytes": size})


def _configuration() -> Finding:
    place = config_place()
    try:
        values = read_values(place)
    except EdgeSpecError as error:
        return Finding("config", str(error), str(place), "problem", "correct the file")
    if not place.exists():
        return Finding("config", f"no {place} (optional)", None, "absent")
    return Finding("config", f"{place}: {', '.join(values) or 'empty'}", str(place))


def _environment() -> Iterator[Finding]:
    names = sorted(name for name in os.environ if name.startswith(("EDGESPEC_", "NUMBA_")))
    values = {name: os.environ[name] for name in names}
    text = ", ".join(f"{name}={value}" for name, value in values.items())
    yield Finding("environment", text or "no EDGESPEC_ or NUMBA_ variables set", values)
    if sys.flags.optimize:
        yield Finding("python -O", "on", sys.flags.optimize, "note", "it is not needed")
