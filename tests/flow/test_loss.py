"""Losses against their definitions, written out token by token."""

from __future__ import annotations

import math

import pytest
import torch

from tsdfm.errors import UserError
from tsdfm.flow.elbo import bits_per_character, elbo_rows
from tsdfm.flow.loss import bracket, cross_entropy, generalised_kl
from tsdfm.flow.noise import RowNoise
from tsdfm.flow.schedule import Cosine, Polynomial, Schedule
from tsdfm.flow.source import Mask, Source, Uniform

f64 = torch.float64
made = torch.Generator().manual_seed(0)
LOGITS = 2 * torch.randn(4, 9, 5, generator=made, dtype=f64)
X_1 = torch.randint(0, 5, (4, 9), generator=made)
TIMES = torch.tensor([0.0, 0.3, 0.75, 1.0], dtype=f64)


def state(source: Source) -> torch.Tensor:
    """About half arrived."""
    noise = torch.randint(0, 5, X_1.shape, generator=torch.Generator().manual_seed(1))
    x_0 = noise if source.mask is None else torch.full_like(X_1, source.mask)
    return torch.where(torch.rand(X_1.shape, generator=torch.Generator().manual_seed(2)) < 0.5, X_1, x_0)


def test_cross_entropy_is_torchs() -> None:
    expected = torch.nn.functional.cross_entropy(LOGITS.flatten(0, 1), X_1.flatten())
    assert cross_entropy(LOGITS, X_1).item() == pytest.approx(expected.item(), rel=1e-14)
    assert cross_entropy(LOGITS, X_1, reduction="none").shape == X_1.shape
    assert cross_entropy(LOGITS.bfloat16(), X_1).dtype == torch.float32


@pytest.mark.parametrize("source", [Uniform(5), Mask(5)])
@pytest.mark.parametrize("schedule", [Polynomial(1.0), Polynomial(3.0), Cosine()])
def test_generalised_kl_as_written(source: Source, schedule: Schedule) -> None:
    x_t, p = state(source), LOGITS.softmax(-1)
    loss = generalised_kl(LOGITS, X_1, x_t, TIMES, schedule, source, reduction="none")
    for b in range(4):
        t = min(TIMES[b].item(), 1 - 1e-5)
        weight = (schedule.derivative(t) / (1 - schedule.kappa(t))).item()
        for j in range(9):
            z, y = int(x_t[b, j]), int(X_1[b, j])
            p_z = 0.0 if z == source.mask else p[b, j, z].item()
            inner = p_z - float(y == z) + float(y != z) * math.log(p[b, j, y].item())
            assert loss[b, j].item() == pytest.approx(-weight * inner, rel=1e-9)
    whole = generalised_kl(LOGITS, X_1, x_t, TIMES, schedule, source)
    assert whole.item() == pytest.approx(loss.mean().item(), rel=1e-14)


@pytest.mark.parametrize("source", [Uniform(5), Mask(5)])
def test_gradients_are_those_of_the_formula(source: Source) -> None:
    logits = LOGITS.clone().requires_grad_()
    x_t = state(source)
    assert torch.autograd.gradcheck(
        lambda l: generalised_kl(l, X_1, x_t, TIMES[:3].mean().expand(4), Cosine(), source), (logits,)
    )
    assert torch.autograd.gradcheck(lambda l: cross_entropy(l, X_1), (logits,))


def test_bracket_is_never_negative_and_zero_at_the_truth() -> None:
    for source in (Uniform(5), Mask(5)):
        assert (bracket(LOGITS, X_1, state(source), source) >= 0).all()
        certain = torch.full_like(LOGITS, -math.inf).scatter(-1, X_1[..., None], 0.0)
        assert bracket(certain, X_1, state(source), source).eq(0).all()


