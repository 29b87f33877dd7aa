"""The time reversal of uniform noise, row by row: the sum it stands for in float64, its gradient, and its kernel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tsdfm import kernels
from tsdfm.kernels.fused import fused_loss
from tsdfm.kernels.reversal import Reversal, plain_reversal, reversal, reversal_loss

pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
KAPPAS = (1e-5, 0.01, 0.3, 0.9, 0.999, 1 - 1e-5)


def rows_of(columns: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Logits, x_1, x_t (a third of them arrived), κ and weights: two rows of every κ, some of them very sure."""
    made = torch.Generator().manual_seed(seed)
    kappa = torch.tensor(KAPPAS, dtype=torch.float64).repeat(2)
    logits = 2 * torch.randn(len(kappa), columns, generator=made, dtype=torch.float64)
    x_1, x_t = (torch.randint(columns, (len(kappa),), generator=made) for _ in range(2))
    x_t[::3] = x_1[::3]
    logits[torch.arange(3), x_1[:3]] = 15.0
    return logits, x_1, x_t, kappa, torch.rand(len(kappa), generator=made, dtype=torch.float64) / columns


def by_the_sum(logits: Tensor, x_1: Tensor, x_t: Tensor, kappa: Tensor) -> Tensor:
    """Σ_{y≠z} [r̂_y − r_y + r_y log(r_y/r̂_y)] as it is written."""
    columns, x = logits.shape[1], torch.nn.functional.one_hot(x_1, logits.shape[1])
    q, q_hat = (kappa[:, None] * law + (1 - kappa[:, None]) / columns for law in (x, logits.softmax(-1)))
    r, r_hat = (law / law.gather(-1, x_t[:, None]) for law in (q, q_hat))
    each = r_hat - r + r * (r / r_hat).log()
    return each.sum(-1) - each.gather(-1, x_t[:, None]).squeeze(-1)


@pytest.mark.parametrize("columns", [3, 9, 500])
def test_the_sum_and_its_gradient_in_float64(columns: int) -> None:
    logits, x_1, x_t, kappa, _ = rows_of(columns)
    odds, leaf = kappa * columns / (1 - kappa), logits.clone().requires_grad_()
    wanted = by_the_sum(leaf, x_1, x_t, kappa)
    wanted.sum().backward()
    loss, grad = plain_reversal(logits, x_1, x_t, odds, gradient=True)
    torch.testing.assert_close(loss, wanted.detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(grad, leaf.grad, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(reversal_loss(logits, x_1, x_t, odds), wanted.detach(), rtol=1e-9, atol=1e-12)
    assert bool((loss > 0).all())
    certain = torch.full_like(logits, -1e4).scatter(-1, x_1[:, None], 0.0)
    assert plain_reversal(certain, x_1, x_t, odds, gradient=False)[0].abs().max() < 1e-9


@pytest.mark.parametrize("columns", [9, 4500])
@pytest.mark.parametrize("which", ["kernel", "reference"])
@pytest.mark.parametrize("posterior", [False, True])
def test_float32_rows(columns: int, which: str, posterior: bool) -> None:
    """Of logits of q, and of those of the posterior, which has log(1 + c) more at x_t."""
    logits, x_1, x_t, kappa, scale = rows_of(columns)
    odds = kappa * columns / (1 - kappa)
    value, grad = plain_reversal(logits, x_1, x_t, odds, gradient=True)
    assert grad is not None
    if posterior:
        logits = logits.scatter_add(-1, x_t[:, None], torch.log1p(odds)[:, None])
    known = [x.to(DEVICE) for x in (x_1, x_t, odds.float(), scale.float())]
    padded = torch.nn.functional.pad(logits, (0, 7), value=30.0).float().to(DEVICE)
    with kernels.forced("rows") if which == "kernel" else kernels.without("rows"):
        quiet = padded.clone()
        told = reversal(quiet, *known, columns, gradient=False, posterior=posterior).cpu()
        assert torch.equal(quiet, padded)
        found = reversal(padded, *known, columns, posterior=posterior)
    for mine in (told, found.cpu()):
        torch.testing.assert_close(mine, value.float(), rtol=1e-4, atol=1e-6 * columns)  # its weight is κ̇/(κK)
    wanted = (grad * scale[:, None]).float()
    torch.testing.assert_close(padded[:, :columns].cpu(), wanted, rtol=1e-3, atol=1e-6 * float(wanted.abs().max()))
    assert not padded[:, columns:].any()


def test_fused_with_the_head() -> None:
    _, x_1, x_t, kappa, scale = (x.to(DEVICE) for x in rows_of(9))
    made = torch.Generator().manual_seed(1)
    hidden, weight = torch.randn(12, 6, generator=made), torch.randn(9, 6, generator=made)
    found = []
    for way in ("kernel", "chunks", "plain"):
        leaf, head = hidden.to(DEVICE).requires_grad_(), torch.nn.Linear(6, 9, bias=False).to(DEVICE)
        head.weight.data.copy_(weight)
        odds = kappa * 9 / (1 - kappa)
        with kernels.forced("rows") if way == "kernel" else kernels.without():
            if way == "plain":
                loss = (reversal_loss(head(leaf).double(), x_1, x_t, odds) * scale).sum()
            else:
                loss = fused_loss(leaf, head, Reversal(x_1, x_t, odds), scale)
            loss.backward()
        found.append([loss.detach().float(), leaf.grad, head.weight.grad])
    for way in found[:2]:
        for mine, exact in zip(way, found[2], strict=True):
            torch.testing.assert_close(mine, exact, rtol=1e-3, atol=1e-4)
