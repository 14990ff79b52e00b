"""What passes over a large model cost on a backend, from timing a few of its layers.

Two small models are written with the first layers of the model, the second with more of them. What
the second takes is head, fixed costs and layers; what it takes more than the first, without the
head, is what further layers take, by their bytes.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections import Counter
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

from edgespec.backends.measure_layers import LayerTimes, layer_times
from edgespec.errors import BackendError
from edgespec.memory.plan.placement import DevicePart
from edgespec.memory.plan.plan import Plan
from edgespec.models.file import ModelFile
from edgespec.models.gguf.few_layers import write_first_layers
from edgespec.models.gguf.splitting import layer_of
from edgespec.models.layers import LayerSpec
from edgespec.system.disk_cache import cache_folder
from edgespec.system.hardware import snapshot
from edgespec.system.size import GIB, MIB
from edgespec.system.whole_file import is_running

_READ_BYTES = 192 * MIB
"""As many layers are timed as read so much in a pass: less would drown in fixed costs."""
_HELD_BYTES = GIB
"""And no more layers than hold so much, where two are enough to hold more."""
_MOST_LAYERS = 32
_LIKENESS = 0.05
"""Kinds of layers have the same shares, to this, in what is timed as in what that stands for."""
_FOLDER = re.compile(r"trial-(\d+)-.*")


class LayerTrial:
    """Small models of a file's first layers, written when they are first timed and then removed."""

    def __init__(self, file: ModelFile) -> None:
        self._file = file
        self._folder: Path | None = None
        self._paths: list[Path] = []

    @property
    def layers(self) -> int:
        """How many layers are timed."""
        return self._counts[1]

    def curve(self, plan: Plan) -> dict[int, float]:
        """Seconds of a pass over the whole model by number of nodes, by this plan's backend.

        Raises EdgeSpecError when layers could not be timed, and says why.
        """
        if not plan.devices:
            few, more = self._times(plan)
            return self.whole(few, more)
        here, costs = sum(self._sizes), []
        for part in chain.from_iterable(map(_alike, plan.devices)):
            size = sum(self._sizes[part.first_layer :][: part.num_layers])
            here -= size
            if part.head and part.num_layers < self.layers:
                raise BackendError(f"{part.name} has fewer of them than are timed")
            few, more = self._times(replace(plan, devices=(part,)))
            costs.append((self.whole if part.head else self._further)(few, more, size))
        if here:
            few, more = self._times(replace(plan, devices=(), gpu_layers=0))
            costs.append(self._further(few, more, here))
        return {size: sum(one[size] for one in costs) for size in costs[0]}

    def whole(
        self, few: LayerTimes, more: LayerTimes, size_bytes: int | None = None
    ) -> dict[int, float]:
        """The same from what passes over both small models took, for layers of so many bytes; None
        for all.
        """
        timed, total = sum(self._sizes[: self.layers]), sum(self._sizes)
        further = self._further(few, more, (total if size_bytes is None else size_bytes) - timed)
        return {size: seconds + further[size] for size, seconds in more.whole.items()}

    def _further(self, few: LayerTimes, more: LayerTimes, size_bytes: int) -> dict[int, float]:
        """What further layers of so many bytes take."""
        first, last = self._counts
        share = size_bytes / sum(self._sizes[first:last])
        found = {size: more.headless[size] - few.headless[size] for size in more.whole}
        if min(found.values()) <= 0.0:
            raise BackendError(f"{last} layers took no longer than {first} of them")
        return {size: share * seconds for size, seconds in found.items()}

    def _times(self, plan: Plan) -> list[LayerTimes]:
        return layer_times(self.paths(), plan, plan.budget_bytes - _resident_bytes())

    def paths(self) -> list[Path]:
        """The small models, which are there until this is closed; raises BackendError."""
        if self._paths:
            return self._paths
        spec, path = self._file.spec, self._file.path
        if spec.num_layers < 2 or spec.per_layer_embedding is not None:
            raise BackendError("its layers cannot be taken apart")
        try:
            self._folder = _new_folder()
            for count in self._counts:
                out = self._folder / f"{count}.gguf"
                write_first_layers(path, spec, count, out)
                self._paths.append(out)
        except OSError as error:
            self.close()
            raise BackendError(
                f"cannot write {cache_folder()}: {error.strerror or error}"
            ) from None
        return self._paths

    def fits(self, plan: Plan) -> bool:
        """Whether a process that times layers has room beside this one, inside the budget."""
        left = sum(self._sizes[self.layers :])
        shared = sum(part.weights_bytes for part in plan.devices if part.shared)
        held = plan.planned_bytes - min(left, plan.footprint["weights"] + shared)
        return held + _resident_bytes() <= plan.budget_bytes

    @cached_property
    def _sizes(self) -> list[int]:
        """Bytes of each layer's tensors."""
        sizes = [0] * self._file.spec.num_layers
        for info in self._file.tensors.values():
            if 0 <= layer_of(info) < len(sizes):
                sizes[layer_of(info)] += info.size_bytes
        return sizes

    @cached_property
    def _counts(self) -> tuple[int, int]:
        """How many layers the small models have: kinds of layers are mixed in those that only the
        second has as in all that are left out of the first.
        """
        layers, sizes = self._file.spec.layers, self._sizes
        total, before = Counter[object](), [Counter[object]()]
        for layer, size in zip(layers, sizes, strict=True):
            total[_kind(layer)] += size
        for layer, size in zip(layers[:_MOST_LAYERS], sizes, strict=False):
            before.append(before[-1] + Counter({_kind(layer): size}))
        for last in range(2, len(before)):
            for first in range(1, last):
                if _are_alike(before[last] - before[first], total - before[first]):
                    read = sum(map(_read_bytes, layers[first:last], sizes[first:last]))
                    if read >= _READ_BYTES or sum(sizes[: last + 1]) > _HELD_BYTES:
                        return first, last
        return 1, len(before) - 1

    def close(self) -> None:
        """Remove what was written."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder, self._paths = None, []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _alike(part: DevicePart) -> list[DevicePart]:
    """A device's layers, split where those begin that have their experts there; the head is with
    the most of them, as it makes no difference.
    """
    bare, rest = part.without_experts, part.num_layers - part.without_experts
    if not bare or not rest:
        return [part]
    few = rest < bare
    first = replace(part, num_layers=bare, head=part.head and few)
    middle, head = part.first_layer + bare, part.head and not few
    return [
        first,
        replace(part, first_layer=middle, num_layers=rest, head=head, without_experts=0),
    ]


def _kind(layer: LayerSpec) -> object:
    """What layers have in common that take the same time for the same bytes."""
    shapes = tuple((each.rows, each.columns, each.experts) for each in layer.matrices)
    return type(layer.mixer), type(layer.ffn), shapes


def _are_alike(some: Counter[object], others: Counter[object]) -> bool:
    """Whether kinds have the same shares of the bytes."""
    here, there = some.total() or 1, others.total() or 1
    return all(abs(some[kind] / here - others[kind] / there) <= _LIKENESS for kind in others)


def _read_bytes(layer: LayerSpec, size: int) -> int:
    """What a pass over one node reads of a layer of so many bytes."""
    return size * layer.size // max(1, sum(matrix.size for matrix in layer.matrices))


def _resident_bytes() -> int:
    return snapshot().process_resident_bytes


def _new_folder() -> Path:
    """A private folder in the cache; those of processes that were killed go first."""
    for old in cache_folder().glob("trial-*"):
        found = _FOLDER.fullmatch(old.name)
        if found and not is_running(int(found[1]), old):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"trial-{os.getpid()}-", dir=cache_folder()))
