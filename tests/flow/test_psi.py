"""The exact step and Ψ against transition matrices that are written down by Bayes, and as Duo and ReMDM write them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.flow import Cosine, Mask, Polynomial, RowNoise, Schedule, Source, Uniform, solve
from tsdfm.flow.psi import GreedyTail, PsiJump, Steady

V, N = 3, 40_000
PI = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
f64 = torch.float64


def alphas(schedule: Schedule, t: float, h: float) -> tuple[float, float]:
    return float(schedule.kappa(t)), float(schedule.kappa(t + h))


def noising(share: float, source: Source) -> Tensor:
    """q(y after | x before) [x, y]: kept with probability `share`, else a token of the source."""
    size = source.tokens
    noise = torch.full((size,), 1 / V, dtype=f64) if source.mask is None else torch.eye(size, dtype=f64)[V]
    kept = torch.eye(size, dtype=f64)
    return share * kept + (1 - share) * noise


def exact_step(z: int, before: float, after: float, source: Source) -> Tensor:
    """p(x_s | x_t = z) ∝ q(z | x_s) · Σ_x π(x) q(x_s | x)."""
    prior = torch.cat([PI, torch.zeros(source.tokens - V, dtype=f64)])
    joint = (prior @ noising(after, source)) * noising(before / after, source)[:, z]
    return joint / joint.sum()


def psi(z: int, before: float, after: float, share: float, source: Source) -> Tensor:
    clean = exact_step(z, before, 1.0, source)
    return (1 - share) * exact_step(z, before, after, source) + share * (clean @ noising(after, source))


def counts(jump: PsiJump, z: int, t: float, h: float) -> Tensor:
    x = torch.full((N, 1), z)
    times = (torch.full((N,), value, dtype=f64) for value in (t, h))
    moved = jump(x, PI.log().expand(N, 1, V), *times, RowNoise(7, torch.arange(N)))
    return torch.bincount(moved.flatten(), minlength=jump.source.tokens).double()


def fits(found: Tensor, law: Tensor) -> None:
    """Chi-square, one in a hundred thousand; nothing happens that cannot."""
    assert not found[law < 1e-15].any()
    wanted = (law * N)[law >= 1e-15]
    assert float(((found[law >= 1e-15] - wanted) ** 2 / wanted).sum()) < 24.0


@pytest.mark.parametrize("source", [Uniform(V), Mask(V)], ids=["uniform", "mask"])
@pytest.mark.parametrize("schedule", [Polynomial(1.0), Cosine()], ids=str)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(("t", "h"), [(0.0, 0.3), (0.4, 0.25), (0.75, 0.25)])
def test_one_step(source: Source, schedule: Schedule, share: float, t: float, h: float) -> None:
    jump, (before, after) = PsiJump(schedule, source, Steady(schedule, share)), alphas(schedule, t, h)
    tokens = range(source.tokens) if before > 0 or source.mask is None else [V]
    for z in tokens:
        fits(counts(jump, z, t, h), psi(z, before, after, share, source))


def test_the_step_is_the_one_that_duo_writes() -> None:
    """Duo's fraction: [Kα_t π⊙z + (a − α_t)z + (α_s − α_t)π + (1 − a)(1 − α_s)/K] / [Kα_t π_z + 1 − α_t]."""
    before, after = 0.35, 0.6
    a = before / after
    for z in range(V):
        here = torch.eye(V, dtype=f64)[z]
        top = V * before * PI * here + (a - before) * here + (after - before) * PI + (1 - a) * (1 - after) / V
        theirs = top / (V * before * PI[z] + 1 - before)
        torch.testing.assert_close(exact_step(z, before, after, Uniform(V)), theirs, rtol=1e-12, atol=0)


def test_two_half_steps_are_one() -> None:
    """With the true law of one position, the same π at every time: the exact steps compose, on paper and drawn."""
    source, schedule, t, h = Uniform(V), Polynomial(1.0), 0.3, 0.2
    jump = PsiJump(schedule, source, Steady(schedule))
    rows = [torch.stack([exact_step(z, *ends, source) for z in range(V)]) for ends in ((t, t + h), (t + h, t + 2 * h))]
    whole = torch.stack([exact_step(z, t, t + 2 * h, source) for z in range(V)])
    torch.testing.assert_close(rows[0] @ rows[1], whole, rtol=1e-12, atol=0)
    noise = RowNoise(3, torch.arange(N))
    x, step = torch.full((N, 1), 1), torch.full((N,), h, dtype=f64)
    for start in (t, t + h):
        x = jump(x, PI.log().expand(N, 1, V), torch.full((N,), start, dtype=f64), step, noise)
    fits(torch.bincount(x.flatten(), minlength=V).double(), whole[1])


@pytest.mark.parametrize("source", [Uniform(V), Mask(V)], ids=["uniform", "mask"])
@pytest.mark.parametrize("share", [0.0, 0.4])
def test_a_text_of_one_position_has_the_law_of_the_data(source: Source, share: float) -> None:
    jump = PsiJump(Cosine(), source, Steady(Cosine(), share))
    noise = RowNoise(1, torch.arange(N))
    x_0 = source.draw((N, 1), noise, torch.device("cpu"))
    done = solve(lambda x, t, h: PI.log().expand(N, 1, V), x_0, 5, jump, noise)
    assert done.nfe == 5
    fits(torch.bincount(done.tokens.flatten(), minlength=source.tokens).double(), torch.cat([PI, PI.new_zeros(1)])[: source.tokens])  # fmt: skip # noqa: E501


@pytest.mark.parametrize("source", [Uniform(V), Mask(V)], ids=["uniform", "mask"])
def test_positions_that_need_no_logits_stay(source: Source) -> None:
    jump = PsiJump(Polynomial(1.0), source, Steady(Polynomial(1.0), 0.2))
    made = torch.Generator().manual_seed(0)
    x = torch.randint(source.tokens, (40, 50), generator=made)
    u = torch.rand(40, 50, 2, generator=made, dtype=f64)
    t, h = (torch.full((40,), value, dtype=f64) for value in (0.4, 0.2))
    needs = jump.needs(x, t, h, u)
    assert 0.05 < needs.double().mean() < 0.8
    for logits in (torch.zeros(V), torch.tensor([9.0, 0.0, -9.0])):
        assert torch.equal(jump.move(x, logits.expand(40, 50, V), t, h, u)[~needs], x[~needs])


def test_the_greedy_tail_is_a_pass_of_its_own() -> None:
    jump, noise, told = GreedyTail(Polynomial(1.0), Uniform(V), Steady(Polynomial(1.0))), RowNoise(0, torch.arange(4)), []  # fmt: skip # noqa: E501

    def model(x: Tensor, t: Tensor, h: Tensor) -> Tensor:
        told.append(float(t[0]))
        return PI.log().expand(4, 6, V)

    done = solve(model, torch.zeros(4, 6, dtype=torch.int64), 3, jump, noise)
    assert (done.nfe, told[-1]) == (4, 1.0)
    assert bool((done.tokens == 2).all())


def test_a_share_is_a_share() -> None:
    with pytest.raises(UserError, match="0 to 1"):
        Steady(Polynomial(1.0), 1.2)
