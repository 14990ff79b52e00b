"""T(n) of a model: the time of one forward pass over n tokens on top of a filled context, and how
much that pass reads and multiplies.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Self

from edgespec.backends.base import Target
from edgespec.backends.passes import TokenTree
from edgespec.memory.kv.arena import BLOCK, LATENT, KvLayout
from edgespec.memory.plan.plan import Plan
from edgespec.models.file import ModelFile
from edgespec.models.spec import TensorInfo
from edgespec.system.records import dataclass

WARM_UP_S = 0.03
"""At the start of a turn threads wake up, often on one processor, and are spread out only then."""
LEAST_S = 0.02
LEAST_PASSES = 4
"""A turn ends when this long and this often was measured."""


def token_at(place: int, vocab_size: int) -> int:
    """The token every engine is given at a position: any will do, but the same for all."""
    return 3 + (37 * place + 5) % (vocab_size - 3)


def tokens(first: int, count: int, vocab_size: int) -> list[int]:
    """The tokens at `count` positions from `first` on."""
    return [token_at(place, vocab_size) for place in range(first, first + count)]


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def turn(once: Callable[[], float]) -> list[float]:
    """The seconds of some passes, `once` each, after others that warm up: one turn's measures."""
    warming = 0.0
    while warming < WARM_UP_S:
        warming += once()
    found: list[float] = []
    while len(found) < LEAST_PASSES or sum(found) < LEAST_S:
        found.append(once())
    return found


def pass_seconds(target: Target, n: int) -> list[float]:
    """Seconds of passes over n tokens, with logits for all, on top of what is committed."""
    tree = TokenTree.chain(tokens(target.own.length, n, target.spec.vocab_size))
    return turn(lambda: timed(lambda: target.own.forward(tree)))


def matrices(file: ModelFile) -> tuple[TensorInfo, ...]:
    """The matrices that a forward pass multiplies with, the head last as it comes in the file.

    The embedding is one of them only where it is the head too.
    """
    head = "token_embd.weight" if file.spec.tied_embeddings else "output.weight"
    return tuple(
        info
        for name, info in file.tensors.items()
        if len(info.shape) == 2 and (name.startswith("blk.") or name == head)
    )


@dataclass(frozen=True, slots=True)
class Work:
    """What one forward pass has to do at least, whatever computes it."""

    weight_bytes: int
    """Of the matrices, as the file holds them."""
    kv_bytes: int
    """Of the committed keys and values."""
    multiplications: int
    """With weights, for each token; those of attention are not counted."""
    floats: bool
    """Most of them are with F32, F16 or BF16 weights."""

    @classmethod
    def of(cls, file: ModelFile, plan: Plan, context: int) -> Self:
        spec, parts = file.spec, matrices(file)
        kept_as = LATENT if spec.keeps_latents else plan.kv_type
        block_bytes = KvLayout.of(kept_as, spec.head_dim).head_bytes
        counts = {info.name: math.prod(info.shape) for info in parts}
        with_floats = sum(counts[info.name] for info in parts if info.type.block_size == 1)
        total = sum(counts.values())
        return cls(
            weight_bytes=sum(info.size_bytes for info in parts),
            kv_bytes=spec.num_layers * spec.num_kv_heads * block_bytes * context // BLOCK,
            multiplications=total,
            floats=2 * with_floats > total,
        )

    @property
    def read_bytes(self) -> int:
        """What a pass reads, however many tokens it is over."""
        return self.weight_bytes + self.kv_bytes


class OpenModel:
    """A model in the native backend with `context` tokens in its cache; a context manager.

    Raises BudgetError, ModelFileError and OptionError as `edgespec.load` does.
    """

    def __init__(
        self,
        path: str | None,
        *,
        threads: int | None,
        context: int,
        max_nodes: int,
        progress: Callable[[str, int, int], None],
    ) -> None:
        from edgespec.backends import registry as backends
        from edgespec.loading.load import plan
        from edgespec.loading.warm_up import warm_up
        from edgespec.models.open_model import open_model
        from edgespec.models.registry import resolve

        self.plan = plan(
            path, backend="native", threads=threads, context=context + max_nodes,
            max_nodes=max_nodes, drafters="none",
        )  # fmt: skip
        self.file = open_model(resolve(path))
        try:
            self.work = Work.of(self.file, self.plan, context)
            progress("kernels", 0, 1)
            warm_up("native", backends.compiled_for("native", self.file))
            progress("kernels", 1, 1)
            self.target = backends.open_target(self.file, self.plan, partial(progress, "load"))
            progress("load", 1, 1)
            filling = tokens(0, context, self.file.spec.vocab_size)
            self.target.own.prefill(filling, progress=partial(progress, "prefill"))
        except BaseException:
            self.file.close()
            raise

    def seconds(self, n: int) -> Sequence[float]:
        """Seconds of passes over n tokens."""
        return pass_seconds(self.target, n)

    def close(self) -> None:
        self.target.close()
        self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
