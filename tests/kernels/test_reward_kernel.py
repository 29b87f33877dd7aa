"""The dense reward by kernel and by reference against float64 autograd; sums of objectives."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from tsdfm import kernels
from tsdfm.kernels.fused import CrossEntropy, Divergence, Target, fused_loss
from tsdfm.kernels.head import padded
from tsdfm.kernels.reward import Reward, Together, reward

pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def normal(*shape: int, seed: int = 0, size: float = 2.0) -> Tensor:
    return size * torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def exact(student: Tensor, aux: Tensor, teacher: Tensor, clip: float) -> Tensor:
    """Σ_v g(v)·clip[log q − log p] by autograd, the reward a constant."""
    r = (aux.log_softmax(-1) - teacher.log_softmax(-1)).clamp(-clip, clip).detach()
    return (student.softmax(-1) * r).sum(-1)


@pytest.mark.parametrize("clip", [0.7, math.inf])
@pytest.mark.parametrize("columns", [9, 4500])
@pytest.mark.parametrize("which", ["kernel", "reference"])
def test_reward(clip: float, columns: int, which: str) -> None:
    wide = columns + 7
    student, aux, teacher = (normal(5, wide, seed=seed) for seed in (1, 2, 3))
    student[0, :3] = 40.0  # sure, and every other token without a chance
    scale = normal(5, seed=4).abs()
    leaf = student[:, :columns].double().requires_grad_()
    value = exact(leaf, aux[:, :columns].double(), teacher[:, :columns].double(), clip)
    (value * scale).sum().backward()
    spread = torch.distributions.Categorical(logits=leaf.detach()).entropy()
    with kernels.forced("rows") if which == "kernel" else kernels.without("rows"):
        quiet = student.clone()
        again, _ = reward(quiet, aux, teacher, scale, columns, clip, gradient=False)
        assert torch.equal(quiet, student)
        found, entropy = reward(student, aux, teacher, scale, columns, clip)
    assert torch.equal(again, found)
    torch.testing.assert_close(found, value.detach().float(), rtol=1e-4, atol=2e-6)
    torch.testing.assert_close(entropy, spread.float(), rtol=1e-4, atol=2e-6)
    torch.testing.assert_close(student[:, :columns], leaf.grad.float(), rtol=1e-4, atol=2e-6)  # type: ignore[union-attr]
    assert not student[:, columns:].any()


def test_by_hand() -> None:
    """Three tokens: g = (1/2, 1/4, 1/4), q = (1/2, 1/4, 1/4), p = (1/4, 1/4, 1/2), clip at log 2 and below it."""
    g = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64).log()
    q, p = g.clone(), torch.tensor([[0.25, 0.25, 0.5]], dtype=torch.float64).log()
    one = torch.ones(1, dtype=torch.float64)
    loss, entropy = reward(g.clone(), q, p, one, 3, math.inf)
    assert loss.item() == pytest.approx(math.log(2) / 4, rel=1e-14)  # ½·log 2 + 0 − ¼·log 2
    assert entropy.item() == pytest.approx(1.5 * math.log(2), rel=1e-14)
    for clip in (math.inf, 0.1):
        c, grad = min(clip, math.log(2)), g.clone()
        reward(grad, q, p, one, 3, clip)
        mean = c / 4
        wanted = [0.5 * (c - mean), 0.25 * (0 - mean), 0.25 * (-c - mean)]
        torch.testing.assert_close(grad, torch.tensor([wanted], dtype=torch.float64), rtol=1e-13, atol=1e-16)
    even, spread = reward(grad, p, p.clone(), one, 3, 5.0)  # where auxiliary and teacher agree nothing pulls
    assert even.item() == 0.0
    assert spread.item() > 0
    assert not grad.any()


def test_a_column_of_rewards_may_lie_in_a_bias() -> None:
    """A constant inside a row of r moves the loss, and no gradient."""
    student, aux, teacher = (normal(4, 11, seed=seed).double() for seed in (1, 2, 3))
    more, one = normal(11, seed=5).double(), torch.ones(4, dtype=torch.float64, device=DEVICE)
    leaf = student.clone().requires_grad_()
    r = (aux.log_softmax(-1) - teacher.log_softmax(-1) + more).detach()
    (leaf.softmax(-1) * r).sum().backward()
    reward(student, aux, teacher - more, one, 11, math.inf)
    torch.testing.assert_close(student, leaf.grad, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_fused_by_hidden_states_and_heads(dtype: torch.dtype) -> None:
    """Reward, a divergence and a cross-entropy together, in chunks, against whole logits by autograd."""
    n, d, v = 14, 6, 9
    heads = [nn.Linear(d, v).to(DEVICE, dtype) for _ in range(3)]
    states = [normal(n, d, seed=seed, size=1.0).to(dtype) for seed in range(3)]
    x, scale = (torch.arange(n, device=DEVICE) % v), normal(n, seed=7).abs().double()
    weights = [normal(n, seed=8 + k).abs().double() for k in range(3)]
    targets = []
    for head, hidden in zip(heads[1:], states[1:], strict=True):
        ready = padded(head.weight, head.bias, dtype) if dtype == torch.float32 else None
        targets.append(Target([hidden], (1.0,), head.weight.detach(), head.bias.detach(), ready))
    kept = torch.zeros(2, n, dtype=dtype, device=DEVICE)
    objectives = (Reward(*targets, 1.3, kept), Divergence(targets[1]), CrossEntropy(x))
    leaf = states[0].clone().requires_grad_()
    with kernels.forced("rows") if dtype == torch.float32 else kernels.without():
        together = Together(list(zip(objectives, weights, strict=True)))
        found = fused_loss(leaf, heads[0], together, scale)
    found.backward()
    other = states[0].double().clone().requires_grad_()
    inputs = (other, *(hidden.double() for hidden in states[1:]))
    logits = [head.double()(hidden) for head, hidden in zip(heads, inputs, strict=True)]
    gap = exact(logits[0], logits[1], logits[2], 1.3)
    p = logits[2].softmax(-1).detach()
    kl = (p * (p.log() - logits[0].log_softmax(-1))).sum(-1)
    ce = nn.functional.cross_entropy(logits[0], x, reduction="none")
    whole = (scale * (weights[0] * gap + weights[1] * kl + weights[2] * ce)).sum()
    whole.backward()
    close = {"rtol": 1e-10, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 2e-4, "atol": 2e-5}
    torch.testing.assert_close(found.double(), whole.detach(), **close)
    torch.testing.assert_close(leaf.grad.double(), other.grad, **close)  # type: ignore[union-attr]
    torch.testing.assert_close(kept[0].double(), gap.detach(), **close)


def test_bf16_rows() -> None:
    rows = [normal(4, 300, seed=seed).bfloat16() for seed in (1, 2, 3)]
    leaf = rows[0].double().requires_grad_()
    value = exact(leaf, rows[1].double(), rows[2].double(), 2.0)
    value.sum().backward()
    with kernels.forced("rows"):
        found, _ = reward(*rows, torch.ones(4, device=DEVICE), 300, 2.0)
    torch.testing.assert_close(found, value.detach().float(), rtol=1e-4, atol=1e-5)
    # a GPU rounds to the nearest bf16, the interpreter cuts off
    torch.testing.assert_close(rows[0].double(), leaf.grad, rtol=2**-7, atol=1e-6)
