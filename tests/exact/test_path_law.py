"""The path's law in closed form: marginals at every t, the posterior by brute force, the continuity equation."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from posterior import Posterior

from tsdfm.flow.noise import RowNoise
from tsdfm.flow.path import interpolate
from tsdfm.flow.schedule import Cosine, Polynomial, Schedule
from tsdfm.flow.source import Mask, Source, Uniform

f64 = torch.float64
CPU = torch.device("cpu")
DATA = torch.tensor([[0, 0], [0, 1], [1, 2], [2, 2]])
WEIGHTS = torch.tensor([0.4, 0.1, 0.3, 0.2], dtype=f64)
SCHEDULES = [Polynomial(1.0), Polynomial(2.5), Cosine()]
every_source = pytest.mark.parametrize("source", [Uniform(3), Mask(3)], ids=str)
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=str)


def joint(schedule: Schedule, source: Source, t: float) -> dict[tuple[tuple[int, ...], tuple[int, ...]], float]:
    """P(x_1, x_t) by summing over every x_0 and every set of arrived positions."""
    kappa = schedule.kappa(t).item()
    starts = [(3, 3)] if source.mask is not None else list(itertools.product(range(3), repeat=2))
    table: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
    for x_1, weight in zip(DATA.tolist(), WEIGHTS.tolist(), strict=True):
        for x_0 in starts:
            for arrived in itertools.product([True, False], repeat=2):
                chance = math.prod(kappa if a else 1 - kappa for a in arrived)
                x_t = tuple(y if a else z for y, z, a in zip(x_1, x_0, arrived, strict=True))
                key = (tuple(x_1), x_t)
                table[key] = table.get(key, 0.0) + weight * chance / len(starts)
    return table


def marginal(schedule: Schedule, source: Source, t: float) -> torch.Tensor:
    """The law of x_t over all states."""
    out = torch.zeros(source.tokens**2, dtype=f64)
    for (_, x_t), p in joint(schedule, source, t).items():
        out[x_t[0] * source.tokens + x_t[1]] += p
    return out


@every_source
@every_schedule
@pytest.mark.parametrize("t", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_marginals_of_the_path(source: Source, schedule: Schedule, t: float) -> None:
    rows = 40000
    made = torch.Generator().manual_seed(0)
    x_1 = DATA[torch.multinomial(WEIGHTS, rows, replacement=True, generator=made)]
    noise = RowNoise(int(100 * t), torch.arange(rows))
    x_t = interpolate(source.draw(x_1.shape, noise, CPU), x_1, torch.full((rows,), t), schedule, noise)
    counts = torch.bincount(x_t[:, 0] * source.tokens + x_t[:, 1], minlength=source.tokens**2).to(f64)
    p = marginal(schedule, source, t)
    assert p.sum().item() == pytest.approx(1.0)
    possible = p > 0
    assert counts[~possible].sum() == 0
    expected = rows * p[possible]
    value, freedom = ((counts[possible] - expected) ** 2 / expected).sum().item(), int(possible.sum()) - 1
    assert value < freedom + 5 * math.sqrt(2 * freedom) + 12  # far beyond the 10⁻⁵ quantile of χ²


@every_source
@every_schedule
@pytest.mark.parametrize("t", [0.0, 0.3, 0.97])
def test_posterior_is_bayes_by_brute_force(source: Source, schedule: Schedule, t: float) -> None:
    table = joint(schedule, source, t)
    model = Posterior(DATA, WEIGHTS, schedule, source)
    for x_t in {key[1] for key in table}:
        here = {x_1: p for (x_1, state), p in table.items() if state == x_t}
        total = sum(here.values())
        if total == 0:
            continue
        answer = model(torch.tensor([x_t]), torch.tensor([t], dtype=f64))[0].exp()
        assert answer.shape == (2, 3)
        for j in range(2):
            for v in range(3):
                expected = sum(p for x_1, p in here.items() if x_1[j] == v) / total
                assert answer[j, v].item() == pytest.approx(expected, abs=1e-14)


def test_posterior_edges() -> None:
    mask = Posterior(DATA, WEIGHTS, Polynomial(1.0), Mask(3))
    revealed = mask(torch.tensor([[1, 3]]), torch.tensor([0.5], dtype=f64))[0].exp()
    assert revealed.tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]  # 1 is only ever followed by 2
    impossible = mask(torch.tensor([[2, 0]]), torch.tensor([0.5], dtype=f64))
    assert impossible.isneginf().all()
    unnormalised = Posterior(DATA, 7 * WEIGHTS, Polynomial(1.0), Mask(3))
    x, t = torch.tensor([[3, 3]]), torch.tensor([0.2], dtype=f64)
    assert torch.allclose(unnormalised(x, t), mask(x, t))


@every_source
@every_schedule
@pytest.mark.parametrize("t", [0.1, 0.5, 0.9])
def test_the_posterior_velocity_carries_the_marginals(source: Source, schedule: Schedule, t: float) -> None:
    """Continuity: d/dt q_t(x) = Σ_j Σ_z q_t(x with z at j)·λ·(p(x_j | ·) − 1{z = x_j}), by a central difference."""
    model = Posterior(DATA, WEIGHTS, schedule, source)
    states = torch.tensor(list(itertools.product(range(source.tokens), repeat=2)))
    q = marginal(schedule, source, t)
    p = model(states, torch.full((len(states),), t, dtype=f64)).exp()
    p = torch.cat([p, torch.zeros(len(states), 2, source.tokens - 3, dtype=f64)], -1)  # p([MASK]) = 0
    flow = torch.zeros_like(q)
    weights = source.tokens, 1
    for i, state in enumerate(states.tolist()):
        for j in range(2):
            for y in range(source.tokens):
                if y != state[j]:
                    amount = q[i] * schedule.rate(t) * p[i, j, y]
                    flow[i + (y - state[j]) * weights[j]] += amount
                    flow[i] -= amount
    eps = 1e-5
    slope = (marginal(schedule, source, t + eps) - marginal(schedule, source, t - eps)) / (2 * eps)
    assert torch.allclose(flow, slope, atol=1e-8)
