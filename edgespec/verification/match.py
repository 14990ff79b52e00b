"""Verification: walk a tree of drafts with the target's own samples.

Every draft here is a function of the text so far, so lossless verification needs no draft
probabilities: at each node the target's own token is drawn from its logits with that position's
noise; a child that holds it is accepted, else it is the bonus token and the walk ends ("Fast
Inference from Transformers via Speculative Decoding", section 2, with a deterministic draft; trees
as in "SpecInfer", section 4). Only visited rows are looked at, and of them, where the backend gives
maxima, only what can win.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from edgespec.backends.passes import TILE, Logits
from edgespec.errors import BackendError
from edgespec.system.jit import kernel
from edgespec.verification.best_tokens import BLOCK, NOT_A_NUMBER, fill_maxima, fill_row
from edgespec.verification.noise import position_key, wrapping
from edgespec.verification.penalty import penalise, unpenalise
from edgespec.verification.rows import sample
from edgespec.verification.sampling import SamplingParams

Settings = tuple[int, float, int, float, float, np.float32, int, np.uint64]
"""Vocabulary size, temperature, top-k, top-p, min-p, repetition penalty and window, seed: a plain
tuple, because a call takes half a microsecond longer for one with names.
"""


@kernel(
    ("float32[:,:]", "int32[:,:]"),
    "int32[:,:]",
    "bool",
    "int32[:]",
    "int16[:]",
    "int64",
    "int64",
    ("int64", "float64", "int64", "float64", "float64", "float32", "int64", "uint64"),
    "int32[:,:]",
    "int32[:]",
    "int32[:]",
    "int64[:]",
    result=("int64", "int64"),
)
def walk(
    rows: tuple[NDArray[np.float32], NDArray[np.int32]],
    maxima: NDArray[np.int32],
    maxima_given: bool,
    tokens: NDArray[np.int32],
    parents: NDArray[np.int16],
    root_position: int,
    num_recent: int,
    settings: Settings,
    window: NDArray[np.int32],
    path: NDArray[np.int32],
    block_max: NDArray[np.int32],
    heap: NDArray[np.int64],
) -> tuple[int, int]:
    """Fill `path` with the accepted nodes; return its length and the bonus token (or a negative
    status). Maxima that are not given are found, one row after the other in the same place.

    `rows` are the logits and their bits, and maxima are bits, because a view that is made in a
    kernel brings 3 MiB of Numba into every process that loads it.
    The first row of `window` int32 [3, tokens] begins with the text's last tokens and takes the
    accepted ones; the others are scratch, as are block_max [blocks] and heap [top_k].
    """
    vocab_size, temperature, top_k, top_p, min_p, penalty, window_size, seed = settings
    logits, bits = rows
    latest, saved = window[0], window[1:]
    node = 0
    depth = 0
    end = num_recent
    path[0] = 0
    while True:
        start = max(0, end - window_size)
        row, row_bits = logits[node][:vocab_size], bits[node][:vocab_size]
        tiles = maxima[node if maxima_given else 0]
        if not maxima_given:
            fill_row(row_bits, tiles)
        if penalty != 1.0:
            penalise(row, row_bits, tiles, latest, start, end, penalty, saved)
        key = position_key(seed, root_position + depth + 1)
        token = sample(row, row_bits, tiles, temperature, top_k, top_p, min_p, key, block_max, heap)
        if penalty != 1.0:
            unpenalise(row_bits, tiles, latest, start, end, saved)
        child = node + 1
        while child < len(tokens) and (parents[child] != node or tokens[child] != token):
            child += 1
        if token < 0 or child >= len(tokens):
            return depth + 1, token
        node = child
        depth += 1
        path[depth] = node
        latest[end] = token
        end += 1


_Bits = tuple[tuple[NDArray[np.float32], NDArray[np.int32]], NDArray[np.int32]]
"""Logits, their bits, those of the maxima."""


class Verdict(NamedTuple):
    """The accepted nodes, the root first, and the target's own token after the last of them."""

    path: list[int]
    bonus: int