@pytest.mark.parametrize("schedule", [Polynomial(1.0), Polynomial(2.0), Cosine()])
def test_with_the_mask_source_it_is_mdlms_nelbo(schedule: Schedule) -> None:
    """SUBS (revealed tokens are carried over) makes the generalised KL 1{x_t = m}·(−log p(x_1))·κ̇/(1 − κ)."""
    source = Mask(5)
    x_t = state(source)
    masked = x_t == source.mask
    carried = torch.full_like(LOGITS, -math.inf).scatter(-1, x_t.clamp(max=4)[..., None], 0.0)
    subs = torch.where(masked[..., None], LOGITS, carried)
    t = torch.tensor([0.1, 0.3, 0.75, 0.99], dtype=f64)
    loss = generalised_kl(subs, X_1, x_t, t, schedule, source, reduction="none")
    nll = -LOGITS.log_softmax(-1).gather(-1, X_1[..., None])[..., 0]
    expected = torch.where(masked, nll * schedule.rate(t)[:, None], torch.zeros((), dtype=f64))
    assert torch.allclose(loss, expected, rtol=1e-12)
    if schedule == Polynomial(1.0):  # in MDLM's time, 1 − t, the weight is one over time
        assert torch.allclose(loss, masked * nll / (1 - t)[:, None], rtol=1e-12)


def test_elbo_of_a_model_that_knows_nothing_is_the_uniform_code() -> None:
    """Mask source, equal logits (and revealed tokens carried over): exactly log |V| nats a token."""
    source = Mask(5)

    def model(x: torch.Tensor, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        carried = torch.full((*x.shape, 5), -math.inf).scatter(-1, x.clamp(max=4)[..., None], 0.0)
        return torch.where((x == 5)[..., None], torch.zeros(5), carried)

    x_1 = torch.zeros(200, 20, dtype=torch.int64)
    for schedule in (Polynomial(1.0), Polynomial(3.0), Cosine()):
        rows = elbo_rows(model, x_1, schedule, source, 64, RowNoise(0, torch.arange(200)))
        error = (rows.std() / math.sqrt(200)).item()
        assert rows.mean().item() == pytest.approx(math.log(5), abs=4 * error)
        assert error < 0.02 * math.log(5)


def test_elbo_does_not_know_the_batch() -> None:
    source, x_1 = Uniform(5), X_1

    def model(x: torch.Tensor, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        assert h.eq(0.125).all()
        return LOGITS[0, :5][x]

    whole = elbo_rows(model, x_1, Cosine(), source, 8, RowNoise(0, torch.arange(4)), h=0.125)
    alone = elbo_rows(model, x_1[2:3], Cosine(), source, 8, RowNoise(0, torch.tensor([2])), h=0.125)
    assert torch.equal(whole[2:3], alone)
    with pytest.raises(UserError, match="at least one time"):
        elbo_rows(model, x_1, Cosine(), source, 0, RowNoise(0, torch.arange(4)))


def test_strata_lower_the_variance() -> None:
    """One draw in each of 16 strata beats 16 independent draws of the same integral."""
    source, rows = Mask(2), 4000
    x_1 = torch.zeros(rows, 4, dtype=torch.int64)

    def model(x: torch.Tensor, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        # a loss that leans on t, so that much of the variance is that of the times
        return torch.stack([torch.zeros_like(x) - 3.0 * (1 - t)[:, None], torch.zeros_like(x).float()], -1)

    stratified = elbo_rows(model, x_1, Polynomial(1.0), source, 16, RowNoise(0, torch.arange(rows)))
    single = [elbo_rows(model, x_1, Polynomial(1.0), source, 1, RowNoise(s, torch.arange(rows))) for s in range(16)]
    assert stratified.var() < torch.stack(single).mean(0).var()


def test_bits_per_character() -> None:
    assert bits_per_character(math.log(2.0), tokens=30, characters=10) == pytest.approx(3.0)
    with pytest.raises(UserError, match="at least one character"):
        bits_per_character(1.0, 3, 0)
