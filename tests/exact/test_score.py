"""The score q_t(y)/q_t(x), by enumerating every state, against what the posterior makes of it and the way back."""

from __future__ import annotations

import itertools

import pytest
import torch
from posterior import Posterior

from tsdfm.flow import Cosine, Mask, Polynomial, Schedule, Source, Uniform
from tsdfm.flow.logits import meaning_of, posterior_from_score, reshaped_score, score_from_posterior

f64 = torch.float64
VOCAB, LENGTH = 3, 2
DATA = torch.tensor(list(itertools.product(range(VOCAB), repeat=LENGTH)))
WEIGHTS = torch.tensor([8.0, 1.0, 1.0, 2.0, 6.0, 1.0, 1.0, 1.0, 4.0], dtype=f64) / 25
every_source = pytest.mark.parametrize("source", [Uniform(VOCAB), Mask(VOCAB)], ids=["uniform", "mask"])
every_schedule = pytest.mark.parametrize("schedule", [Polynomial(1.0), Cosine()], ids=str)
every_time = pytest.mark.parametrize("t", [0.05, 0.5, 0.95])


def states_of(source: Source) -> torch.Tensor:
    return torch.tensor(list(itertools.product(range(source.tokens), repeat=LENGTH)))


def law(states: torch.Tensor, kappa: float, source: Source) -> torch.Tensor:
    """q_t of states [N, L]."""
    arrived = (states[:, None] == DATA[None]).to(f64)
    each = kappa * arrived + (1 - kappa) * source.probability(states)[:, None]
    return each.prod(-1) @ WEIGHTS


def true_score(states: torch.Tensor, kappa: float, source: Source) -> torch.Tensor:
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
