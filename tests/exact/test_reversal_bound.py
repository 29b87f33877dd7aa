"""Duo's bound on data that is small enough to write down: brute force in time, the likelihood, and the sampler."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from posterior import Posterior
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.flow import Cosine, Mask, Polynomial, RowNoise, Schedule, Uniform, solve
from tsdfm.flow.logits import Reads, meaning_of
from tsdfm.flow.psi import PsiJump, Steady
from tsdfm.kernels.reversal import reversal_loss
from tsdfm.methods.duo import METHOD

f64 = torch.float64
VOCAB, LENGTH = 3, 2
SOURCE = Uniform(VOCAB)
DATA = torch.tensor(list(itertools.product(range(VOCAB), repeat=LENGTH)))
WEIGHTS = torch.tensor([8.0, 1.0, 1.0, 2.0, 6.0, 1.0, 1.0, 1.0, 4.0], dtype=f64) / 25
Model = Callable[[Tensor, Tensor, Tensor], Tensor]


def others(schedule: Schedule) -> Model:
    """The true p(x_1 | the other position) as logits [B, 2, V], by Bayes."""
    columns = torch.nn.functional.one_hot(DATA, VOCAB).double()  # [N, 2, V]

    def model(x: Tensor, t: Tensor, h: Tensor) -> Tensor:
        kappa = schedule.kappa(t)[:, None, None]
        likely = kappa * (x[:, None] == DATA) + schedule.remaining(t)[:, None, None] / VOCAB  # [B, N, 2]
        return torch.einsum("bnl,n,nlv->blv", likely.flip(-1), WEIGHTS, columns).log()

    return model


@pytest.mark.parametrize("reads", ["posterior", "score"])
def test_answers_are_turned_into_each_other(reads: Reads) -> None:
    """Of the true law of the others, the posterior, its score, and the way back."""
    schedule = Cosine()
    t = torch.full((len(DATA),), 0.6, dtype=f64)
    mine, posterior = others(schedule)(DATA, t, t), Posterior(DATA, WEIGHTS, schedule, SOURCE)(DATA, t)
    there, plain = (meaning_of(name, SOURCE, schedule, reads) for name in ("others", "plain"))
    assert there is not None
    found, wanted = there(mine, DATA, t[:, None]), posterior if plain is None else plain(posterior, DATA, t[:, None])
    if reads == "posterior":
        found, wanted = found.softmax(-1), wanted.softmax(-1)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    back = meaning_of("plain", SOURCE, schedule, "others")
    assert back is not None
    torch.testing.assert_close(back(posterior, DATA, t[:, None]).softmax(-1), mine.softmax(-1), rtol=1e-9, atol=1e-12)
    for name, source in (("others", Mask(VOCAB)), ("nothing", SOURCE)):
        with pytest.raises(UserError):
            meaning_of(name, source, schedule)


def quadrature(nodes: int) -> list[tuple[float, float]]:
    """κ and weights of Gauss and Legendre in w, κ = 1 − w⁴: the integrand has a logarithm at κ = 1."""
    points, shares = np.polynomial.legendre.leggauss(nodes)
    return [(1 - w**4, 4 * w**3 * share / 2) for w, share in zip((points + 1) / 2, shares, strict=True)]


def exact_bound(model: Model, schedule: Schedule, nodes: int = 60) -> Tensor:
    """∫ Σ_z q(z | x_1) · rate(z)/(κK) dκ of every sequence of DATA, over all states."""
    total = torch.zeros(len(DATA), dtype=f64)
    for kappa, share in quadrature(nodes):
        t = schedule.inverse(torch.tensor(float(kappa), dtype=f64)).expand(len(DATA))
        logits, odds = model(DATA, t, t * 0), torch.full(DATA.shape, kappa * VOCAB / (1 - kappa), dtype=f64)
        for n, x_1 in enumerate(DATA):
            chance = (kappa * (x_1 == DATA) + (1 - kappa) / VOCAB).prod(-1)
            rate = reversal_loss(logits, x_1.expand_as(DATA), DATA, odds).sum(-1)
            total[n] += share * (chance * rate).sum() / (kappa * VOCAB)
    return total


@pytest.mark.parametrize("schedule", [Polynomial(1.0), Cosine()], ids=str)
def test_with_the_true_law_it_is_the_likelihood(schedule: Schedule) -> None:
    """Unlike the flow's bound on the same source, which stays above."""
    torch.testing.assert_close(exact_bound(others(schedule), schedule), -WEIGHTS.log(), rtol=1e-6, atol=0)


