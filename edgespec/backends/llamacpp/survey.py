"""What llama.cpp would allocate for a file, asked of llama.cpp itself without reading a tensor.

In a process of its own, because a file that the library does not like may end the process with an
assertion: then that is an error here. It is also how such files are told before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any, Self

from edgespec.backends.llamacpp.library import library
from edgespec.backends.llamacpp.model import Context, ContextSettings, Model
from edgespec.backends.llamacpp.remote.offload import Offload
from edgespec.errors import BackendError, EdgeSpecError, ModelFileError, UnsupportedModelError
from edgespec.memory.plan.external_engine import EngineBytes
from edgespec.memory.plan.settings import Settings
from edgespec.system.child_process import Child, PeerError, serve
from edgespec.system.records import dataclass
from edgespec.system.resident_memory import resident_bytes
from edgespec.system.wall import folders_of

_ERRORS = {kind.__name__: kind for kind in (BackendError, ModelFileError, UnsupportedModelError)}


def context_settings(settings: Settings, threads: int) -> ContextSettings:
    """A context for what the planner wants to know about."""
    return ContextSettings(
        context=settings.context,
        rows=max(settings.prefill_chunk, settings.max_nodes),
        nodes=settings.max_nodes,
        threads=threads,
        kv_type=settings.kv_type,
        texts=settings.sequences,
    )


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one session would allocate, in bytes."""

    cache: int
    layer_cache: int
    """Of one layer at most."""
    compute: dict[str, int] = field(default_factory=dict)
    """By buffer."""
    devices: tuple[str, ...] = ()
    """Names of the buffers of the devices of an offload, in its order."""


class Survey:
    """Questions about one file; a context manager.

    Raises ModelFileError for a file that llama.cpp refuses or that makes it abort, BackendError
    when the library cannot be used at all.
    """

    def __init__(
        self, path: Path, *, extra_buffers: bool, layers: int | None = None, offloads: bool = False
    ) -> None:
        """`layers` are those of a model's first part alone, None the whole file's. Who is to be
        asked about other devices, with `offloads`, reaches them; else nothing but the file.
        """
        request = {
            "path": str(path),
            "extra_buffers": extra_buffers,
            "layers": layers,
            "enclosed": not offloads,
        }
        self._path = path
        try:
            self._child = Child(
                __name__, request, name="llama.cpp", GGML_NO_BACKTRACE="1", OMP_NUM_THREADS="1"
            )
        except PeerError as error:
            raise self._unusable(error) from None
        self._answers: dict[tuple[ContextSettings, Offload | None], Allocation] = {}
        facts = self._told(self._child.greeting)
        self.has_state: bool = facts["has_state"]
        self._fixed = EngineBytes(
            library=facts["library"], vocabulary=facts["vocabulary"], copies_head=facts["repacks"]
        )

    def bytes_of(self, settings: ContextSettings) -> EngineBytes:
        """What a session with these settings allocates."""
        found = self.allocation(settings)
        return replace(self._fixed, cache=found.cache, compute=sum(found.compute.values()))

    def allocation(self, settings: ContextSettings, offload: Offload | None = None) -> Allocation:
        """The same by where it is, with layers on other devices if wanted."""
        found = self._answers.get((settings, offload))
        if found is None:
            question = {"settings": asdict(settings), "offload": offload and asdict(offload)}
            try:
                answer = self._told(self._child.ask(question))
            except PeerError as error:
                raise self._unusable(error) from None
            answer["devices"] = tuple(answer["devices"])
            found = self._answers[settings, offload] = Allocation(**answer)
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
        layers = request["layers"]
        model = Model(opened, path, extra_buffers=extra, allocate=False, layers=layers)
    except EdgeSpecError as error:
        return _error(error), _error
    greeting = {
        "library": max(0, imported - start),
        "vocabulary": max(0, resident_bytes() - imported),
        "repacks": any(name != "CPU" for name in model.buffers),
        "has_state": model.has_state,
    }

    models = {"": model}

    def opened_with(offload: Any) -> Model:
        """The model as these devices would have it; the last two are kept."""
        key = "" if offload is None else repr(offload)
        if key not in models:
            for other in [name for name in models if name]:
                models.pop(other).close()
            models[key] = Model(
                opened,
                path,
                extra_buffers=extra,
                allocate=False,
                offload=Offload.from_json(offload),
            )
        return models[key]

    def answer(question: Any) -> Any:
        try:
            model = opened_with(question["offload"])
            context = Context(model, ContextSettings(**question["settings"]))
        except EdgeSpecError as error:
            return _error(error)
        found = asdict(
            Allocation(
                context.cache_bytes,
                context.layer_cache_bytes,
                context.compute,
                model.devices.buffer_names(),
            )
        )
        context.close()
        return found

    return greeting, answer


def _error(error: EdgeSpecError) -> dict[str, str]:
    known = next(name for name, kind in _ERRORS.items() if type(error) is kind)
    return {"error": known, "message": str(error)}


def _reads(request: Any) -> list[Path] | None:
    return folders_of(Path(request["path"])) if request["enclosed"] else None


if __name__ == "__main__":
    serve(_start, _reads)
