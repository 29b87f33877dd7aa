"""The score q_t(y)/q_t(x), by enumerating every state: what the posterior makes of it and the way back, SEDD's loss at
it, and SEDD's bound."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from posterior import Posterior

from tsdfm.flow import Cosine, Geometric, Mask, Polynomial, RowNoise, Schedule, Source, Uniform
from tsdfm.flow.logits import FIRST_TIME, meaning_of, posterior_from_score, reshaped_score, score_from_posterior
from tsdfm.kernels.rows import plain_scores
from tsdfm.methods.sedd import bound_rows, ratios

f64 = torch.float64
VOCAB, LENGTH = 3, 2
DATA = torch.tensor(list(itertools.product(range(VOCAB), repeat=LENGTH)))
WEIGHTS = torch.tensor([8.0, 1.0, 1.0, 2.0, 6.0, 1.0, 1.0, 1.0, 4.0], dtype=f64) / 25
every_source = pytest.mark.parametrize("source", [Uniform(VOCAB), Mask(VOCAB)], ids=["uniform", "mask"])
every_schedule = pytest.mark.parametrize("schedule", [Polynomial(1.0), Cosine()], ids=str)
every_time = pytest.mark.parametrize("t", [0.05, 0.5, 0.95])


def states_of(source: Source) -> torch.Tensor:
    return torch.tensor(list(itertools.product(range(source.tokens), repeat=LENGTH)))


def chances(states: torch.Tensor, kappa: torch.Tensor | float, source: Source) -> torch.Tensor:
    """q_t(state | text) [N, texts] of states [N, L], at one κ or at one for each state [N]."""
    kappa = torch.as_tensor(kappa, dtype=f64).expand(len(states))[:, None, None]
    arrived = (states[:, None] == DATA[None]).to(f64)
    return (kappa * arrived + (1 - kappa) * source.probability(states)[:, None]).prod(-1)


def law(states: torch.Tensor, kappa: torch.Tensor | float, source: Source) -> torch.Tensor:
    """q_t of states [N, L]."""
    return chances(states, kappa, source) @ WEIGHTS


def true_score(states: torch.Tensor, kappa: torch.Tensor | float, source: Source) -> torch.Tensor:
    """log q_t(x with y in place i)/q_t(x) [N, L, V]."""
    out = torch.empty(len(states), LENGTH, VOCAB, dtype=f64)
    for i, y in itertools.product(range(LENGTH), range(VOCAB)):
        changed = states.clone()
        changed[:, i] = y
        out[:, i, y] = (law(changed, kappa, source) / law(states, kappa, source)).log()
    return out


@every_source
@every_schedule
@every_time
def test_each_follows_from_the_other(source: Source, schedule: Schedule, t: float) -> None:
    states = states_of(source)
    time = torch.full((len(states), 1), t, dtype=f64)
    posterior = Posterior(DATA, WEIGHTS, schedule, source)(states, time[:, 0]).exp()
    score = true_score(states, float(schedule.kappa(t)), source)
    places = states == source.mask if source.mask is not None else torch.ones_like(states, dtype=torch.bool)
    found = score_from_posterior(posterior.log(), states, time, schedule, source)
    torch.testing.assert_close(found[places], score[places], rtol=1e-9, atol=1e-12)
    back = posterior_from_score(score, states, time, schedule, source).softmax(-1)
    torch.testing.assert_close(back, posterior, rtol=1e-9, atol=1e-12)
    # one answer, read in both ways
    means = {reads: meaning_of("plain", source, schedule, reads) for reads in ("posterior", "score")}  # type: ignore[arg-type]
    assert means["posterior"] is None
    assert means["score"] is not None
    assert torch.equal(means["score"](posterior.log(), states, time), found)


@every_source
def test_a_learned_score(source: Source) -> None:
    """Any finite score has a posterior: none is negative. Shaping keeps how likely [MASK] is left."""
    states = states_of(source)
    score = 2 * torch.randn(len(states), LENGTH, VOCAB, generator=torch.Generator().manual_seed(0), dtype=f64)
    rule = (Polynomial(1.0), source)
    for t in (0.0, 0.02, 0.6, 1.0):
        time = torch.full((len(states), 1), t, dtype=f64)
        p = posterior_from_score(score, states, time, *rule).softmax(-1)
        assert bool((p >= 0).all())
        assert torch.allclose(p.sum(-1), torch.ones_like(p[..., 0]))
        likeliest = torch.nn.functional.one_hot(p.argmax(-1), VOCAB).to(f64).log()
        shaped = reshaped_score(score, likeliest, states, time, *rule)
        again = posterior_from_score(shaped, states, time, *rule).softmax(-1)
        torch.testing.assert_close(again, likeliest.exp(), rtol=1e-9, atol=1e-9)
        if source.mask is not None:
            torch.testing.assert_close(shaped.logsumexp(-1), score.logsumexp(-1))


def test_scaling_by_sigma_is_a_number_for_each_time() -> None:
    source, schedule = Mask(VOCAB), Polynomial(1.0)
    answer, x_t = torch.zeros(2, 1, VOCAB, dtype=f64), torch.full((2, 1), VOCAB)
    mean = meaning_of("scaled-score", source, schedule, "score")
    assert mean is not None
    found = mean(answer, x_t, torch.tensor([[0.25], [0.5]])).exp().sum(-1)
    assert found.flatten().tolist() == pytest.approx([1 / 3, 1.0])  # a flat answer sums to r = κ/(1−κ)


def expected(score: torch.Tensor, t: float, schedule: Schedule, source: Source) -> torch.Tensor:
    """SEDD's loss of each text, summed over positions, in expectation over its states at t [texts]."""
    states, kappa = states_of(source), float(schedule.kappa(t))
    share, time = chances(states, kappa, source), torch.full((len(states),), t, dtype=f64)
    score = torch.where(score.isfinite(), score, -40.0)  # of states that cannot be: they have no share
    out = []
    for n, x_1 in enumerate(DATA):
        to, weight = ratios(x_1.expand_as(states), states, time, schedule, source, scaled=False)
        loss, _ = plain_scores(score.flatten(0, 1), to, gradient=False)
        out.append((share[:, n, None] * weight * loss.view(states.shape)).sum())
    return torch.stack(out)