def by_brute_force(pi: Tensor, x_1: int, steps: int) -> float:
    """Σ over time steps of E_q KL(q(x_s | x_t, x_1) ‖ p(x_s | x_t)) by transition matrices, of one position.

    `pi` [3, 3] is a model's answer in each state; its step is the bridge with π in place of x_1.
    """
    eye, size = torch.eye(VOCAB, dtype=f64), VOCAB

    def noised(law: Tensor, alpha: float) -> Tensor:
        return alpha * law + (1 - alpha) / size

    total = 0.0
    for k in range(steps):
        before, after = k / steps, (k + 1) / steps
        kept = noised(eye, before / after)  # q(x_t | x_s) [x_s, x_t]
        for z in range(size):
            true, mine = (kept[:, z] * noised(law, after) for law in (eye[x_1], pi[z]))
            true, mine = true / true.sum(), mine / mine.sum()
            gap = torch.where(true > 0, true * (true / mine).log(), 0.0).sum()
            total += float(noised(eye[x_1], before)[z] * gap)
    return total


def test_a_wrong_model_by_brute_force() -> None:
    """In ever smaller steps of time the sum of KLs goes to the integral, with an error that halves with the step."""
    logits = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(4), dtype=f64)
    states = torch.arange(VOCAB)
    for x_1 in range(VOCAB):
        wanted = 0.0
        for kappa, share in quadrature(60):
            odds = torch.full((VOCAB,), kappa * VOCAB / (1 - kappa), dtype=f64)
            rate = reversal_loss(logits, torch.full((VOCAB,), x_1), states, odds)
            chance = kappa * (states == x_1) + (1 - kappa) / VOCAB
            wanted += float(share * (chance * rate).sum() / (kappa * VOCAB))
        coarse, fine = (by_brute_force(logits.softmax(-1), x_1, steps) for steps in (150, 300))
        assert 2 * fine - coarse == pytest.approx(wanted, rel=1e-4)
        assert fine != pytest.approx(wanted, rel=1e-4)


def test_as_it_is_measured() -> None:
    """`Bound.rows` draws states and times: its mean is the integral."""
    logits = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(4), dtype=f64)
    bound, rows = METHOD.bound(), 4000
    assert (bound.label, bound.reads) == ("Duo NELBO", "others")
    for n in (0, 5):
        x_1 = DATA[n].expand(rows, -1)
        noise = RowNoise(3, torch.arange(rows))
        found = bound.rows(lambda x, t, h: logits[x], x_1, Polynomial(1.0), SOURCE, 8, noise)
        wanted = exact_bound(lambda x, t, h: logits[x], Polynomial(1.0))[n] / LENGTH
        assert found.mean().item() == pytest.approx(wanted.item(), abs=5 * found.std().item() / rows**0.5)


def test_many_exact_steps_write_the_data() -> None:
    """With the true law the reversed process is exact but for steps that move several positions at once."""
    rows, schedule = 8000, Polynomial(1.0)
    jump, noise = PsiJump(schedule, SOURCE, Steady(schedule)), RowNoise(0, torch.arange(rows))
    x_0 = SOURCE.draw((rows, LENGTH), noise, torch.device("cpu"))
    done = solve(others(schedule), x_0, 32, jump, noise, time_dtype=f64).tokens
    shares = torch.bincount(done @ torch.tensor([VOCAB, 1]), minlength=len(DATA)) / rows
    assert (shares - WEIGHTS).abs().max() < 0.03
