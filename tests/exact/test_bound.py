"""The ELBO in closed form: every state enumerated, the time integral by Gauss and Legendre."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from posterior import Posterior

from tsdfm.flow.elbo import elbo_rows
from tsdfm.flow.loss import bracket, generalised_kl
from tsdfm.flow.noise import RowNoise
from tsdfm.flow.schedule import Cosine, Polynomial, Schedule
from tsdfm.flow.source import Mask, Source, Uniform

f64 = torch.float64
VOCAB, LENGTH = 3, 2
DATA = torch.tensor(list(itertools.product(range(VOCAB), repeat=LENGTH)))
WEIGHTS = torch.tensor([8.0, 1.0, 1.0, 2.0, 6.0, 1.0, 1.0, 1.0, 4.0], dtype=f64) / 25
NLL = -WEIGHTS.log()  # of each sequence, in nats
Model = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
every_schedule = pytest.mark.parametrize("schedule", [Polynomial(1.0), Polynomial(2.0), Cosine()], ids=str)


def exact_bound(model: Model, schedule: Schedule, source: Source, nodes: int = 60) -> torch.Tensor:
    """∫ E[bracket/(1 − κ)] dκ for every sequence of DATA, summed over its positions: nats a sequence."""
    states = torch.tensor(list(itertools.product(range(source.tokens), repeat=LENGTH)))
    points, shares = np.polynomial.legendre.leggauss(nodes)
    total = torch.zeros(len(DATA), dtype=f64)
    for kappa, share in zip((points + 1) / 2, shares / 2, strict=True):
        t = schedule.inverse(torch.tensor(float(kappa), dtype=f64)).expand(len(states))
        logits = model(states, t, torch.zeros_like(t))
        for n, x_1 in enumerate(DATA):
            arrived = (states == x_1).to(f64)
            chance = (kappa * arrived + (1 - kappa) * source.probability(states)).prod(-1)
            possible = chance > 0
            inner = bracket(logits[possible], x_1.expand_as(states)[possible], states[possible], source)
            total[n] += share * (chance[possible] * inner.sum(-1)).sum() / (1 - kappa)
    return total


@every_schedule
def test_with_masks_and_the_true_posterior_the_bound_is_the_likelihood(schedule: Schedule) -> None:
    source = Mask(VOCAB)
    model = Posterior(DATA, WEIGHTS, schedule, source)
    assert torch.allclose(exact_bound(model, schedule, source, 20), NLL, rtol=1e-10)


@every_schedule
def test_with_random_tokens_the_bound_stays_above(schedule: Schedule) -> None:
    source = Uniform(VOCAB)
    bound = exact_bound(Posterior(DATA, WEIGHTS, schedule, source), schedule, source)
    assert (bound > NLL + 0.01).all()
    assert (bound < NLL + 2.0).all()


@pytest.mark.parametrize("source", [Uniform(VOCAB), Mask(VOCAB)], ids=str)
def test_the_true_posterior_has_the_best_bound(source: Source) -> None:
    schedule = Polynomial(1.0)
    true = Posterior(DATA, WEIGHTS, schedule, source)
    best = (WEIGHTS * exact_bound(true, schedule, source)).sum().item()
    made = torch.Generator().manual_seed(0)
    for scale in (0.03, 0.3):
        shift = scale * torch.randn(LENGTH, VOCAB, generator=made, dtype=f64)
        # log 0 stays log 0: with the mask source, what is revealed stays revealed
        worse = (WEIGHTS * exact_bound(lambda x, t, h, s=shift: true(x, t) + s, schedule, source)).sum().item()
        assert worse > best


@pytest.mark.parametrize("source", [Uniform(VOCAB), Mask(VOCAB)], ids=str)
@every_schedule
def test_the_estimate_agrees_with_the_integral(source: Source, schedule: Schedule) -> None:
    model = Posterior(DATA, WEIGHTS, schedule, source)
    exact = exact_bound(model, schedule, source) / LENGTH
    copies = 1500
    for n in (0, 5):
        x_1 = DATA[n].expand(copies, LENGTH)
        rows = elbo_rows(model, x_1, schedule, source, 16, RowNoise(n, torch.arange(copies)), time_dtype=f64)
        error = (rows.std() / math.sqrt(copies)).item()
        assert rows.mean().item() == pytest.approx(exact[n].item(), abs=4 * error + 1e-4)
        assert error < 0.05


def test_the_estimate_over_data_is_the_entropy_with_masks() -> None:
    source, schedule = Mask(VOCAB), Cosine()
    copies = (WEIGHTS * 25 * 80).round().long()
    x_1 = DATA.repeat_interleave(copies, 0)
    model = Posterior(DATA, WEIGHTS, schedule, source)
    noise = RowNoise(0, torch.arange(len(x_1)))
    value = elbo_rows(model, x_1, schedule, source, 32, noise, time_dtype=f64).mean().item()
    entropy = (WEIGHTS * NLL).sum().item() / LENGTH
    assert value == pytest.approx(entropy, abs=0.02)


@every_schedule
@pytest.mark.parametrize("source", [Uniform(VOCAB), Mask(VOCAB)], ids=str)
def test_the_training_loss_is_the_same_integral_in_time(schedule: Schedule, source: Source) -> None:
    """∫ E[generalised KL] dt over t, the loss one trains on, equals the integral over κ."""
    model = Posterior(DATA, WEIGHTS, schedule, source)
    states = torch.tensor(list(itertools.product(range(source.tokens), repeat=LENGTH)))
    points, shares = np.polynomial.legendre.leggauss(60)
    total = 0.0
    x_1 = DATA[1].expand_as(states)
    for t, share in zip((points + 1) / 2, shares / 2, strict=True):
        time = torch.full((len(states),), float(t), dtype=f64)
        kappa = schedule.kappa(float(t))
        chance = (kappa * (states == x_1) + (1 - kappa) * source.probability(states)).prod(-1)
        loss = generalised_kl(model(states, time), x_1, states, time, schedule, source, reduction="none").sum(-1)
        total += share * float(torch.where(chance > 0, chance * loss, torch.zeros((), dtype=f64)).sum())
    assert total == pytest.approx(exact_bound(model, schedule, source)[1].item(), rel=1e-3)
