"""What the small integers of table-lookup types stand for: tables of 16 values, and grids.

A grid names several consecutive magnitudes at once: an entry holds 4 or 8 places in the short list
of magnitudes of its type. The tables are part of the formats; a test compares them with the gguf
package's.
"""

from __future__ import annotations

import zlib
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.models.spec import IQ4_NL_VALUES, TensorType

FP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice what the 4-bit floats (E2M1) of MXFP4 and NVFP4 stand for."""
IQ2_MAGNITUDES = (8, 25, 43)
IQ3_XXS_MAGNITUDES = (4, 12, 20, 28, 36, 44, 52, 62)
IQ3_S_MAGNITUDES = (1, 3, 5, 7, 9, 11, 13, 15)


def _signed(magnitudes: tuple[int, ...], places: int) -> tuple[int, ...]:
    """Magnitudes, then what is less than zero; `places` for each."""
    values = (*magnitudes, *[0] * (places - len(magnitudes)))
    return (*values, *(-value for value in values))


NO_CODEBOOK, IQ4_NL, FP4, IQ3_S, IQ3_XXS, IQ2, IQ1, TERNARY = range(8)
CODEBOOKS: tuple[tuple[int, ...], ...] = tuple(
    (*values, *[0] * (16 - len(values)))
    for values in (
        (),
        IQ4_NL_VALUES,
        FP4_VALUES,
        _signed(IQ3_S_MAGNITUDES, 8),
        _signed(IQ3_XXS_MAGNITUDES, 8),
        _signed(IQ2_MAGNITUDES, 4),
        (-7, 1, 9, 0, -9, -1, 7, 0),
        (-1, 0, 1, 2),
    )
)
"""What packed weights stand for, 16 values each. The sign of grid types is the bit above the place
of their magnitude. Those of IQ1 are eight times -1, 0 and 1, plus and minus one eighth. No file
has the last of the ternary values, but its two bits could.
"""

_SHAPES = {
    TensorType.IQ2_XXS: (256, 8),
    TensorType.IQ2_XS: (512, 8),
    TensorType.IQ2_S: (1024, 8),
    TensorType.IQ3_XXS: (256, 4),
    TensorType.IQ3_S: (512, 4),
    TensorType.IQ1_S: (2048, 8),
}
GRID_TYPES = (*_SHAPES, TensorType.IQ1_M)
"""Types whose weights are entries of a grid."""


@cache
def grid(kind: TensorType) -> NDArray[np.uint8]:
    """Places of magnitudes [entries, 4 or 8] of a grid type; IQ1_M shares the grid of IQ1_S."""
    if kind is TensorType.IQ1_M:
        kind = TensorType.IQ1_S
    places = np.frombuffer(zlib.decompress(_FILE.read_bytes()), np.uint8)
    first = 0
    for each, (entries, width) in _SHAPES.items():
        if each is kind:
            return places[first : first + entries * width].reshape(entries, width)
        first += entries * width
    raise KeyError(f"{kind.name} has no grid")


_FILE = Path(__file__).with_name("grids.bin")
"""All grids one after the other, a byte for each place, compressed."""
