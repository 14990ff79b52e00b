"""Muon: every matrix moves by its momentum with all singular values near one.

Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks", with the scale of
"Muon is Scalable for LLM Training", section 2.2. `torch.optim.Muon` is the same in bf16 only; on
processors without it, a step of that takes 30 times as long as one in f32.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

# The polynomial that takes singular values towards one, and how often it is applied.
A, B, C = 3.4445, -4.775, 2.0315
ROUNDS = 5


def orthogonalised(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the matrix with singular values of about one, found by products in `dtype`."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if is_tall else matrix).to(dtype)
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(ROUNDS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return x.T if is_tall else x


class Muon(torch.optim.Optimizer):  # type: ignore[misc]  # torch is untyped here
    """For matrices that turn hidden states into hidden states; its state is torch's."""

    def __init__(
        self,
        matrices: Iterable[Tensor],
        *,
        weight_decay: float,
        use_bf16: bool,
        lr: float = 1e-3,
        momentum: float = 0.95,
    ) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self.dtype = torch.bfloat16 if use_bf16 else torch.float32

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: None = None) -> None:
        """Move every matrix that has a gradient."""
        del closure
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._move(matrix, group)

    def _move(self, matrix: Tensor, group: dict[str, Any]) -> None:
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        momentum = state["momentum_buffer"].lerp_(matrix.grad, 1 - group["momentum"])
        ahead = matrix.grad.lerp(momentum, group["momentum"])  # Nesterov's
        matrix.mul_(1 - group["lr"] * group["weight_decay"])
        rate = group["lr"] * 0.2 * max(matrix.shape) ** 0.5
        matrix.add_(orthogonalised(ahead, self.dtype).to(matrix.dtype), alpha=-rate)
