"""The engines that can be measured beside this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec

from edgespec.errors import OptionError
from edgespec.system.child_process import Child, PeerError
from edgespec.system.hardware import snapshot
from edgespec.system.records import dataclass
from edgespec.system.size import format_size
from edgespec.tools.bench.curve import OpenModel, matrices
from edgespec.tools.bench.machine import package_version


@dataclass(frozen=True, slots=True)
class OpenPeer:
    """An engine that is ready to be asked."""

    process: Child
    read_bytes: int
    """What one of its passes reads."""
    what: str
    """What it computes, for the report."""
    forward: Callable[[int], Sequence[float]]
    """Seconds of passes over n tokens."""


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine by the name `--peers` takes."""

    title: str
    package: str
    """The distribution whose version is told."""
    modules: tuple[str, ...]
    """What must be importable."""
    install: str
    open: Callable[[OpenModel], OpenPeer]

    @property
    def installed(self) -> bool:
        return all(find_spec(name) is not None for name in self.modules)

    @property
    def missing(self) -> str:
        return f"{self.title} is not installed: {self.install}"

    @property
    def version(self) -> str:
        return package_version(self.package)


def _open_llamacpp(model: OpenModel) -> OpenPeer:
    from edgespec.tools.bench.llamacpp import LlamaProcess

    plan, context = model.plan, model.target.own.length
    process = LlamaProcess(model.file.path, plan.threads, plan.context_length)
    return OpenPeer(
        process, model.work.read_bytes, "the same file and context, f16 KV",
        lambda n: process.forward(n, context),
    )  # fmt: skip


def _open_onnx(model: OpenModel) -> OpenPeer:
    from edgespec.tools.bench.onnx_matmuls import BLOCK, OnnxProcess, needed_bytes

    parts = matrices(model.file)
    needed, free = needed_bytes(parts), snapshot().free_bytes
    if needed > free:
        raise PeerError(
            f"ONNX Runtime was left out: its copy of the matrices needs {format_size(needed)} and "
            f"{format_size(free)} is free"
        )
    process = OnnxProcess(parts, model.plan.threads)
    what = (
        "matmuls only, no norms and no attention, of the same shapes with random weights; "
        f"{process.operators}, blocks of {BLOCK}"
    )
    return OpenPeer(process, process.weight_bytes, what, process.forward)


PEERS = {
    "llamacpp": Peer(
        "llama.cpp",
        "llama-cpp-python",
        ("llama_cpp",),
        "pip install llama-cpp-python",
        _open_llamacpp,
    ),
    "onnx": Peer(
        "ONNX Runtime",
        "onnxruntime",
        ("onnxruntime", "onnx"),
        "pip install onnxruntime onnx",
        _open_onnx,
    ),
}


def choose(names: str) -> tuple[str, ...]:
    """The peers that `--peers` asks for: "auto" (all there are), "none", or names by commas.

    Raises OptionError for a name that is not known, PeerError for one that is not installed.
    """
    if names == "auto":
        return tuple(PEERS)
    asked = [] if names == "none" else [name.strip() for name in names.split(",")]
    for name in asked:
        if name not in PEERS:
            known = ", ".join(PEERS)
            raise OptionError(f"no peer is called {name!r}; choose auto, none or some of {known}")
        if not PEERS[name].installed:
            raise PeerError(PEERS[name].missing)
    return tuple(dict.fromkeys(asked))
