"""What `edgespec.load`, `edgespec.plan` and the commands take to open a model."""

# Annotations are real objects here: options are read from them at every start.
import os
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, replace
from typing import Annotated, Self

from edgespec.system.option_fields import Option
from edgespec.system.records import dataclass

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total): stages are "plan", "kernels", "load", "measure", "prefill"."""
SIZES = "2GiB, 512MiB, 50% or auto"


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Which model, in which memory, computed by what, and what drafts for it."""

    model: Annotated[
        str | os.PathLike[str] | None,
        Option(
            "A .gguf file, an ONNX model or a bundled model's name; the default is the bundled "
            "model.",
            metavar="PATH_OR_NAME",
            short="-m",
        ),
    ] = None
    _: KW_ONLY
    memory: Annotated[str | int, Option(f"Maximum resident memory: {SIZES}.", metavar="SIZE")] = (
        "auto"
    )
    backend: Annotated[
        str,
        Option(
            "Backend that runs the model; auto picks the fastest on this machine.",
            metavar="auto|native|llamacpp|onnx|reference",
            tuning=True,
        ),
    ] = "auto"
    provider: Annotated[
        str,
        Option(
            "Execution provider of ONNX Runtime, for ONNX models; others than cpu round "
            "differently and are tried first.",
            metavar="cpu|cuda|directml|coreml|openvino|qnn|xnnpack",
            tuning=True,
        ),
    ] = "cpu"
    threads: Annotated[
        int | None,
        Option("Number of threads; by default one per physical core.", metavar="N", tuning=True),
    ] = None
    power: Annotated[
        str,
        Option(
            "How hard to work the machine: saver uses half of the threads, balanced fewer while it "
            "is too warm for all, full always all.",
            metavar="saver|balanced|full",
        ),
    ] = "balanced"
    context: Annotated[
        int | None, Option("Context length in tokens, prompt and reply together.", metavar="N")
    ] = None
    kv_type: Annotated[
        str,
        Option(
            "KV cache type. int8 halves f16's memory; q4 quarters it and changes the text; auto "
            "uses f16, or int8 if f16 leaves too little context.",
            metavar="auto|f16|int8|q4",
            tuning=True,
        ),
    ] = "auto"
    sequences: Annotated[
        int,
        Option(
            "Maximum number of replies written at once, each with its own context.",
            metavar="N",
            flag="--max-batch",
            tuning=True,
        ),
    ] = 1
    max_nodes: Annotated[
        int | None,
        Option("Maximum tokens verified in one pass, the last accepted one included.", shell=False),
    ] = None
    stream: Annotated[
        str,
        Option(
            "Whether weights that do not fit into memory are read from disk in every pass.",
            metavar="auto|off",
        ),
    ] = "auto"
    drafters: Annotated[
        str | Sequence[str],
        Option(
            "Drafters to use: auto, none or a list such as suffix-automaton,mtp.",
            metavar="auto|none|LIST",
            tuning=True,
        ),
    ] = "auto"
    store: Annotated[
        str | os.PathLike[str] | None,
        Option("Datastore for the hierarchy drafter.", metavar="FILE", tuning=True),
    ] = None
    learn: Annotated[
        bool,
        Option(
            "Keep what replies say, in a private file of limited size, so that drafts of the next "
            "run can use it; `edgespec forget` deletes it."
        ),
    ] = False
    prompt_cache: Annotated[
        str | int,
        Option(
            "Maximum size of all prompts kept on disk, with their replies, so that other processes "
            "need not compute them again; off keeps none.",
            metavar="SIZE|off",
        ),
    ] = "off"
    draft_model: Annotated[
        str | os.PathLike[str] | None,
        Option(
            "Smaller model with the same vocabulary that drafts for this one, or a draft head "
            "trained for it (EAGLE-3, Gemma 4's assistant).",
            metavar="FILE",
            tuning=True,
        ),
    ] = None
    draft_backend: Annotated[
        str,
        Option(
            "Backend of the draft model; auto prefers native.",
            metavar="auto|native|llamacpp|onnx",
            tuning=True,
        ),
    ] = "auto"
    draft_window: Annotated[
        str | int,
        Option(
            "How many of the last tokens of a long text the draft model keeps; off keeps all.",
            metavar="N|off",
            tuning=True,
        ),
    ] = "off"
    overlap: Annotated[
        str,
        Option(
            "Whether the draft model drafts while the model verifies; auto does so if measured to "
            "be faster.",
            metavar="auto|on|off",
            tuning=True,
        ),
    ] = "auto"
    vram: Annotated[
        str | int,
        Option(
            "Maximum memory used on GPUs and workers; auto leaves a reserve on GPUs, 0 uses none.",
            metavar="SIZE",
            tuning=True,
        ),
    ] = "auto"
    cpu_moe: Annotated[
        str | int,
        Option(
            "Keep experts of a mixture of experts in this machine's memory while the rest of their "
            "layers is on a device: those of all layers, of the first N, or off; auto decides by "
            "what devices would read.",
            metavar="auto|off|all|N",
            tuning=True,
        ),
    ] = "auto"
    workers: Annotated[
        str | Sequence[str] | None,
        Option(
            "Machines running `edgespec worker` that hold layers of the model.",
            metavar="HOST:PORT,...",
            tuning=True,
        ),
    ] = None
    key_file: Annotated[
        str | os.PathLike[str] | None,
        Option("Key of the workers, made by `edgespec worker --new-key`.", metavar="FILE"),
    ] = None
    isolate: Annotated[
        str,
        Option(
            "Whether llama.cpp or ONNX Runtime runs in a process that reaches only the model's "
            "files; auto: until it has run a file once.",
            metavar="auto|on|off",
        ),
    ] = "auto"
    progress: Annotated[
        Progress | None,
        Option("Called with (stage, done, total) while something takes time.", shell=False),
    ] = None

    def without_drafts(self) -> Self:
        """The same, but nothing drafts: one token at a time."""
        return replace(
            self,
            drafters="none",
            store=None,
            draft_model=None,
            draft_backend="auto",
            draft_window="off",
            overlap="off",
        )
