"""ONNX Runtime's execution providers: by which names they go, and who brings them."""

from __future__ import annotations

from edgespec.backends.onnx.runtime_library import PACKAGE, library, version
from edgespec.errors import BackendError, OptionError
from edgespec.models.file import ModelFile
from edgespec.system.records import dataclass

CPU = "cpu"
"""The default: always there, and what texts and memory of this backend were measured on."""


@dataclass(frozen=True, slots=True)
class Provider:
    """One of them, as ONNX Runtime calls it."""

    title: str
    class_name: str
    package: str
    """What pip installs in place of onnxruntime; "" where its own package or none has it."""
    where: str = ""
    """What else it takes than a package."""
    own_memory: bool = False
    """Its device has memory of its own, which no plan counts."""


PROVIDERS = {
    CPU: Provider("the processor", "CPUExecutionProvider", ""),
    "cuda": Provider("CUDA", "CUDAExecutionProvider", "onnxruntime-gpu", own_memory=True),
    "directml": Provider(
        "DirectML", "DmlExecutionProvider", "onnxruntime-directml", "Windows", own_memory=True
    ),
    "coreml": Provider("Core ML", "CoreMLExecutionProvider", "", "macOS", own_memory=True),
    "openvino": Provider("OpenVINO", "OpenVINOExecutionProvider", "onnxruntime-openvino"),
    "qnn": Provider(
        "QNN", "QNNExecutionProvider", "onnxruntime-qnn", "a Snapdragon", own_memory=True
    ),
    "xnnpack": Provider(
        "XNNPACK", "XnnpackExecutionProvider", "", "a build of your own with --use_xnnpack"
    ),
}


def check_provider(name: str, backend: str, file: ModelFile) -> None:
    """Raise OptionError for a provider that nobody knows, or a model that ONNX Runtime does not
    run; a backend that was asked for by name says itself what it cannot run.
    """
    if name not in PROVIDERS:
        raise OptionError(f"unknown provider {name!r}; choose {', '.join(PROVIDERS)}")
    if name == CPU or file.format == "onnx" or backend == "onnx":
        return
    raise OptionError(
        f"--provider {name} is for ONNX models, and {file.path.name} is none; leave it out, or "
        f"make one: edgespec export {file.path} {file.path.stem}-onnx"
    )


def require(name: str) -> Provider:
    """The provider, if the installed ONNX Runtime has it; raises BackendError with what to type."""
    wanted = PROVIDERS[name]
    there = list(library().get_available_providers())
    if wanted.class_name in there:
        return wanted
    raise BackendError(
        f"--provider {name} was asked for, and {PACKAGE} {version()} here has "
        f"{', '.join(there)} only; {_how_to_get(wanted)}, or leave --provider out"
    )


def _how_to_get(wanted: Provider) -> str:
    on = f" (on {wanted.where})" if wanted.where else ""
    if wanted.package:
        return f"type: pip uninstall {PACKAGE} && pip install {wanted.package}{on}"
    if wanted.class_name == "CoreMLExecutionProvider":
        return f"it comes with {PACKAGE} on {wanted.where}"
    return f"it takes {wanted.where}"


def session_providers(name: str, threads: int) -> list[str | tuple[str, dict[str, str]]]:
    """What a session is opened with; nodes that a provider does not know go to the processor."""
    processor = PROVIDERS[CPU].class_name
    if name == CPU:
        return [processor]
    options: dict[str, str] = {}
    if name == "openvino":  # on the processor, with the arithmetic that the graph asks for
        options = {
            "device_type": "CPU", "precision": "ACCURACY", "num_of_threads": str(threads)
        }  # fmt: skip
    elif name == "cuda":
        options = {"arena_extend_strategy": "kSameAsRequested"}
    elif name == "xnnpack":
        options = {"intra_op_num_threads": str(threads)}
    return [(PROVIDERS[name].class_name, options), processor]