@every_source
@pytest.mark.parametrize("t", [0.2, 0.8])
def test_the_true_score_is_the_minimum_of_score_entropy(source: Source, t: float) -> None:
    """The gradient of the expected loss vanishes there, state by state, and the loss grows on every side."""
    score = true_score(states_of(source), t, source).clamp(min=-30.0).nan_to_num(-30.0).requires_grad_()
    least = expected(score, t, Polynomial(1.0), source) @ WEIGHTS
    (slope,) = torch.autograd.grad(least, score)
    assert slope.abs().max().item() < 1e-10
    for seed in range(4):
        off = 0.1 * torch.randn(score.shape, generator=torch.Generator().manual_seed(seed), dtype=f64)
        assert expected(score + off, t, Polynomial(1.0), source) @ WEIGHTS > least + 1e-6


@pytest.mark.parametrize(
    ("source", "schedule"),
    [(Mask(VOCAB), Polynomial(1.0)), (Uniform(VOCAB), Polynomial(1.0)), (Uniform(VOCAB), Geometric())],
)
def test_the_bound_of_the_true_score_is_the_likelihood(source: Source, schedule: Schedule) -> None:
    """With both sources, since the reverse of the true process is no other process; and drawn times agree with it."""
    first, nll = 0.0 if source.mask is not None else FIRST_TIME, -WEIGHTS.log()
    points, shares = np.polynomial.legendre.leggauss(80)
    whole = torch.zeros(len(DATA), dtype=f64)
    for point, share in zip((points + 1) / 2, shares / 2, strict=True):
        t = first + (1 - first) * float(point)
        score = true_score(states_of(source), float(schedule.kappa(t)), source)
        whole += (1 - first) * float(share) * expected(score, t, schedule, source)
    if source.mask is None:  # the noise at `first` is not quite even
        even = torch.full((len(states_of(source)),), 1 / VOCAB**LENGTH, dtype=f64)
        begin = chances(states_of(source), float(schedule.kappa(first)), source)
        whole += (begin * (begin / even[:, None]).log()).sum(0)
    torch.testing.assert_close(whole, nll, rtol=1e-3, atol=0.0)  # the log's pole at t = 1, and t below 10⁻³

    def model(x: torch.Tensor, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return true_score(x, schedule.kappa(t), source).clamp(min=-40.0).nan_to_num(-40.0)

    copies = 400
    x_1 = DATA[[0, 5, 8]].repeat_interleave(copies, 0)
    noise = RowNoise(0, torch.arange(len(x_1)))
    found = LENGTH * bound_rows(model, x_1, schedule, source, 16, noise, time_dtype=f64).view(3, copies)
    error = found.std(1) / math.sqrt(copies)
    assert bool((error < 0.2).all())
    assert bool(((found.mean(1) - nll[[0, 5, 8]]).abs() < 3 * error).all())
