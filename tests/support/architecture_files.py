"""Files of every architecture's random model, and what the native backend says about each."""

from __future__ import annotations

from pathlib import Path

from edgespec.backends.native.limits import refusal
from edgespec.models.open_model import open_model
from tests.support import llama_peer
from tests.support.random_models import MODELS, write
from tests.support.random_models.recipe import WIDTH

WRITTEN = ("F32", "F16")
"""Types of files that are written as they are; the others llama.cpp's quantiser makes of F32."""
LARGE = 2048
"""Embedding width of models whose weights outweigh the interpreter: 90 to 280 MB in F16."""
LARGE_MODELS = ("gemma3", "gpt-oss", "qwen35", "granitehybrid", "qwen3moe", "gemma4")


def model_file(folder: Path, name: str, kind: str, *, written: bool = False) -> Path:
    """The model of an architecture with matrices of a type, written unless it is there.

    `written` spares the quantiser, which does not make all types: what the gguf package does not
    make either is random blocks. Raises PeerError, PeerMissing where llama.cpp cannot quantise it.
    """
    path = folder / f"{name}-{kind}{'-written' * written}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".part")
        if written or kind in WRITTEN:
            write(MODELS[name](), draft, type=kind)
        else:
            llama_peer.quantise(model_file(folder, name, "F32"), draft, kind, threads=1)
        draft.rename(path)
    return path


def large_file(folder: Path, name: str) -> Path:
    """The same architecture LARGE wide, in F16."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{LARGE}.gguf"
    if not path.exists():
        token = WIDTH.set(LARGE)
        try:
            write(MODELS[name](), path, type="F16")
        finally:
            WIDTH.reset(token)
    return path


def native_refusal(path: Path) -> str:
    """The sentence with which the native backend refuses a file, "" when it runs it."""
    with open_model(path, any_engine=True) as file:
        return refusal(file.spec, file.tensors.values())
