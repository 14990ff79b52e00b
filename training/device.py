"""Where training computes: PyTorch's default device, which `--device` sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def place(values: NDArray[Any]) -> Tensor:
    """Return an array as a tensor on the default device."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(torch.get_default_device())


def autocast(enabled: bool = True) -> torch.autocast:
    """Return the context in which products are taken in bf16."""
    kind = torch.get_default_device().type
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=enabled)