class Verifier:
    """Draws the target's tokens and compares drafts with them; owns its scratch buffers."""

    def __init__(self, vocab_size: int, params: SamplingParams, max_nodes: int) -> None:
        self.params = params
        self.vocab_size = vocab_size
        self._num_tiles = -(-vocab_size // TILE)
        self.max_nodes = max_nodes
        """Most nodes of a tree, the root included."""
        heap_size = params.top_k if params.top_k < vocab_size and not params.greedy else 0
        width = params.repetition_window + max_nodes
        self._window = np.zeros((3, width), np.int32)
        self._path = np.zeros(max_nodes, np.int32)
        self._found: NDArray[np.int32] | None = None
        """Maxima of one row, once a backend gave none."""
        self._known: tuple[Logits, Logits | None, _Bits] | None = None
        """The last pass' logits and maxima, and what `_bits` made of them."""
        self._scratch = (
            self._window,
            self._path,
            np.zeros(-(-self._num_tiles // BLOCK), np.int32),
            np.zeros(heap_size, np.int64),
        )
        self._settings: Settings = (
            vocab_size,
            float(params.temperature),
            params.top_k,
            float(params.top_p),
            float(params.min_p),
            np.float32(params.repetition_penalty),
            params.repetition_window,
            np.uint64(params.seed),
        )

    @property
    def window(self) -> int:
        """How many of the text's last tokens `verify` looks at."""
        return self.params.repetition_window if self.params.repetition_penalty != 1.0 else 0

    @property
    def words(
        self,
    ) -> tuple[Settings, tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]]:
        """What `walk` takes of settings, and its scratch but for the path."""
        window, _, block_max, heap = self._scratch
        return self._settings, (window, block_max, heap)

    @property
    def size_bytes(self) -> int:
        """Bytes of the scratch buffers."""
        found = 0 if self._found is None else self._found.nbytes
        return found + sum(buffer.nbytes for buffer in self._scratch)

    def verify(
        self,
        logits: NDArray[np.float32],
        tokens: NDArray[np.int32],
        parents: NDArray[np.int16],
        recent: Sequence[int] | NDArray[np.int32],
        position: int,
        maxima: NDArray[np.float32] | None = None,
    ) -> Verdict:
        """The accepted path of a tree and the token after it.

        logits [n, vocab] f32 (read; penalised in place and put back), tokens int32 [n], parents
        int16 [n]; `recent` are the text's last tokens up to and including the root, at least
        `repetition_window` of them if there are as many; `position` is the root's. `maxima` belong
        to the logits (`Pass.maxima`) and are treated like them; without, they are found here.
        Raises BackendError when a visited row holds NaN or has no finite maximum.
        """
        self._check(logits, maxima, len(tokens))
        num_recent = min(len(recent), self.window)
        if num_recent:
            self._window[0, :num_recent] = recent[-num_recent:]
        rows, tiles = self._bits(logits, maxima)
        with wrapping():
            num_path, bonus = walk(
                rows,
                tiles,
                maxima is not None,
                tokens,
                parents,
                position,
                num_recent,
                self._settings,
                *self._scratch,
            )
        if bonus < 0:
            raise bad_row(position + num_path - 1, bonus)
        return Verdict(self._path[:num_path].tolist() if num_path > 1 else [0], int(bonus))

    def _bits(self, logits: Logits, maxima: Logits | None) -> _Bits:
        """What `walk` takes of a pass; made once for arrays that come again, as a target's do."""
        if self._known is not None and logits is self._known[0] and maxima is self._known[1]:
            return self._known[2]
        whole = _whole_rows(logits)
        tiles = None if maxima is None else _whole_rows(maxima)
        bits = self._row_of_tiles() if tiles is None else tiles.view(np.int32)
        made = (whole, whole.view(np.int32)), bits
        if whole is logits and tiles is maxima:  # copies would grow old
            self._known = logits, maxima, made
        return made

    def _row_of_tiles(self) -> NDArray[np.int32]:
        if self._found is None:
            self._found = np.zeros((1, self._num_tiles), np.int32)
        return self._found

    def _check(self, logits: Logits, maxima: Logits | None, num_nodes: int) -> None:
        if num_nodes > min(len(logits), self.max_nodes) or logits.shape[1] != self.vocab_size:
            raise BackendError(
                f"verification got {num_nodes} nodes and logits of shape {logits.shape}; it takes "
                f"at most {self.max_nodes} nodes and one row of {self.vocab_size} logits for each"
            )
        if maxima is not None and maxima.shape != (len(logits), self._num_tiles):
            raise BackendError(
                f"verification got maxima of shape {maxima.shape} with logits of shape "
                f"{logits.shape}; it takes {self._num_tiles} for each row, or none"
            )

    def sample(
        self,
        row: NDArray[np.float32],
        recent: Sequence[int] | NDArray[np.int32],
        position: int,
    ) -> int:
        """The token after the one at `position`, drawn from its logits [vocab] f32."""
        root = np.zeros(1, np.int32)
        parents = np.full(1, -1, np.int16)
        return self.verify(row.reshape(1, -1), root, parents, recent, position).bonus


def find_maxima(logits: Logits) -> Logits:
    """The largest of each tile of logits, as `Pass.maxima`, for backends that have none."""
    found = np.empty((len(logits), -(-logits.shape[1] // TILE)), np.float32)
    fill_maxima(_whole_rows(logits).view(np.int32), logits.shape[1], found.view(np.int32))
    return found


def _whole_rows(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """The same rows as a writeable array without gaps; padded rows come with their padding."""
    if not logits.flags.writeable:
        return logits.copy()
    if logits.flags.c_contiguous:
        return logits
    row_bytes, step = logits.strides
    if step != logits.itemsize or row_bytes % step or row_bytes < logits.shape[1] * step:
        return logits.copy()
    return as_strided(logits, (len(logits), row_bytes // step), logits.strides)


def bad_row(position: int, status: int) -> BackendError:
    """The error for a row that no token can be drawn from."""
    what = "NaN" if status == NOT_A_NUMBER else "no finite maximum"
    return BackendError(
        f"the logits at position {position} hold {what}: the model file is damaged or the backend "
        "miscomputed; try `--backend reference`"
    )


def verify(
    logits: NDArray[np.float32],
    tokens: NDArray[np.int32],
    parents: NDArray[np.int16],
    recent: Sequence[int] | NDArray[np.int32],
    params: SamplingParams,
    position: int,
) -> Verdict:
    """`Verifier.verify` for a single use; allocates its buffers."""
    verifier = Verifier(logits.shape[1], params, max(1, len(tokens)))
    return verifier.verify(logits, tokens, parents, recent, position)
