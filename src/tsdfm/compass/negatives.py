"""Negatives: states that look like x_t and are worse. Each strategy is a function; the table at the end names them.

A strategy gets the M pairs (a positive and one of its negatives) that drew it, and returns the corrupted states [M, L].
To add one, write such a function, put it into `STRATEGIES`, and name it in the mixture:

    def shout(pairs: Pairs) -> Tensor:
        return torch.where(pairs.pick(), BANG, pairs.x_t)

    STRATEGIES["shout"] = Strategy(shout, 0.05, 0.25)      # then --corrupt.mixture shout=1,time_downstep=4

All randomness is the pair's own (row number and negative number), so nothing depends on the batch or on processes.

A negative that came out equal to its positive is none. Token corruptions change at least one revealed position; where
there is none to change (t ≈ 0), and where time_downstep or velocity_step left everything as it was, the pair is void:
it takes no part in the loss or in the accuracy. Forcing a change instead would make velocity_step a time_downstep.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tsdfm.compass.frequency import FrequencyBins, uniform_other
from tsdfm.compass.propose import propose, reconstruct
from tsdfm.compass.settings import NegativeSettings
from tsdfm.compass.states import Walk
from tsdfm.errors import UserError
from tsdfm.flow import RowNoise, Source
from tsdfm.nn.velocity import Velocity
from tsdfm.settings import nearest


@functools.lru_cache(maxsize=64)
def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """The same float64 numbers [n] on a device, sent there once: a copy of fresh memory would be waited for."""
    return torch.tensor(values, dtype=torch.float64, device=device)


@dataclass(frozen=True)
class Kit:
    """What strategies need besides the states. `t_floor` is the earliest time of a time_downstep."""

    source: Source
    frequency: FrequencyBins
    settings: NegativeSettings
    teacher: Velocity | None = None
    t_floor: float = 0.01


@dataclass(frozen=True)
class Pairs:
    """M pairs that drew one strategy: states [M, L], times and rates [M], and their own noise."""

    walk: Walk
    x_t: Tensor
    t: Tensor
    rate: Tensor
    noise: RowNoise
    kit: Kit

    def uniform(self, *inner: int) -> Tensor:
        """Fresh uniforms [M, *inner]."""
        return self.noise.uniform((len(self.t), *inner)).to(self.x_t.device)

    def uniform_like(self) -> Tensor:
        """Fresh uniforms [M, L]."""
        return self.uniform(self.x_t.shape[1])

    @property
    def revealed(self) -> Tensor:
        """Positions that carry their token of x_1, bool [M, L]."""
        return self.walk.revealed(self.t)

    def wanted(self) -> Tensor:
        """How many positions to change [M]: the rate times the revealed ones, the floor at least, and never none."""
        revealed = self.revealed.sum(-1)
        settings = self.kit.settings
        of = revealed if settings.floor_of == "revealed" else self.walk.room()
        wanted = torch.maximum(self.rate * revealed, settings.floor * of.to(self.rate.dtype))
        return (wanted + 0.5).floor().to(torch.int64).clamp(min=1)

    def pick(self, allowed: Tensor | None = None) -> Tensor:
        """`wanted` positions, drawn without replacement from the revealed (and `allowed`) ones, bool [M, L]."""
        of = self.revealed if allowed is None else self.revealed & allowed
        keys = torch.where(of, self.uniform_like(), 2.0)
        order = keys.argsort(dim=-1)
        places = torch.arange(keys.shape[-1], device=keys.device).expand_as(order)
        rank = torch.empty_like(order).scatter_(-1, order, places)
        return of & (rank < self.wanted()[:, None])


def time_downstep(pairs: Pairs) -> Tensor:
    """x_{t′} of the same (x_0, x_1) at t′ = max(t − δ, floor): real, but less of it. δ is the rate."""
    t = torch.minimum(pairs.t, (pairs.t - pairs.rate).clamp(min=pairs.kit.t_floor))
    return pairs.walk.at(t)


def velocity_step(pairs: Pairs) -> Tensor:
    """Back to t − h, then forward to t through the frozen teacher: the errors a generation makes.

    Each revealed position is kept with probability κ(t − h)/κ(t), else it holds a source token again. Forward is the
    teacher's Euler step; with `forward = reconstruct`, a draw from p(x_1 | x_{t−h}) at the un-revealed positions only.
    """
    teacher, schedule, t = pairs.kit.teacher, pairs.walk.schedule, pairs.t
    if teacher is None:
        raise UserError("velocity_step needs a teacher: give --teacher, or a mixture without it")
    levels = constant(pairs.kit.settings.levels, t.device)
    h = torch.minimum(levels[(pairs.uniform() * len(levels)).to(torch.int64)], t)
    keep = schedule.kappa(t - h) / schedule.kappa(t).clamp(min=1e-12)
    lost = pairs.revealed & (pairs.uniform_like() >= keep[:, None])
    back = torch.where(lost, pairs.kit.source.draw(pairs.x_t.shape, pairs.noise, t.device), pairs.x_t)
    if pairs.kit.settings.forward == "reconstruct":
        return reconstruct(teacher, back, t - h, lost, pairs.uniform_like())
    u = pairs.uniform(1, pairs.x_t.shape[1], 2)
    return propose(teacher, back, t - h, h, u, teacher.jump("euler"), pairs.walk.given)[:, 0]


def random_replace(pairs: Pairs) -> Tensor:
    """Other tokens, all of the vocabulary alike."""
    other = uniform_other(pairs.x_t, pairs.kit.source.vocab, pairs.uniform_like())
    return torch.where(pairs.pick(), other, pairs.x_t)


def frequency_replace(pairs: Pairs) -> Tensor:
    """Other tokens that are about as common, so that counting words does not give them away."""
    known = pairs.x_t.clamp(max=pairs.kit.source.vocab - 1)  # [MASK] has no bin; it is never picked
    other = pairs.kit.frequency.other(known, pairs.uniform_like())
    return torch.where(pairs.pick(), other, pairs.x_t)


def token_repeat(pairs: Pairs) -> Tensor:
    """One of the row's own revealed tokens, again at other revealed positions that do not hold it yet."""
    place = torch.where(pairs.revealed, pairs.uniform_like(), -1.0).argmax(-1, keepdim=True)
    token = pairs.x_t.gather(-1, place)
    return torch.where(pairs.pick(pairs.x_t != token), token, pairs.x_t)


