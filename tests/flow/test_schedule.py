"""Schedules: exact at both ends, inverse, derivative, rate and survival consistent with κ."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tsdfm.errors import UserError
from tsdfm.flow.schedule import Cosine, Geometric, Polynomial, Schedule, schedule_from

schedules = st.one_of(st.just(Cosine()), st.just(Geometric()), st.floats(0.25, 6.0).map(Polynomial))
inside = st.floats(0.001, 0.999)


@given(schedule=schedules, dtype=st.sampled_from([torch.float32, torch.float64]))
def test_ends_are_exact(schedule: Schedule, dtype: torch.dtype) -> None:
    ends = torch.tensor([0.0, 1.0], dtype=dtype)
    assert schedule.kappa(ends).tolist() == [0.0, 1.0]
    assert schedule.remaining(ends).tolist() == [1.0, 0.0]
    assert schedule.inverse(ends).tolist() == [0.0, 1.0]
    assert schedule.survival(ends, torch.ones(2)).tolist() == [0.0, 0.0]
    assert schedule.survival(torch.zeros(1), torch.zeros(1)).tolist() == [1.0]
    assert schedule.rate(ends)[1].item() == math.inf
    assert schedule.kappa(ends).dtype == torch.float64


@given(schedule=schedules, t=inside)
def test_kappa_remaining_and_inverse_agree(schedule: Schedule, t: float) -> None:
    kappa = schedule.kappa(t).item()
    assert kappa + schedule.remaining(t).item() == pytest.approx(1.0, abs=1e-15)
    assert schedule.kappa(schedule.inverse(kappa)).item() == pytest.approx(kappa, rel=1e-12)
    assert 0.0 < kappa < 1.0


@given(schedule=schedules, t=inside)
def test_derivative_is_the_slope(schedule: Schedule, t: float) -> None:
    time = torch.tensor(t, dtype=torch.float64, requires_grad=True)
    schedule.kappa(time).backward()
    assert time.grad is not None
    assert schedule.derivative(t).item() == pytest.approx(time.grad.item(), rel=1e-10)
    assert schedule.rate(t).item() == pytest.approx(time.grad.item() / (1 - schedule.kappa(t).item()), rel=1e-9)


@given(schedule=schedules, times=st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3))
def test_survival_multiplies_along_time(schedule: Schedule, times: list[float]) -> None:
    t, s, r = sorted(times)
    whole = schedule.survival(t, r).item()
    assert 0.0 <= whole <= 1.0
    assert schedule.survival(t, s).item() * schedule.survival(s, r).item() == pytest.approx(whole, rel=1e-9, abs=1e-300)


@given(schedule=schedules, t=st.floats(0.05, 0.9), h=st.floats(0.001, 0.09))
def test_survival_is_the_exponential_of_the_integrated_rate(schedule: Schedule, t: float, h: float) -> None:
    points = t + h * (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    integral = schedule.rate(points).mean().item() * h
    assert math.exp(-integral) == pytest.approx(schedule.survival(t, t + h).item(), rel=1e-5)


def test_no_cancellation_near_the_end() -> None:
    left = 2.0**-50
    for n in (2.0, 3.5):
        assert Polynomial(n).remaining(1 - left).item() == pytest.approx(n * left, rel=1e-9)
    assert Cosine().remaining(1 - left).item() == pytest.approx(left * math.pi / 2, rel=1e-9)


def test_values() -> None:
    assert Polynomial(3.0).kappa(0.5).item() == pytest.approx(0.125, rel=1e-15)
    assert Cosine().kappa(2 / 3).item() == pytest.approx(0.5, rel=1e-15)
    middle = math.sqrt(20 * 1e-4)  # halfway in the logarithm
    assert -math.log(Geometric().kappa(0.5).item()) == pytest.approx(middle - 1e-4, rel=1e-6)
    assert -math.log(Geometric().kappa(0.1).item()) == pytest.approx(20**0.9 * 1e-4**0.1, rel=1e-4)
    assert Polynomial(1.0).rate(torch.tensor([0.0, 0.5, 0.75])).tolist() == [1.0, 2.0, 4.0]


def test_rounding_past_the_end_is_the_end() -> None:
    assert Polynomial(2.0).survival(torch.tensor([0.5]), torch.tensor([1.0000001])).item() == 0.0
    assert Cosine().kappa(torch.tensor([1.0000001])).item() == 1.0


def test_by_name() -> None:
    assert schedule_from("poly:2.5") == Polynomial(2.5)
    assert schedule_from("poly:1") == Polynomial(1.0)
    assert schedule_from("cosine") == Cosine()
    assert schedule_from("geometric") == Geometric()


@pytest.mark.parametrize(
    "text", ["poly:0", "poly:-1", "poly:nan", "poly:inf", "poly:x", "linear", "", "cosine:2", "geometric:3"]
)
def test_bad_names_end_in_one_line(text: str) -> None:
    with pytest.raises(UserError) as problem:
        schedule_from(text)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("schedule", [Polynomial(0.4), Polynomial(1.0), Polynomial(2.5), Cosine(), Geometric()])
def test_a_time_does_not_know_its_neighbours(schedule: Schedule) -> None:
    t = torch.rand(1001, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for f in (schedule.kappa, schedule.remaining, schedule.derivative, schedule.rate, schedule.inverse):
        assert torch.equal(f(t), torch.cat([f(part) for part in t.split(7)]))
