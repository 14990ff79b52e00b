"""Backends by name; each is imported only when it is opened."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.backends.native.code_parts import Compiled, code_parts
from edgespec.errors import BackendError, OptionError, UnsupportedModelError
from edgespec.memory.plan.native_sizes import turned_mixers, turned_type
from edgespec.memory.plan.settings import CHOSEN_KV_TYPES
from edgespec.system.records import dataclass

if TYPE_CHECKING:
    from edgespec.backends.base import Target
    from edgespec.backends.onnx.provider_trial import Trial
    from edgespec.backends.passes import Progress
    from edgespec.memory.plan.external_engine import Ask, EngineBytes
    from edgespec.memory.plan.placement import Device
    from edgespec.memory.plan.plan import Plan
    from edgespec.memory.plan.settings import Settings
    from edgespec.models.adapter import Adapter
    from edgespec.models.file import ModelFile
    from edgespec.models.spec import TensorInfo

NAMES = ("native", "llamacpp", "onnx", "reference")


@dataclass(frozen=True, slots=True)
class Offer:
    """The backends that can run a model, and what keeps the others from it."""

    names: tuple[str, ...]
    """At least one; the first is taken where nothing speaks for another."""
    refused: Mapping[str, str]
    """Why not, by name; for a backend that is not installed, what to type."""
    reasons: tuple[str, ...] = ()
    """What a plan says when there is nothing to choose."""


def offer(name: str, file: ModelFile) -> Offer:
    """The backends for a name the user gave; "auto" may be several, to be compared by speed.

    Raises OptionError for a name that means nothing, UnsupportedModelError for a model that the
    backend cannot run, BackendError for a backend that is not installed.
    """
    if name not in ("auto", *NAMES):
        raise OptionError(f"no backend is called {name!r}; choose auto, {', '.join(NAMES)}")
    if name == "onnx" or file.format == "onnx":
        from edgespec.backends.onnx.session_memory import choose_onnx

        return Offer(("onnx",), {}, (choose_onnx(name, file),))
    from edgespec.backends.llamacpp.library import missing

    absent = missing()
    if name == "llamacpp":
        if absent:
            raise BackendError(f"the llamacpp backend was asked for and {absent}")
        return Offer((name,), {}, ("backend llamacpp: as asked",))
    why_not = _own_refusal("native" if name == "auto" else name, file)
    if not why_not:
        if name == "auto":
            return _several(absent)
        return Offer((name,), {}, (f"backend {name}: as asked",))
    if absent:
        raise UnsupportedModelError(f"{why_not}; llama.cpp may run it: {absent}")
    if name != "auto":
        raise UnsupportedModelError(f"{why_not}; llama.cpp may run it: --backend llamacpp")
    reasons = ("backend llamacpp: runs this model", f"not native: {why_not}")
    return Offer(("llamacpp",), {"native": why_not}, reasons)


def offer_with_devices(name: str, file: ModelFile) -> Offer:
    """The same where layers are to go to GPUs or workers, which llama.cpp alone does."""
    if name not in ("auto", "llamacpp") or file.format != "gguf":
        raise OptionError(
            f"--vram and --workers place layers of .gguf models by the llamacpp backend, and "
            f"backend {name} was asked for {file.path.name}; use --backend llamacpp, or leave them "
            "out"
        )
    offered = offer("llamacpp", file)
    return replace(offered, reasons=("backend llamacpp: the one that uses other devices",))


def _several(absent: str) -> Offer:
    """For a model that the native backend runs; llama.cpp runs what that does."""
    if absent:
        return Offer(("native",), {"llamacpp": absent}, ("backend native: runs this model",))
    return Offer(("native", "llamacpp"), {})


def _own_refusal(name: str, file: ModelFile) -> str:
    """Why one of our own backends cannot run a model, "" when it can."""
    from edgespec.backends.native.limits import refusal

    why_not = (
        file.spec.refusal if name == "reference" else refusal(file.spec, file.tensors.values())
    )
    return why_not or file.tokenizer_refusal


@contextmanager
def survey(
    name: str,
    file: ModelFile,
    devices: Sequence[Device] = (),
    *,
    mapped: bool = False,
    layers: int | None = None,
    isolated: bool = False,
    trial: Trial | None = None,
    cpu_moe: int | None = 0,
) -> Iterator[Ask | None]:
    """For a backend that counts its own memory, who to ask; None for the others.

    llama.cpp is asked about weights used where they lie with `mapped`, and with `layers` about the
    first part of a model in two files. `isolated` counts a process of its own, `trial` what one of
    ONNX Runtime's providers takes. The experts of `cpu_moe` layers stay with this process whatever
    devices have the layers; None lets sizes decide.

    Raises ModelFileError for a file that its engine refuses, BackendError when it does not run.
    """
    if name == "llamacpp":
        from edgespec.backends.llamacpp.memory_need import ask_engine

        with ask_engine(file, devices, mapped=mapped, layers=layers, cpu_moe=cpu_moe) as ask:
            yield _with_process(ask, file) if isolated else ask
    elif name == "onnx":
        from edgespec.backends.onnx.session_memory import ask_onnx

        onnx = ask_onnx(file, trial)
        yield _with_process(onnx, file) if isolated else onnx
    else:
        yield None


def _with_process(ask: Ask, file: ModelFile) -> Ask:
    """What an engine holds that has a process for itself."""
    from edgespec.backends.isolated.target import process_bytes

    def asked(settings: Settings, threads: int) -> EngineBytes:
        rows = 2 * 4 * settings.max_nodes * file.spec.vocab_size  # in both processes
        return replace(ask(settings, threads), process=process_bytes() + rows)

    return asked


def notes(name: str, used: Collection[str] = ()) -> tuple[str, ...]:
    """What a plan that uses these devices should say of a backend on this machine."""
    if name != "llamacpp":
        return ()
    from edgespec.backends.llamacpp.probe import probed
    from edgespec.backends.llamacpp.remote.devices import unused_gpus

    return tuple(filter(None, [probed().note(), unused_gpus(used)]))


def try_provider(
    name: str, file: ModelFile, provider: str, threads: int, memory_bytes: int
) -> Trial | None:
    """What a backend's provider takes for a file, tried in a process that may allocate so much;
    None where nothing else than the processor was asked for. Raises BackendError.
    """
    if name != "onnx" or provider == "cpu":
        return None
    from edgespec.backends.onnx.provider_trial import trial_of
    from edgespec.models.onnx.folder import OnnxFile

    assert isinstance(file, OnnxFile)
    return trial_of(file, provider, threads, memory_bytes)


def is_foreign(name: str) -> bool:
    """Whether a backend runs an engine of others."""
    return name in ("llamacpp", "onnx")


def is_new(name: str, file: ModelFile) -> bool:
    """Whether a foreign engine has yet to run a file behind the wall, where there is one."""
    from edgespec.backends.isolated import known

    return sys.platform.startswith("linux") and not known.is_known(file.path, name)


def may_abort(name: str) -> bool:
    """Whether a backend's library may end the process over a damaged file."""
    return name == "llamacpp"


