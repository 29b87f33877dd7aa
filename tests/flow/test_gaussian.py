"""Uniform noise as the argmax of Gaussian noise: its share of arrived tokens, and the laws that a network is shown."""

from __future__ import annotations

import math

import pytest
import torch

from tsdfm.errors import UserError
from tsdfm.flow import RowNoise
from tsdfm.flow.gaussian import GaussianClock, arrived, distinct, gamma_of, soft_state

f64 = torch.float64
RATIOS = torch.tensor([0.0, 0.01, 0.7, 2.0, 4.5, 9.0], dtype=f64)


def test_two_tokens_in_closed_form() -> None:
    """P = Φ(r/√2), so κ = erf(r/2)."""
    kappa, slope = arrived(RATIOS, 2)
    torch.testing.assert_close(kappa, torch.erf(RATIOS / 2), rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(slope, torch.exp(-(RATIOS**2) / 4) / math.sqrt(math.pi), rtol=1e-12, atol=1e-15)


def test_five_tokens_against_gauss_and_hermite() -> None:
    import numpy as np

    points, weights = np.polynomial.hermite_e.hermegauss(120)
    for ratio in RATIOS.tolist():
        below = [(0.5 * math.erfc(-(x + ratio) / math.sqrt(2))) ** 4 for x in points]
        wanted = (5 * float(np.dot(weights, below)) / math.sqrt(2 * math.pi) - 1) / 4
        assert float(arrived(torch.tensor(ratio, dtype=f64), 5)[0]) == pytest.approx(wanted, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("vocab", [2, 5, 400, 50_257])
def test_slope_and_limits(vocab: int) -> None:
    ratio, step = torch.tensor([0.3, 1.7, 4.0, 6.0], dtype=f64), 1e-5
    around = [arrived(ratio + change, vocab)[0] for change in (-step, step)]
    torch.testing.assert_close((around[1] - around[0]) / (2 * step), arrived(ratio, vocab)[1], rtol=1e-6, atol=1e-9)
    ends = arrived(torch.tensor([0.0, 40.0], dtype=f64), vocab)[0]
    assert ends.tolist() == pytest.approx([0.0, 1.0], abs=1e-12)


def test_as_published() -> None:
    """γ from −3.55 to −1.85 with GPT-2's tokens is κ from 0.945 to 0.049; and back."""
    found = [float(arrived(torch.tensor(math.exp(-gamma / 2)), 50_257)[0]) for gamma in (-3.55, -1.85)]
    assert found == pytest.approx([0.94547, 0.04932], abs=1e-5)
    assert [gamma_of(kappa, 50_257) for kappa in found] == pytest.approx([-3.55, -1.85], abs=1e-6)


def test_the_clock() -> None:
    clock, u, step = GaussianClock(30, -3.0, 1.0), torch.tensor([0.0, 0.4, 1.0], dtype=f64), 1e-6
    ratio, kappa, slope = clock.at(u)
    assert ratio.tolist() == pytest.approx([math.exp(-0.5), math.exp(0.3), math.exp(1.5)])
    assert bool((kappa[1:] > kappa[:-1]).all())
    torch.testing.assert_close((clock.at(u + step)[1] - clock.at(u - step)[1]) / (2 * step), slope, rtol=1e-6, atol=0)
    with pytest.raises(UserError, match="gamma_min 1 must lie below -3"):
        GaussianClock(30, 1.0, -3.0)


def test_distinct_numbers_in_any_order() -> None:
    rows, picks, count = 30_000, 3, 5
    u = torch.rand(2, rows, picks, generator=torch.Generator().manual_seed(0), dtype=f64)
    found = distinct(u[0], u[1], count)
    assert bool((found.sort(-1).values.diff(dim=-1) > 0).all())
    counts = torch.bincount(found @ torch.tensor([25, 5, 1]), minlength=125)
    counts = counts[counts > 0].double()
    assert len(counts) == 60  # 5·4·3 ordered choices
    assert float(((counts - rows / 60) ** 2 / (rows / 60)).sum()) < 120  # 59 degrees of freedom, one in 100 000


def explicit(x_1: torch.Tensor, ratio: float, tau: float, vocab: int) -> torch.Tensor:
    """softmax(w/τ) from as many Gaussians as there are tokens."""
    noise = torch.randn(len(x_1), vocab, generator=torch.Generator().manual_seed(1), dtype=f64)
    size = math.sqrt(1 + ratio**2)
    w = (ratio * torch.nn.functional.one_hot(x_1, vocab) + noise) / size
    return (w / tau).softmax(-1)


@pytest.mark.parametrize("top", [5, 3])
def test_states_have_the_law_of_explicit_noise(top: int) -> None:
    """z, the weight of x_1, of z and the spread: by order statistics as by Gaussians; the rest at its mean, nearly."""
    rows, vocab, ratio, tau = 40_000, 6, 1.1, 0.4
    x_1 = torch.arange(rows) % vocab
    made = soft_state(x_1[:, None], torch.full((rows,), ratio), tau, vocab, top, RowNoise(0, torch.arange(rows)))
    mine = made.weights[:, 0, -1:].expand(-1, vocab) / vocab
    mine = mine.scatter_add(1, made.tokens[:, 0], made.weights[:, 0, :-1])
    theirs = explicit(x_1, ratio, tau, vocab)
    kappa = float(arrived(torch.tensor(ratio), vocab)[0])
    there = (made.x_t[:, 0] == x_1).double().mean().item()
    assert there == pytest.approx(kappa + (1 - kappa) / vocab, abs=0.012)
    assert mine.sum(-1).min() == pytest.approx(1.0)
    assert torch.equal(made.tokens[:, 0, 0], x_1)
    assert torch.equal(mine.argmax(-1), made.x_t[:, 0])  # the state is where the law is largest
    for power in (1, 2, 3):
        for law in (lambda p: p.gather(1, x_1[:, None])[:, 0], lambda p: p.max(-1).values, lambda p: (p**2).sum(-1)):
            a, b = law(mine) ** power, law(theirs) ** power
            assert a.mean().item() == pytest.approx(b.mean().item(), abs=5 * b.std().item() / 200 + (top < 5) * 0.01)
    away = made.x_t[:, 0] != x_1
    where = torch.bincount((made.x_t[:, 0] - x_1)[away] % vocab, minlength=vocab)[1:].double()
    assert float(((where - where.mean()) ** 2 / where.mean()).sum()) < 28.0  # the other tokens alike


def test_cold_noise_is_the_state_and_few_tokens_do() -> None:
    """At τ = 0.001 and 50 257 tokens, sixteen have all the weight; at 0.1 the rest has most of it."""
    x_1, ratio = torch.zeros(4, 64, dtype=torch.int64), torch.full((4,), 3.0)
    shares = []
    for tau in (1e-3, 1e-1):
        made = soft_state(x_1, ratio, tau, 50_257, 16, RowNoise(0, torch.arange(4)))
        shares.append(made.weights[..., -1].mean().item())
    assert shares[0] < 1e-12
    assert 0.2 < shares[1] < 1
