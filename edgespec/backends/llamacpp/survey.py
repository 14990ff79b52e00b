"""What llama.cpp would allocate for a file, asked of llama.cpp itself without reading a tensor.

In a process of its own, because a file that the library does not like may end the process with an
assertion: then that is an error here. It is also how such files are told before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

from edgespec.backends.llamacpp.library import library
from edgespec.backends.llamacpp.model import Context, ContextSettings, Model
from edgespec.child import Child, PeerError, serve
from edgespec.errors import BackendError, EdgeSpecError, ModelFileError, UnsupportedModelError
from edgespec.memory.foreign import EngineBytes
from edgespec.memory.monitor import resident_bytes

_ERRORS = {kind.__name__: kind for kind in (BackendError, ModelFileError, UnsupportedModelError)}


class Survey:
    """Questions about one file; a context manager.

    Raises ModelFileError for a file that llama.cpp refuses or that makes it abort, BackendError
    when the library cannot be used at all.
    """

    def __init__(self, path: Path, *, extra_buffers: bool) -> None:
        request = {"path": str(path), "extra_buffers": extra_buffers}
        self._path = path
        try:
            self._child = Child(
                __name__, request, name="llama.cpp", GGML_NO_BACKTRACE="1", OMP_NUM_THREADS="1"
            )
        except PeerError as error:
            raise self._unusable(error) from None
        self._answers: dict[ContextSettings, EngineBytes] = {}
        facts = self._told(self._child.greeting)
        self.has_state: bool = facts["has_state"]
        self._fixed = EngineBytes(
            library=facts["library"], vocabulary=facts["vocabulary"], copies_head=facts["repacks"]
        )

    def bytes_of(self, settings: ContextSettings) -> EngineBytes:
        """What a session with these settings allocates."""
        found = self._answers.get(settings)
        if found is None:
            try:
                answer = self._told(self._child.ask(asdict(settings)))
            except PeerError as error:
                raise self._unusable(error) from None
            found = self._answers[settings] = replace(
                self._fixed, cache=answer["cache"], compute=answer["compute"]
            )
        return found

    def close(self) -> None:
        self._child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _told(self, answer: Any) -> Any:
        """An answer, or the error that the child met."""
        if "error" in answer:
            self.close()
            raise _ERRORS[answer["error"]](answer["message"])
        return answer

    def _unusable(self, error: PeerError) -> ModelFileError:
        return ModelFileError(
            f"cannot open {self._path}: {error}; the file is damaged, or made for another version "
            "of llama.cpp: convert it again, or update llama-cpp-python"
        )


def _start(request: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The child's side: errors travel as answers."""
    try:
        start = resident_bytes()
        opened = library()
        imported = resident_bytes()
        path, extra = Path(request["path"]), request["extra_buffers"]
        model = Model(opened, path, extra_buffers=extra, allocate=False)
    except EdgeSpecError as error:
        return _error(error), _error
    greeting = {
        "library": max(0, imported - start),
        "vocabulary": max(0, resident_bytes() - imported),
        "repacks": any(name != "CPU" for name in model.buffers),
        "has_state": model.has_state,
    }

    def answer(question: Any) -> Any:
        try:
            context = Context(model, ContextSettings(**question))
        except EdgeSpecError as error:
            return _error(error)
        found = {"cache": context.cache_bytes, "compute": context.compute_bytes}
        context.close()
        return found

    return greeting, answer


def _error(error: EdgeSpecError) -> dict[str, str]:
    known = next(name for name, kind in _ERRORS.items() if type(error) is kind)
    return {"error": known, "message": str(error)}


if __name__ == "__main__":
    serve(_start)
