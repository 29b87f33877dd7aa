"""Losses of logits rows by kernels against float64 autograd."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tsdfm import kernels
from tsdfm.flow import Mask, Uniform
from tsdfm.flow.loss import bracket
from tsdfm.kernels import rows

pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def normal(*shape: int, seed: int = 0, size: float = 2.0) -> Tensor:
    return size * torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def exact(loss: object, logits: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logits.double().requires_grad_()
    found = loss(leaf)  # type: ignore[operator]
    (found * scale).sum().backward()
    return found.detach(), leaf.grad  # type: ignore[return-value]


def kl(a: Tensor, b: Tensor) -> Tensor:
    return (a.softmax(-1) * (a.log_softmax(-1) - b.log_softmax(-1))).sum(-1)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("columns", [9, 4500])
@pytest.mark.parametrize("which", ["kernel", "reference"])
def test_divergence(reverse: bool, columns: int, which: str) -> None:
    wide = columns + 7
    logits, target, scale = normal(6, wide, seed=1), normal(6, wide, seed=2), normal(6, seed=3).abs()
    p = target[:, :columns].double()
    value, grad = exact(lambda q: kl(q, p) if reverse else kl(p, q), logits[:, :columns], scale)
    with kernels.forced("rows") if which == "kernel" else kernels.without("rows"):
        quiet = logits.clone()
        torch.testing.assert_close(
            rows.divergence(quiet, target, scale, columns, reverse=reverse, gradient=False), value.float()
        )
        assert torch.equal(quiet, logits)
        found = rows.divergence(logits, target, scale, columns, reverse=reverse)
    torch.testing.assert_close(found, value.float(), rtol=2e-5, atol=1e-6)
    torch.testing.assert_close(logits[:, :columns], grad.float(), rtol=1e-4, atol=1e-6)
    assert not logits[:, columns:].any()


@pytest.mark.parametrize("kind", ["cross-entropy", "uniform", "mask"])
@pytest.mark.parametrize("columns", [9, 4500])
@pytest.mark.parametrize("which", ["kernel", "reference"])
def test_tokens(kind: str, columns: int, which: str) -> None:
    logits, scale = normal(12, columns + 3, seed=1), normal(12, seed=3).abs()
    made = torch.Generator().manual_seed(5)
    x_1 = torch.randint(columns, (12,), generator=made).to(DEVICE)
    x_t: Tensor | None = torch.randint(columns, (12,), generator=made).to(DEVICE)
    source: Uniform | Mask = Uniform(columns)
    assert x_t is not None
    x_t[:5] = x_1[:5]
    logits[torch.arange(2), x_1[:2]] = 14.0  # sure of it: 1 − q is small
    if kind == "mask":
        source = Mask(columns)
        x_t[5:9] = columns
    state = x_t
    if kind == "cross-entropy":
        x_t = None
        value, grad = exact(lambda l: F.cross_entropy(l, x_1, reduction="none"), logits[:, :columns], scale)
    else:
        value, grad = exact(lambda l: bracket(l, x_1, state, source), logits[:, :columns], scale)
    with kernels.forced("rows") if which == "kernel" else kernels.without("rows"):
        found = rows.tokens(logits, x_1, x_t, scale, columns)
    torch.testing.assert_close(found, value.float(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(logits[:, :columns], grad.float(), rtol=1e-4, atol=2e-6)
    assert not logits[:, columns:].any()


def entropy(l: Tensor, to: rows.Ratios) -> Tensor:
    """Σ_{v≠x_t} s − r log s + r(log r − 1), column by column, by autograd."""
    log_s, total = l - to.shift[:, None].double(), torch.zeros(len(l), dtype=torch.float64, device=l.device)
    for v in range(l.shape[1]):
        r = torch.where(to.x_1 == v, to.high, to.low).double()
        each = log_s[:, v].exp() - r * log_s[:, v] + torch.special.xlogy(r, r) - r
        total = total + torch.where(to.x_t == v, 0.0, each)
    return total


@pytest.mark.parametrize("kind", ["mask", "uniform"])
@pytest.mark.parametrize("columns", [9, 2100])
@pytest.mark.parametrize("which", ["kernel", "reference"])
def test_scores(kind: str, columns: int, which: str) -> None:
    logits, scale = normal(8, columns + 3, seed=1), normal(8, seed=3).abs()
    made = torch.Generator().manual_seed(5)
    x_1, x_t = (torch.randint(columns, (8,), generator=made).to(DEVICE) for _ in range(2))
    shift, low, high = normal(8, seed=4), torch.ones(8, device=DEVICE), normal(8, seed=6).abs() + 1
    if kind == "mask":
        x_t, low, high = torch.full_like(x_1, columns), low * 0, low
    else:
        x_t[:3], low[:3] = x_1[:3], 0.3  # arrived
        logits[3:5] = shift[3:5, None] + 1e-3  # near the ratio 1, where terms cancel
    to = rows.Ratios(x_1, x_t, shift, low, high)
    value, grad = exact(lambda l: entropy(l, to), logits[:, :columns], scale)
    with kernels.forced("rows") if which == "kernel" else kernels.without("rows"):
        quiet = logits.clone()
        torch.testing.assert_close(rows.scores(quiet, to, scale, columns, gradient=False), value.float())
        assert torch.equal(quiet, logits)
        found = rows.scores(logits, to, scale, columns)
    torch.testing.assert_close(found, value.float(), rtol=2e-5, atol=1e-6)
    torch.testing.assert_close(logits[:, :columns], grad.float(), rtol=1e-4, atol=2e-6)
    assert not logits[:, columns:].any()


def test_bf16_rows() -> None:
    logits, target, scale = normal(4, 300, seed=1).bfloat16(), normal(4, 300, seed=2).bfloat16(), torch.ones(4)
    value, grad = exact(lambda q: kl(target.double(), q), logits, scale.to(DEVICE))
    with kernels.forced("rows"):
        found = rows.divergence(logits, target, scale.to(DEVICE), 300)
    torch.testing.assert_close(found, value.float(), rtol=1e-5, atol=1e-6)
    # a GPU rounds to the nearest bf16, the interpreter cuts off
    torch.testing.assert_close(logits.double(), grad, rtol=2**-7, atol=1e-6)