def version(name: str) -> str:
    """The version of a backend's library; "" of our own, which have this package's."""
    if name == "onnx":
        from edgespec.backends.onnx import runtime_library

        return runtime_library.version()
    if name != "llamacpp":
        return ""
    from edgespec.backends.llamacpp import library

    return library.version()


def compiles(name: str) -> bool:
    """Whether a backend's passes need code that is compiled at a first start."""
    return name == "native"


def compiled_apart(name: str, kv_type: str) -> str:
    """A KV type whose code a first start does not compile unless asked for it, else ""."""
    return kv_type if compiles(name) and kv_type not in ("auto", *CHOSEN_KV_TYPES) else ""


def compiled_for(
    name: str, file: ModelFile, more: Iterable[TensorInfo] = ()
) -> frozenset[Compiled]:
    """What of a model decides which code is compiled for a backend: types of its matrices, and of
    those of `more` tensors, and parts that few models have.
    """
    if not compiles(name):
        return frozenset()
    tensors = (*file.tensors.values(), *more)
    types = {info.type for info in tensors if len(info.shape) > 1}
    turned = turned_mixers(file.spec)
    types |= {turned_type(file.tensors[own.key_up.tensor].type) for own in turned}
    return code_parts(file.spec) | types


def warm_up(name: str, kinds: Iterable[Compiled], kv_type: str = "f16") -> None:
    """Compile what a backend needs for `compiled_for` and KV, or load it from the cache."""
    if compiles(name):
        from edgespec.backends.native.compile_kernels import warm_up as warm_up_native

        warm_up_native(kinds, kv_type)


def open_target(
    file: ModelFile,
    plan: Plan,
    progress: Progress | None = None,
    adapter: Adapter | None = None,
) -> Target:
    """Load a model into the backend its plan names, with the adapter of its early exits."""
    if plan.isolated:
        from edgespec.backends.isolated.target import IsolatedTarget

        return IsolatedTarget(file, plan, progress)
    if plan.backend == "llamacpp" and plan.devices:
        from edgespec.backends.llamacpp.remote.offloaded import OffloadedTarget

        return OffloadedTarget(file, plan, progress)
    if plan.backend == "llamacpp":
        from edgespec.backends.llamacpp.target import LlamaTarget

        return LlamaTarget(file, plan, progress, mapped=plan.mapped)
    if plan.backend == "onnx":
        from edgespec.backends.onnx.target import OnnxTarget

        return OnnxTarget(file, plan, progress)
    if plan.backend == "reference":
        from edgespec.backends.reference import ReferenceTarget

        return ReferenceTarget(file, plan, progress)
    from edgespec.backends.native.target import NativeTarget

    return NativeTarget(file, plan, progress, adapter)