@dataclass(frozen=True)
class Strategy:
    """A way to corrupt, and the range its rate is drawn from. `judged`: does it count in the overall accuracy?"""

    make: Callable[[Pairs], Tensor]
    low: float = 0.0
    high: float = 0.0
    judged: bool = True


STRATEGIES = {
    "time_downstep": Strategy(time_downstep, 0.025, 0.5),
    "velocity_step": Strategy(velocity_step, judged=False),
    "random_replace": Strategy(random_replace, 0.05, 0.25),
    "frequency_replace": Strategy(frequency_replace, 0.03, 0.20),
    "token_repeat": Strategy(token_repeat, 0.05, 0.50),
}


@dataclass(frozen=True)
class Made:
    """Negatives [B, N, L], the strategy (number in `names`) and rate of each [B, N], and which of them are none."""

    states: Tensor
    choice: Tensor
    rate: Tensor
    void: Tensor


class Negatives:
    """Draws a strategy and a rate for every (row, negative), then lets each strategy make all of its own at once."""

    def __init__(self, kit: Kit) -> None:
        weights, ranges = kit.settings.weights(), kit.settings.rates()
        for name in [*weights, *ranges]:
            if name not in STRATEGIES:
                raise UserError(f"unknown negative strategy {name!r}{nearest(name, STRATEGIES)}")
        self.kit, self.names = kit, tuple(weights)
        total, running = sum(weights.values()), 0.0
        self.edges = tuple(running := running + weight / total for weight in weights.values())
        self.low = tuple(ranges[n][0] if n in ranges else STRATEGIES[n].low for n in self.names)
        self.high = tuple(ranges[n][1] if n in ranges else STRATEGIES[n].high for n in self.names)
        settings = kit.settings
        self.beta = tuple(settings.downstep_beta if n == "time_downstep" else settings.beta for n in self.names)

    @property
    def judged(self) -> tuple[str, ...]:
        """The strategies whose mean is the overall accuracy: the paper's four, and a user's own."""
        return tuple(name for name in self.names if STRATEGIES[name].judged)

    def draw(self, noise: RowNoise, device: torch.device, pairs: int) -> tuple[Tensor, Tensor]:
        """A strategy [pairs] for each pair by the mixture's weights, and the uniform [pairs] of its rate."""
        edges = constant(self.edges, device)
        u = noise.uniform((pairs, 2)).to(device)
        return torch.searchsorted(edges, u[:, 0].contiguous(), right=True).clamp(max=len(edges) - 1), u[:, 1]

    def rates(self, choice: Tensor, u: Tensor) -> Tensor:
        """low + (high − low)·Beta(1, b) of the strategies drawn; Beta(1, b) has the inverse CDF 1 − (1 − u)^{1/b}."""
        low, high, beta = (constant(values, u.device)[choice] for values in (self.low, self.high, self.beta))
        share: Tensor = -torch.expm1(torch.log1p(-u) / beta)
        return low + (high - low) * share

    def groups(self, picked: Tensor, noise: RowNoise | None) -> tuple[Tensor, ...]:
        """The pairs of each strategy, by `picked` [pairs].

        With the pairs' `noise` on the host the strategies are drawn there once more, and no device is waited for.
        """
        device = picked.device
        if noise is not None:
            picked, _ = self.draw(noise, noise.rows.device, len(picked))
        order = picked.argsort(stable=True)
        sizes = torch.bincount(picked, minlength=len(self.names)).tolist()  # where a device may be waited for
        if device.type == "cuda" and not order.is_cuda:
            order = order.pin_memory().to(device, non_blocking=True)
        return torch.split(order, sizes)

    @torch.no_grad()
    def __call__(
        self,
        walk: Walk,
        t: Tensor,
        rows: Tensor,
        count: int,
        seed: int,
        stream: int,
        choice: Tensor | None = None,
        host: Tensor | None = None,
    ) -> Made:
        """`count` negatives of each row's x_t. `choice` [B, count] fixes the strategies instead of drawing them.

        `host` [B] are the rows' numbers once more, in the host's memory: then the host need not wait for the device
        to know how many pairs drew which strategy.
        """
        batch, device = len(t), t.device
        noise = RowNoise(seed, pair_numbers(rows, count), stream)
        drawn, u = self.draw(noise, device, batch * count)
        picked = drawn if choice is None else choice.reshape(-1)
        rate = self.rates(picked, u)
        x_t = walk.at(t)
        states = x_t[:, None].expand(-1, count, -1).reshape(batch * count, -1).clone()
        own = None if host is None or choice is not None else RowNoise(seed, pair_numbers(host, count), stream)
        for name, mine in zip(self.names, self.groups(picked, own), strict=True):
            if len(mine):
                row = mine // count
                pairs = Pairs(walk.select(row), x_t[row], t[row], rate[mine], noise.select(mine), self.kit)
                states[mine] = STRATEGIES[name].make(pairs)
        states = states.view(batch, count, -1)
        shape = (batch, count)
        return Made(states, picked.view(shape), rate.view(shape), (states == x_t[:, None]).all(-1))


def pair_numbers(rows: Tensor, count: int) -> Tensor:
    """The running numbers of `count` pairs of each row [B], [B·count]."""
    return (rows[:, None] * count + torch.arange(count, device=rows.device)).view(-1)


def by_strategy(values: Mapping[str, float], names: tuple[str, ...]) -> float:
    """The plain mean over strategies."""
    return sum(values[name] for name in names) / len(names)
