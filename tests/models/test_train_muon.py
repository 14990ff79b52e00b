"""The recipe's Muon is PyTorch's, whose products are always taken in bf16."""

from __future__ import annotations

import importlib.util

import pytest

pytestmark = [
    pytest.mark.filterwarnings("default"),  # PyTorch's own
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="needs torch: pip install torch"
    ),
]


@pytest.mark.parametrize(("use_bf16", "tolerance"), [(True, 0.0), (False, 0.02)])
@pytest.mark.parametrize("shape", [(96, 64), (64, 96)])
def test_it_moves_as_pytorchs_does(
    shape: tuple[int, int], use_bf16: bool, tolerance: float
) -> None:
    """`tolerance` is a part of the longest way that a weight goes."""
    import torch

    from training.muon import Muon

    torch.manual_seed(0)
    start = torch.randn(shape) * 0.02
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    optimizer = Muon([ours], lr=1e-2, weight_decay=0.05, use_bf16=use_bf16)
    judge = torch.optim.Muon([theirs], lr=1e-2, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        ours.grad = torch.randn(shape)
        theirs.grad = ours.grad.clone()
        optimizer.step()
        judge.step()
    way = float((theirs - start).detach().abs().max())
    apart = float((ours - theirs).detach().abs().max())
    assert way > 1e-3
    assert apart <= tolerance * way


def test_singular_values_come_near_one() -> None:
    import torch

    from training.muon import orthogonalised

    torch.manual_seed(1)
    values = torch.linalg.svdvals(orthogonalised(torch.randn(48, 80), torch.float32))
    assert 0.6 < float(values.min()) <= float(values.max()) < 1.3
