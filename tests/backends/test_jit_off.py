"""Kernels that are plain Numba give the same with the JIT off, where one can step through them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import config

from edgespec.backends.native.kernels.codegen import intrinsics
from edgespec.backends.native.kernels.matmul import plain
from edgespec.models.spec import TensorType
from tests.support.tiles import KINDS, Activations, Tile, dequantised, name, raw_rows

ROOT = Path(__file__).parents[2]
COLUMNS = 256


@pytest.mark.parametrize("kind", KINDS, ids=name)
def test_plain_tiles(kind: TensorType) -> None:
    """Compiled or not."""
    raw = raw_rows(kind, 16, COLUMNS)
    packed, activations = Tile.pack(kind, raw, COLUMNS), Activations.random(2, COLUMNS)
    output = np.zeros((2, 16), np.float32)
    if config.DISABLE_JIT:
        plain.plain_tile(kind)(*activations.arguments(packed, output))
    else:
        activations.run(plain.address(kind), packed, output=output)
    exact = activations.values.astype(np.float64) @ dequantised(kind, raw).astype(np.float64).T
    np.testing.assert_allclose(output, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [0.0, -1.5, 65504.0, 6e-8, 1e-9, 2049.0, 1e9], ids=str)
def test_half_precision(value: float) -> None:
    """To the nearest half, ties to even, infinity past the largest."""
    with np.errstate(over="ignore"):
        half = np.float16(np.float32(value))
    if config.DISABLE_JIT:
        with np.errstate(over="ignore"):
            assert intrinsics.float_to_half(np.float32(value)) == half.view(np.uint16)
        assert intrinsics.half_to_float(half.view(np.uint16)) == np.float32(half)
        return
    from edgespec.system.jit import kernel

    to_half = kernel(lambda x: intrinsics.float_to_half(x))
    to_float = kernel(lambda x: intrinsics.half_to_float(x))
    assert to_half(np.float32(value)) == half.view(np.uint16)
    assert to_float(half.view(np.uint16)) == np.float32(half)


ATTENTION = (
    "test_describe_tree",
    "test_describe_chains_without_lists",
    "test_against_float64",
    "test_moved_positions_are_what_they_were",
    "test_a_sibling_spoils_nothing",
    "test_sizes_of_keys_and_values",
)


@pytest.mark.skipif(bool(config.DISABLE_JIT), reason="is what this test starts")
def test_suite_passes_with_the_jit_off() -> None:
    """The tests of packing, plain tiles, experts, states and attention without a model."""
    folder = ROOT / "tests" / "backends"
    tests = [folder / f"test_{name}.py" for name in ("pack", "jit_off", "experts", "state_walk")]
    attention = folder / "test_attention.py"
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *map(str, tests)]
        + [f"{attention}::{test}" for test in ATTENTION],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        check=False,
    )
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-1000:]
    assert "passed" in found.stdout
