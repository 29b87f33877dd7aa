"""Perplexity at matched entropy.

Perplexity falls when text gets narrower, so one number proves little. A sweep of the sampling temperature gives each
method a curve of points (entropy, perplexity). Between neighbouring points, log-perplexity is taken as linear in
entropy; outside a curve nothing is said. A method is compared with a control in two ways:

    at its own entropy      ppl(T = 1) / ppl_control(H),   H the method's entropy at T = 1
    over the overlap        exp of the mean over H of log ppl(H) − log ppl_control(H), where both curves are

Below 1 is better than the control. Intervals come from a bootstrap over texts. Text i of every cell is made from the
same random numbers, so one draw takes the same texts of both curves, at all temperatures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tsdfm.metrics.intervals import resamples
from tsdfm.metrics.ngrams import NgramPool, weights_of

Interval = tuple[float, float] | None


class Entropy(Protocol):
    """The entropy of a cell's texts."""

    def __call__(self, picks: Tensor | None) -> Tensor:
        """Entropies [draws] of resampled texts, picks [draws, n]; None is all texts once, [1]."""


def mean_entropy(values: Tensor) -> Entropy:
    """The mean of each text's own entropy [n]."""
    return lambda picks: values.mean()[None] if picks is None else values[picks].mean(1)


class PooledEntropy:
    """Entropy in bits of the bigrams of all picked texts together.

    A draw holds some texts twice, which lowers the entropy of any pool: the draws are moved so that their mean is the
    entropy of all texts. The last draws are remembered: they are the same for every judge.
    """

    def __init__(self, rows: Sequence[Tensor]) -> None:
        self._pool = NgramPool(rows, 2)
        self._whole = torch.tensor([self._pool.entropy()], dtype=torch.float64)
        self._last: tuple[Tensor, Tensor] | None = None

    def __call__(self, picks: Tensor | None) -> Tensor:
        if picks is None:
            return self._whole
        if self._last is None or self._last[0] is not picks:
            found = self._pool.entropies(weights_of(picks))
            self._last = picks, found - found.mean() + self._whole
        return self._last[1]


@dataclass(frozen=True)
class Sweep:
    """One cell of a sweep, text by text: its temperature, each text's perplexity (NaN for an empty one), entropies.

    The perplexity of several texts is the mean of theirs, as in the paper, or with `geometric` exp of their mean log.
    """

    temperature: float
    ppl: Tensor  # [n] float64
    geometric: bool
    entropy: Entropy
    _last: list[tuple[Tensor, tuple[Tensor, Tensor]]] = field(default_factory=list, init=False, compare=False)

    def draws(self, picks: Tensor | None) -> tuple[Tensor, Tensor]:
        """Entropies and log-perplexities [draws] of resampled texts, picks [draws, n]; None is all texts once, [1].

        The last ones are remembered, as a control is compared with many methods.
        """
        if self._last and self._last[0][0] is picks:
            return self._last[0][1]
        ppl = self.ppl[None] if picks is None else self.ppl[picks]
        found = self.entropy(picks), ppl.log().nanmean(-1) if self.geometric else ppl.nanmean(-1).log()
        if picks is not None:
            self._last[:] = [(picks, found)]
        return found


class Curves(NamedTuple):
    """A curve for each bootstrap draw: its entropies in their order, and log-perplexities, both [draws, points]."""

    entropy: Tensor
    logs: Tensor

    @classmethod
    def of(cls, entropy: Tensor, logs: Tensor) -> Curves:
        """From points in any order, [draws, points]; those of the same entropy become their mean."""
        entropy, order = entropy.sort(-1)
        same = entropy[:, :, None] == entropy[:, None]
        logs = torch.where(same, logs.gather(-1, order)[:, None], 0.0).sum(-1) / same.sum(-1)
        return cls(entropy, logs) if entropy.shape[1] > 1 else cls(entropy.repeat(1, 2), logs.repeat(1, 2))

    def at(self, entropy: Tensor) -> Tensor:
        """log ppl at entropies [draws, k], by a straight line between the neighbours; NaN outside the curve."""
        right = torch.searchsorted(self.entropy, entropy.contiguous()).clamp(1, self.entropy.shape[1] - 1)
        h0, h1, y0, y1 = (values.gather(-1, index) for values in self for index in (right - 1, right))
        found = torch.where(h1 > h0, y0 + (y1 - y0) * (entropy - h0) / (h1 - h0), y0)
        return torch.where((entropy < self.entropy[:, :1]) | (entropy > self.entropy[:, -1:]), torch.nan, found)


def overlap(one: Curves, two: Curves) -> tuple[Tensor, Tensor]:
    """The lowest and the highest entropy that both curves have, [draws, 1]; there are none where low ≥ high."""
    low = torch.maximum(one.entropy[:, :1], two.entropy[:, :1])
    return low, torch.minimum(one.entropy[:, -1:], two.entropy[:, -1:])


def mean_ratio(one: Curves, two: Curves) -> Tensor:
    """exp of the mean log-ratio over the overlap [draws], integrated exactly (both logs are linear between knots)."""
    low, high = overlap(one, two)
    knots = torch.cat([one.entropy, two.entropy], 1).clamp(low, torch.maximum(low, high)).sort(-1).values
    area, span = torch.trapezoid(one.at(knots) - two.at(knots), knots), (high - low)[:, 0]
    return torch.where(span > 0, area / span, torch.nan).exp()


@dataclass(frozen=True)
class Comparison:
    """A method against its control. What lies outside a curve is None."""

    at_own_entropy: float | None
    at_own_interval: Interval
    over_overlap: float | None
    over_interval: Interval
    span: Interval


def compare(method: Sequence[Sweep], control: Sequence[Sweep], *, draws: int, seed: int) -> Comparison:
    """Both ratios with 95 % intervals."""
    own = next((i for i, cell in enumerate(method) if cell.temperature == 1.0), None)

    def ratios(picks: Tensor | None) -> tuple[list[float], list[float], Curves, Curves]:
        """At the own entropy and over the overlap for every draw, and the curves."""
        mine, theirs = (Curves.of(*(torch.stack(x, 1) for x in zip(*(cell.draws(picks) for cell in line), strict=True)))
                        for line in (method, control))  # fmt: skip
        at = torch.full((len(mine.logs),), torch.nan)
        if own is not None:
            entropy, logs = method[own].draws(picks)
            at = (logs - theirs.at(entropy[:, None])[:, 0]).exp()
        return at.tolist(), mean_ratio(mine, theirs).tolist(), mine, theirs

    (at,), (over,), mine, theirs = ratios(None)
    low, high = (float(end) for end in overlap(mine, theirs))
    n, drawn = len(method[0].ppl), (list[float](), list[float]())
    if all(len(cell.ppl) == n for cell in (*method, *control)):
        drawn = ratios(resamples(n, seed, draws))[:2]
    return Comparison(
        at if math.isfinite(at) else None,
        interval_of(drawn[0]) if math.isfinite(at) else None,
        over if math.isfinite(over) else None,
        interval_of(drawn[1]) if math.isfinite(over) else None,
        (low, high) if low < high else None,
    )


def interval_of(values: Sequence[float]) -> Interval:
    """The middle 95 % of the draws that gave a number; None if fewer than half did."""
    found = sorted(filter(math.isfinite, values))
    if not found or 2 * len(found) < len(values):
        return None
    last = len(found) - 1
    return found[int(0.025 * last)], found[min(last, math.ceil(0.975 * last))]
