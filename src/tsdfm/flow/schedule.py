"""The schedule κ(t): which share of a sequence has arrived at the data at time t.

κ rises from κ(0) = 0 (all noise) to κ(1) = 1 (all data). Everything is computed in float64 whatever the dtype of `t`,
and through 1 − κ rather than by subtracting from one, so that t = 0 and t = 1 are exact and nothing cancels near the
end.

    Polynomial(n)   κ = tⁿ
    Cosine()        κ = 1 − cos(πt/2)
    Geometric()     −log κ ≈ 10⁻⁴·(2·10⁵)^(1−t)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from tsdfm.errors import UserError

Time = Tensor | float
SIGMA_FLOOR = 1e-3  # ε of `sigma`


def as_time(t: Time) -> Tensor:
    """`t` as float64 in [0, 1]; a sum t + h that rounding pushed past 1 is 1."""
    return torch.as_tensor(t, dtype=torch.float64).clamp(0.0, 1.0)


def _power(t: Tensor, n: float) -> Tensor:
    """tⁿ for t in [0, 1]. Not `t**n`: that may round differently at the end of a vector, and rows must not notice."""
    if n == 0.0:
        return torch.ones_like(t)
    return t if n == 1.0 else torch.exp(n * torch.log(t))


@runtime_checkable
class Schedule(Protocol):
    """What the rest of `flow` asks of a schedule. Tensors go in and come out with the same shape, in float64."""

    def kappa(self, t: Time) -> Tensor:
        """κ(t)."""
        ...

    def remaining(self, t: Time) -> Tensor:
        """1 − κ(t), without cancellation near t = 1."""
        ...

    def derivative(self, t: Time) -> Tensor:
        """κ̇(t)."""
        ...

    def inverse(self, k: Time) -> Tensor:
        """The t with κ(t) = k."""
        ...

    def rate(self, t: Time) -> Tensor:
        """λ(t) = κ̇/(1 − κ), the rate at which what is still noise arrives; infinite at t = 1."""
        ...

    def survival(self, t: Time, s: Time) -> Tensor:
        """(1 − κ(s))/(1 − κ(t)) for t ≤ s: the chance that what is noise at t is still noise at s; 0 at s = 1."""
        ...


class _Base:
    """`rate` and `survival` follow from κ̇ and 1 − κ."""

    def derivative(self, t: Time) -> Tensor:
        raise NotImplementedError

    def remaining(self, t: Time) -> Tensor:
        raise NotImplementedError

    def rate(self, t: Time) -> Tensor:
        return self.derivative(t) / self.remaining(t)

    def survival(self, t: Time, s: Time) -> Tensor:
        left = self.remaining(s)
        # where nothing is left at s the answer is 0, also at t = s = 1 where the quotient would be 0/0
        return torch.where(left > 0, left / self.remaining(t), torch.zeros_like(left))


@dataclass(frozen=True)
class Polynomial(_Base):
    """κ(t) = tⁿ; n = 1, the default everywhere, is the straight line.

    >>> Polynomial(2.0).kappa(0.5)
    tensor(0.2500, dtype=torch.float64)
    """

    exponent: float = 1.0

    def __post_init__(self) -> None:
        if not (0.0 < self.exponent < math.inf):
            raise UserError(f"a polynomial schedule needs an exponent above 0, not {self.exponent}")

    def kappa(self, t: Time) -> Tensor:
        return _power(as_time(t), self.exponent)

    def remaining(self, t: Time) -> Tensor:
        t = as_time(t)
        if self.exponent == 1.0:
            return 1.0 - t
        return 0.0 - torch.expm1(self.exponent * torch.log(t))  # 0 − 0 is +0 at t = 1, so the rate there is +inf

    def derivative(self, t: Time) -> Tensor:
        return self.exponent * _power(as_time(t), self.exponent - 1.0)

    def inverse(self, k: Time) -> Tensor:
        return _power(as_time(k), 1.0 / self.exponent)


@dataclass(frozen=True)
class Cosine(_Base):
    """κ(t) = 1 − cos(πt/2): slow at first, fastest at the end."""

    def kappa(self, t: Time) -> Tensor:
        t = as_time(t)
        # 2 sin²(πt/4) keeps small t exact; at t = 1 it may miss 1 by one bit
        return torch.where(t < 1.0, (2.0 * torch.sin(t * (math.pi / 4)) ** 2).clamp(max=1.0), torch.ones_like(t))

    def remaining(self, t: Time) -> Tensor:
        return torch.sin((1.0 - as_time(t)) * (math.pi / 2))  # cos(πt/2), but 0 and not 6e−17 at t = 1

    def derivative(self, t: Time) -> Tensor:
        return torch.sin(as_time(t) * (math.pi / 2)) * (math.pi / 2)

    def inverse(self, k: Time) -> Tensor:
        k = as_time(k)
        t = torch.asin(torch.sqrt(k / 2.0)) * (4.0 / math.pi)
        return torch.where(k < 1.0, t.clamp(max=1.0), torch.ones_like(k))


@dataclass(frozen=True)
class Geometric(_Base):
    """SEDD's noise for the uniform source: σ = −log κ falls by a constant factor, from `high` to `low`.

        σ(t) = low·(R^(1−t) − 1),   R = high/low,   κ(t) = (e^(−σ(t)) − e^(−σ(0)))/(1 − e^(−σ(0)))

    The 1 that is taken off and the division make κ(1) = 1 and κ(0) = 0 exactly, where SEDD has e^(−10⁻⁴) and e^(−20).
    """

    low: float = 1e-4
    high: float = 20.0

    @property
    def _growth(self) -> float:
        return math.log(self.high / self.low)

    @property
    def _most(self) -> float:
        return self.high - self.low

    def _sigma(self, t: Tensor) -> Tensor:
        return self.low * torch.expm1((1.0 - t) * self._growth)

    def kappa(self, t: Time) -> Tensor:
        t = as_time(t)
        sigma = self._sigma(t)
        kappa = torch.exp(-sigma) * torch.expm1(sigma - self._most) / math.expm1(-self._most)
        return torch.where(t > 0.0, kappa.clamp(0.0, 1.0), 0.0)

    def remaining(self, t: Time) -> Tensor:
        return (torch.expm1(-self._sigma(as_time(t))) / math.expm1(-self._most)).clamp(max=1.0).abs()

    def derivative(self, t: Time) -> Tensor:
        sigma = self._sigma(as_time(t))
        return torch.exp(-sigma) * (sigma + self.low) * (self._growth / -math.expm1(-self._most))

    def inverse(self, k: Time) -> Tensor:
        k = as_time(k)
        sigma = -torch.log1p((1.0 - k) * math.expm1(-self._most))
        t = 1.0 - torch.log1p(sigma / self.low) / self._growth
        return torch.where(k > 0.0, t.clamp(0.0, 1.0), 0.0)


def sigma(schedule: Schedule, t: Time) -> Tensor:
    """σ = −log(ε + (1−ε)·κ(t)), ε = 10⁻³: the noise as SEDD, Duo and public checkpoints are told it, finite at t = 0.

    With κ = t it is the log-linear noise of those papers: 6.9 at t = 0, 0 at t = 1. Float64, the shape of `t`.
    """
    return -torch.log(SIGMA_FLOOR + (1.0 - SIGMA_FLOOR) * schedule.kappa(t))


def schedule_from(text: str) -> Schedule:
    """A schedule from its name: "poly:1", "poly:2.5", "cosine"."""
    name, _, number = text.strip().partition(":")
    if name in ("cosine", "geometric") and not number:
        return Cosine() if name == "cosine" else Geometric()
    if name == "poly":
        try:
            return Polynomial(float(number or 1.0))
        except ValueError:
            pass
    known = '"poly:N" with a number N above 0 (poly:1 is linear), "cosine" or "geometric"'
    raise UserError(f'unknown schedule "{text}": use {known}')
