"""Held-out examination, shared by training (to choose the best checkpoint) and by validation.

A row number keys the times, the noise and the corruption of a pair, so the same question is asked at every evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tsdfm.compass.negatives import Negatives
from tsdfm.compass.network import CompassSpec
from tsdfm.compass.propose import propose
from tsdfm.compass.states import Walk, positive_times, walk
from tsdfm.flow import RowNoise
from tsdfm.nn.velocity import Velocity
from tsdfm.tokens.rows import TokenRows

Score = Callable[[Tensor], Tensor]
"""States [M, L] → energies [M]."""
BINS = 10
PAIR_STREAM, CURVE_STREAM, CANDIDATE_STREAM = 12, 13, 14


@dataclass(frozen=True)
class PairScores:
    """For each row and strategy [B, S]: is the positive lower, is the pair void, how many tokens were changed."""

    lower: Tensor
    void: Tensor
    changed: Tensor


@dataclass(frozen=True)
class Curve:
    """Energies along the rows' walks [B, T] at times [B, T] in ascending order, the last one t = 1.

    `same` [B, T − 1] marks neighbours that are one and the same state, of which no order can be asked.
    """

    times: Tensor
    energies: Tensor
    same: Tensor


def stride(count: int) -> int:
    """A step that visits all of `count` places, each far from the last: about 0.618 of them, without common divisor.

    >>> [n * stride(8) % 8 for n in range(8)]
    [0, 5, 2, 7, 4, 1, 6, 3]
    """
    golden = round(count * (math.sqrt(5) - 1) / 2)
    return next((step for step in range(max(1, golden), count) if math.gcd(step, count) == 1), 1)


@dataclass(frozen=True)
class Exam:
    """Questions about held-out rows. Those that follow each other are asked of rows far apart, as neighbours are of one
    document; every row has its turn before one comes again."""

    rows: TokenRows
    spec: CompassSpec
    negatives: Negatives
    clean: float
    seed: int
    device: torch.device

    def walk(self, numbers: Tensor, stream: int) -> tuple[Walk, RowNoise]:
        """The walks of questions `numbers` [B], and noise to go on with."""
        picks = (numbers * stride(len(self.rows)) % len(self.rows)).numpy()
        given = torch.from_numpy(self.rows.given(picks)).to(self.device) if self.rows.prompted else None
        noise = RowNoise(self.seed, numbers.to(self.device), stream)
        x_1 = torch.from_numpy(self.rows.take(picks).astype(np.int64)).to(self.device)
        made = walk(x_1, self.spec.flow_source(), self.spec.flow_schedule(), self.spec.anchor, noise, given)
        return made, noise

    def pairs(self, score: Score, numbers: Tensor) -> PairScores:
        """One corruption of every strategy for each question, at times as in training."""
        states, noise = self.walk(numbers, PAIR_STREAM)
        rows, names = numbers.to(self.device), self.negatives.names
        t = positive_times(rows, self.seed, self.clean, noise)
        choice = torch.arange(len(names), device=self.device).expand(len(rows), -1)
        made = self.negatives(states, t, rows, len(names), self.seed, PAIR_STREAM + 100, choice)
        x_t = states.at(t)
        energies = score_all(score, torch.cat([x_t[:, None], made.states], dim=1))
        changed = (made.states != x_t[:, None]).sum(-1)
        return PairScores(energies[:, :1] < energies[:, 1:], made.void, changed)

    def curve(self, score: Score, numbers: Tensor, times: int | None = None) -> Curve:
        """Energies at `times` random times and t = 1; without `times`, at one random time in each of ten bins."""
        states, noise = self.walk(numbers, CURVE_STREAM)
        u = noise.uniform((len(numbers), times or BINS)).to(self.device)
        t = u.sort(dim=-1).values if times else (u + torch.arange(BINS, device=self.device)) / BINS
        t = torch.cat([t, torch.ones_like(t[:, :1])], dim=1)
        count = t.shape[1]
        index = torch.arange(len(numbers), device=self.device).repeat_interleave(count)
        x = states.select(index).at(t.reshape(-1)).view(len(numbers), count, -1)
        return Curve(t, score_all(score, x), (x[:, 1:] == x[:, :-1]).all(-1))

    def candidates(
        self, score: Score, numbers: Tensor, proposer: Velocity, t: Tensor, h: Tensor, n: int, jump: str = "auto"
    ) -> Candidates:
        """The true x_{t+h} and `n` jumps of `proposer` from x_t."""
        states, noise = self.walk(numbers, CANDIDATE_STREAM)
        return score_candidates(score, states, noise, proposer, t.to(self.device), h.to(self.device), n, jump)


@dataclass(frozen=True)
class Candidates:
    """Energies of the true next state [B] and of n candidates [B, n], and which of those equal it."""

    true: Tensor
    energies: Tensor
    same: Tensor

    @property
    def spread(self) -> Tensor:
        """Standard deviation of the energies between a row's candidates [B]: what there is to choose by."""
        return self.energies.std(dim=1, unbiased=False)


def true_and_jumps(
    states: Walk, noise: RowNoise, proposer: Velocity, t: Tensor, h: Tensor, n: int, jump: str = "auto"
) -> tuple[Tensor, Tensor]:
    """[B, 1 + n, L]: the true x_{t+h} of each pair, then n jumps of the proposer from the same x_t.

    The second value [B, n] marks the jumps that gave the true state itself.
    """
    x_t, x_next = states.at(t), states.at(t + h)
    u = noise.uniform((len(t), n, x_t.shape[1], 2)).to(x_t.device)
    jumps = propose(proposer, x_t, t, h, u, proposer.jump(jump), states.given)
    return torch.cat([x_next[:, None], jumps], dim=1), (jumps == x_next[:, None]).all(-1)


def score_candidates(
    score: Score, states: Walk, noise: RowNoise, proposer: Velocity, t: Tensor, h: Tensor, n: int, jump: str = "auto"
) -> Candidates:
    """Energies of the true next state and of a proposer's jumps."""
    x, same = true_and_jumps(states, noise, proposer, t, h, n, jump)
    energies = score_all(score, x)
    return Candidates(energies[:, 0], energies[:, 1:], same)


def score_all(score: Score, states: Tensor) -> Tensor:
    """Energies [B, K] of states [B, K, L] in one call."""
    return score(states.flatten(0, 1)).view(states.shape[:2])


def bin_of(t: NDArray[np.float64]) -> NDArray[np.int64]:
    """The time bin of each t: 0 … 9 for [0, .1) … [.9, 1), and 10 for t = 1."""
    return np.where(t >= 1.0, BINS, np.minimum((t * BINS).astype(np.int64), BINS - 1))


def falling(means: NDArray[np.float64]) -> float:
    """The share of neighbouring bins whose mean energy falls strictly; bins that nothing fell into are left out."""
    known = means[~np.isnan(means)]
    return float((np.diff(known) < 0).mean()) if len(known) > 1 else float("nan")
