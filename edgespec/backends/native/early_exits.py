"""What a native target does of passes that end before the last layer, and go on from there."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Part, Target
from edgespec.backends.native.adapters import Adapters
from edgespec.backends.native.early import EarlyNodes, EarlyStates
from edgespec.backends.native.head_parts import LeftStreams
from edgespec.backends.native.node_tables import NodeRows, NodeTables
from edgespec.backends.native.scratch import Scratch
from edgespec.backends.native.tile_functions import TileFunctions
from edgespec.backends.passes import TILE, Logits, Pass, Rows, TokenTree
from edgespec.backends.sequence import KvSequence
from edgespec.errors import BackendError
from edgespec.memory.plan.settings import MOST_NODES


class EarlyExits(Target):
    """The partial passes of a native target, which gives the whole ones."""

    _adapters: Adapters
    _early: EarlyStates
    _left: LeftStreams | None
    _head_entered: tuple[int, int | None] | None
    _nodes: NodeTables
    _num_logits: int
    _scratch: Scratch
    _tables: list[NDArray[np.int64]]
    _tiles: TileFunctions
    _tiles_entered: int

    @abstractmethod
    def _run(
        self,
        num_layers: int,
        first_layer: int,
        num_rows: int,
        rows: Rows,
        num_logits: int | None = None,
        adapted: int | None = None,
    ) -> Pass:
        """Run some layers, and the head for these rows."""

    @abstractmethod
    def _whole(self, sequence: KvSequence, tree: TokenTree) -> NodeRows:
        """All nodes of a tree, in slots in a row."""

    @abstractmethod
    def _prepare(self, texts: Sequence[NodeRows], parts: Sequence[Part]) -> int:
        """Embed the wanted nodes of these trees and describe them; returns how many they are."""

    @abstractmethod
    def _embed(self, tokens: NDArray[np.int32], out: NDArray[np.float32]) -> None:
        """Write these tokens' embeddings to the first rows of f32 [n or more, dim]."""

    def _go_on(self, parts: Sequence[Part], rows: Rows) -> Pass:
        """A pass over trees with nodes that have some layers behind them: the others catch up, then
        all go on together.
        """
        layer = next(text.early.layer for text, _ in parts if text.early is not None)
        texts = [self._placed(sequence, tree, layer) for sequence, tree in parts]
        seconds_saved = 0.0
        behind = [place for place, text in enumerate(texts) if len(text.wanted)]
        if behind:
            late = [texts[place] for place in behind]
            self._run(layer, 0, self._prepare(late, [parts[place] for place in behind]), "none")
        else:
            seconds_saved = sum(text.early.seconds for text, _ in parts)
        stream, left, first, targets = self._scratch.stream, self._left_rows, 0, []
        for text in texts:
            targets += (first + text.wanted).tolist()
            first += len(text.parents)
        for row in range(len(targets) - 1, -1, -1):  # from the last, so that none is overwritten
            if targets[row] != row:
                stream[targets[row]] = stream[row]
                if left is not None:
                    left[targets[row]] = left[row]
        num_nodes, whole = first, []
        first = 0
        for text in texts:
            if text.sequence.early is not None:
                rest = None if left is None else left[first:]
                text.sequence.early.load(text.slots, stream[first:], rest)
            first += len(text.parents)
            whole.append(text._replace(wanted=self._nodes.in_order[: len(text.parents)]))
        self._nodes.describe(self._tables, whole)
        found = self._run(self.spec.num_layers - layer, layer, num_nodes, rows)
        found.seconds_saved = seconds_saved
        return found

    def _placed(self, sequence: KvSequence, tree: TokenTree, layer: int) -> NodeRows:
        """Slots of a tree's nodes, and which of them have not passed these layers."""
        early: EarlyNodes | None = sequence.early
        if early is None or early.layer != layer:
            return self._whole(sequence, tree)
        slots, wanted = early.match(tree.tokens, tree.parents)
        end = len(early) + len(wanted)
        if end > MOST_NODES or sequence.length + end > self.context_length:
            return self._whole(sequence, tree)
        sequence.state.reserve(sequence.length, sequence.length + end)
        early.slots = slots
        return NodeRows(sequence, tree.parents, slots, wanted)

    def _forward_until(
        self,
        sequence: KvSequence,
        layer: int,
        tokens: Sequence[int],
        parents: Sequence[int],
        vocab: int | None,
        rows: Rows,
        adapted: bool,
    ) -> Pass:
        start = time.perf_counter()
        early: EarlyNodes = sequence.early or EarlyNodes(layer, self._early)
        first, stream, left = len(early), self._scratch.stream, self._left_rows
        end = first + len(tokens)
        sequence.state.reserve(sequence.length, sequence.length + end)
        self._embed(np.array(tokens, np.int32), stream)
        slots = self._nodes.in_order[:end]
        text = NodeRows(sequence, early.parents([*parents]), slots, slots[first:])
        self._nodes.describe(self._tables, [text])
        through = layer if adapted else None
        found = self._run(layer, 0, len(tokens), rows, self._few(vocab), through)
        for row, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            early.add(int(token), int(parent), stream[row], None if left is None else left[row])
        if not first:
            early.seconds = self._layers_part(layer, time.perf_counter() - start) / len(tokens)
        sequence.early = early
        return found

    def _deepen(
        self, sequence: KvSequence, layer: int, vocab: int | None, rows: Rows, adapted: bool
    ) -> Pass:
        start, early = time.perf_counter(), sequence.early
        slots, parents = self._nodes.in_order[: len(early)], early.parents([])
        early.load(slots, self._scratch.stream, self._left_rows)
        self._nodes.describe(self._tables, [NodeRows(sequence, parents, slots, slots)])
        more = layer - early.layer
        through = layer if adapted else None
        found = self._run(more, early.layer, len(early), rows, self._few(vocab), through)
        early.store(self._scratch.stream, self._left_rows)
        early.layer = layer
        early.seconds += self._layers_part(more, time.perf_counter() - start) / len(early)
        return found

    def has_adapter(self, layer: int) -> bool:
        return layer in self._adapters

    def adapt(self, layer: int, matrix: NDArray[np.float16]) -> None:
        self._adapters.put(layer, 0, matrix)
        self._tiles.forget()
        self._tiles_entered, self._head_entered = 0, None

    def _trace(
        self,
        sequence: KvSequence,
        tokens: NDArray[np.int32],
        layers: Sequence[int],
        out: NDArray[np.float32],
    ) -> None:
        if not self.capabilities.early_exit:
            raise BackendError(
                f"the residual streams of {self.spec.name} between layers were asked for: passes "
                "of a model with states, or embeddings of its own in every layer, cannot be "
                "interrupted there; exits and their adapters are for other models"
            )
        tree, done = TokenTree.chain(tokens), 0
        self._prepare([self._whole(sequence, tree)], ((sequence, tree),))
        for place, layer in enumerate((*layers, self.spec.num_layers)):
            self._run(layer - done, done, len(tokens), "none")
            out[place] = self._scratch.stream[: len(tokens)]
            done = layer
        self._commit(sequence, range(len(tokens)))

    def head(self, streams: NDArray[np.float32], adapted: int | None = None) -> Logits:
        self._check_open()
        self._scratch.stream[: len(streams)] = streams
        return self._run(0, 0, len(streams), "all", adapted=adapted).logits

    @property
    def _left_rows(self) -> NDArray[np.float32] | None:
        """What the nodes of the last pass left for a draft head, if there is one."""
        return None if self._left is None else self._left.rows

    def _few(self, vocab: int | None) -> int:
        """How many logits are computed when so many are asked for."""
        most = self.spec.vocab_size
        return most if vocab is None else min(-(-vocab // TILE) * TILE, most)

    def _layers_part(self, num_layers: int, seconds: float) -> float:
        """What the layers of a pass took when the head that was run last took part in it."""
        layers = self.spec.layers_size(0, num_layers)
        return seconds * layers / (layers + self._num_logits * self.spec.dim)

    @property
    def early_room(self) -> int:
        return len(self._early.free)
