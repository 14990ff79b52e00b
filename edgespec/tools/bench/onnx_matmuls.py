"""ONNX Runtime on matrices of the same shapes, timed from within: the matmuls of a pass, no more.

There is no ONNX file of the model, so one is made of nothing but its matrices, with random weights:
no norms, no attention, no sampling. Four-bit types become MatMulNBits of 4 bits, other quantised
ones of 8 (DynamicQuantizeMatMul where the installed version has no such kernel), floats MatMul.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.models.spec import TensorInfo, TensorType
from edgespec.system.child_process import Child, serve
from edgespec.tools.bench.curve import timed, turn

BLOCK = 32
"""Columns that share a scale, as in the file."""
_WEIGHTS = "weights.bin"
_FUSED = "com.microsoft"
Kind = str
"""The operator, with its bits where it has a choice."""
_BYTES: dict[Kind, float] = {
    "MatMul float32": 4.0,
    "MatMulNBits 4 bit": 0.5 + 4 / BLOCK,
    "MatMulNBits 8 bit": 1.0 + 4 / BLOCK,
}
"""Of a weight with its share of the scale."""


def kind_of(kind: TensorType) -> Kind:
    """What stands in for a tensor type."""
    if kind.block_size == 1:
        return "MatMul float32"
    bits = 8 * kind.block_bytes / kind.block_size
    return "MatMulNBits 4 bit" if bits <= 5 else "MatMulNBits 8 bit"


def needed_bytes(matrices: Sequence[TensorInfo]) -> int:
    """Memory that a process with these matrices takes: its copy, and the file it comes from."""
    return int(sum(2 * math.prod(info.shape) * _BYTES[kind_of(info.type)] for info in matrices))


class OnnxProcess(Child):
    """All matmuls of one model's forward pass in ONNX Runtime. Raises PeerError."""

    def __init__(self, matrices: Sequence[TensorInfo], threads: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="edgespec-bench-")
        shapes = [[*info.shape, kind_of(info.type)] for info in matrices]
        request = {"shapes": shapes, "threads": threads, "folder": self._folder.name}
        super().__init__(__name__, request, name="ONNX Runtime")
        self.weight_bytes: int = self.greeting["weight_bytes"]
        self.operators: str = self.greeting["operators"]

    def forward(self, n: int) -> list[float]:
        """Passes over n tokens."""
        seconds: list[float] = self.ask(n)
        return seconds

    def close(self) -> None:
        super().close()
        self._folder.cleanup()


class Model:
    """An ONNX model of independent matmuls, written to a folder: a graph, and its weights."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "model.onnx"
        self.weight_bytes = 0
        self.widths: set[int] = set()
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self._outputs: list[Any] = []
        self._rng = np.random.default_rng(0)
        self._file = (folder / _WEIGHTS).open("wb")

    def add(self, rows: int, columns: int, kind: Kind) -> None:
        """Multiply the input of this width by one more matrix."""
        from onnx import TensorProto, helper

        name = f"m{len(self._nodes)}"
        operator, *bits = kind.split()
        blocks = -(-columns // BLOCK)
        settings: dict[str, Any] = {"domain": _FUSED}
        if operator == "MatMulNBits":
            settings |= {"K": columns, "N": rows, "bits": int(bits[0]), "block_size": BLOCK}
            settings |= {"accuracy_level": 4}  # activations in 8 bits, as ours
            parts = [
                self._store(f"{name}_w", self._bytes(rows, blocks, BLOCK * int(bits[0]) // 8)),
                self._store(f"{name}_s", np.full((rows * blocks,), 0.01, np.float32)),
            ]
        elif operator == "DynamicQuantizeMatMul":
            parts = [
                self._store(f"{name}_w", self._bytes(columns, rows).view(np.int8)),
                self._store(f"{name}_s", np.full((rows,), 0.01, np.float32)),
            ]
        else:
            settings = {}
            noise = self._rng.standard_normal((columns, rows), dtype=np.float32)
            parts = [self._store(f"{name}_w", noise)]
        inputs = [f"x{columns}", *parts]
        self._nodes.append(helper.make_node(operator, inputs, [name], **settings))
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", rows]))
        self.widths.add(columns)

    def _bytes(self, *shape: int) -> NDArray[np.uint8]:
        raw = self._rng.bytes(math.prod(shape))
        return np.frombuffer(raw, np.uint8).reshape(shape)

    def _store(self, name: str, values: NDArray[Any]) -> str:
        """Append an array to the file of weights; large models do not fit a graph."""
        from onnx import TensorProto, helper

        tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(values.dtype))
        tensor.dims.extend(values.shape)
        tensor.data_location = TensorProto.EXTERNAL
        place = {"location": _WEIGHTS, "offset": self._file.tell(), "length": values.nbytes}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        self._file.write(values.tobytes())
        self.weight_bytes += values.nbytes
        self._weights.append(tensor)
        return name

    def write(self) -> None:
        from onnx import TensorProto, helper

        self._file.close()
        inputs = [
            helper.make_tensor_value_info(f"x{width}", TensorProto.FLOAT, ["n", width])
            for width in sorted(self.widths)
        ]
        graph = helper.make_graph(self._nodes, "matmuls", inputs, self._outputs, self._weights)
        versions = [helper.make_opsetid("", 17), helper.make_opsetid(_FUSED, 1)]
        model = helper.make_model(graph, opset_imports=versions, ir_version=8)
        self.path.write_bytes(model.SerializeToString())


class _Server:
    """The child's side: a session over the matmuls, inputs bound once for each n."""

    def __init__(self, request: dict[str, Any]) -> None:
        import onnxruntime

        self._runtime = onnxruntime
        shapes, folder = request["shapes"], Path(request["folder"])
        try:
            self._open(shapes, folder, request["threads"])
        except Exception:  # whatever it raises where an operator has no such kernel
            older = [
                [*shape, kind.replace("MatMulNBits 8 bit", "DynamicQuantizeMatMul")]
                for *shape, kind in shapes
            ]
            if older == shapes:
                raise
            self._open(older, folder, request["threads"])

    def _open(self, shapes: list[Any], folder: Path, threads: int) -> None:
        self.model = Model(folder)
        for rows, columns, kind in shapes:
            self.model.add(rows, columns, kind)
        self.model.write()
        counts = Counter(kind for _, _, kind in shapes)
        self.operators = " and ".join(kind for kind, _ in counts.most_common())
        options = self._runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        # Spinning threads would take the processor from whoever's turn is next.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        self.session = self._runtime.InferenceSession(
            str(self.model.path), options, providers=["CPUExecutionProvider"]
        )

    def answer(self, n: int) -> list[float]:
        binding = self.session.io_binding()
        rng = np.random.default_rng(n)
        for width in self.model.widths:
            values = rng.standard_normal((n, width), dtype=np.float32)
            binding.bind_cpu_input(f"x{width}", values)
        for output in self.session.get_outputs():
            binding.bind_output(output.name)
        run = partial(self.session.run_with_iobinding, binding)
        return turn(partial(timed, run))


def _start(request: dict[str, Any]) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    server = _Server(request)
    greeting = {"weight_bytes": server.model.weight_bytes, "operators": server.operators}
    return greeting, server.answer


if __name__ == "__main__":
    serve(_start)
