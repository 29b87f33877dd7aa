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
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tsdfm.report.metrics.intervals import resamples
from tsdfm.report.metrics.ngrams import NgramPool, weights_of

Points = Sequence[tuple[float, float]]
"""(entropy, perplexity) of a curve."""
Interval = tuple[float, float] | None


def curve(points: Points) -> list[tuple[float, float]]:
    """(entropy, log-perplexity) in the order of entropy; points of the same entropy become their mean."""
    found: dict[float, list[float]] = {}
    for entropy, ppl in points:
        found.setdefault(entropy, []).append(math.log(ppl))
    return [(entropy, sum(logs) / len(logs)) for entropy, logs in sorted(found.items())]


def log_ppl_at(points: Points, entropy: float) -> float | None:
    """log ppl at an entropy, by a straight line between the neighbours; None outside the curve.

    >>> log_ppl_at([(1.0, math.e), (2.0, math.e**3)], 1.5)
    2.0
    """
    line = curve(points)
    for (h0, y0), (h1, y1) in pairwise(line):
        if h0 <= entropy <= h1:
            return y0 + (y1 - y0) * (entropy - h0) / (h1 - h0)
    return line[0][1] if len(line) == 1 and line[0][0] == entropy else None


def ratio_at(ppl: float, entropy: float, control: Points) -> float | None:
    """ppl / ppl_control(entropy), or None where the control has no such entropy."""
    other = log_ppl_at(control, entropy)
    return None if other is None else ppl / math.exp(other)


def overlap(points: Points, control: Points) -> tuple[float, float] | None:
    """The entropies both curves have, if there is more than a point of them."""
    one, two = curve(points), curve(control)
    if not one or not two:
        return None
    low, high = max(one[0][0], two[0][0]), min(one[-1][0], two[-1][0])
    return (low, high) if low < high else None


def mean_ratio(points: Points, control: Points) -> float | None:
    """exp of the mean log-ratio over the overlap, integrated exactly (both logs are linear between knots)."""
    span = overlap(points, control)
    if span is None:
        return None
    knots = {entropy for entropy, _ in (*points, *control) if span[0] < entropy < span[1]} | set(span)
    area = 0.0
    for left, right in pairwise(sorted(knots)):
        ends = [(log_ppl_at(points, h) or 0.0) - (log_ppl_at(control, h) or 0.0) for h in (left, right)]
        area += (right - left) * sum(ends) / 2
    return math.exp(area / (span[1] - span[0]))


class Entropy(Protocol):
    """The entropy of a cell's texts."""

    def __call__(self, picks: Tensor | None) -> Tensor:
        """Entropies [draws] of resampled texts, picks [draws, n]; None is all texts once, [1]."""


@dataclass(frozen=True)
class Sweep:
    """One cell of a sweep, text by text: its temperature, each text's perplexity (NaN for an empty one), entropies.

    The perplexity of several texts is the mean of theirs, as in the paper, or with `geometric` exp of their mean log.
    """

    temperature: float
    ppl: Tensor  # [n] float64
    geometric: bool
    entropy: Entropy
    _last: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list, init=False, repr=False, compare=False)

    def point(self) -> tuple[float, float]:
        """(entropy, perplexity) of all texts."""
        return float(self.entropy(None)[0]), float(self.mean(self.ppl))

    def draws(self, picks: Tensor) -> tuple[Tensor, Tensor]:
        """Entropies and log-perplexities [draws] of resampled texts, picks [draws, n].

        The last ones are remembered, as a control is compared with many methods.
        """
        if not self._last or self._last[0][0] is not picks:
            self._last[:] = [(picks, self.entropy(picks), self.mean(self.ppl[picks]).log())]
        return self._last[0][1:]

    def mean(self, ppl: Tensor) -> Tensor:
        """The perplexity of texts [.., n] together."""
        return ppl.log().nanmean(-1).exp() if self.geometric else ppl.nanmean(-1)


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
class Comparison:
    """A method against its control. What lies outside a curve is None."""

    at_own_entropy: float | None
    at_own_interval: Interval
    over_overlap: float | None
    over_interval: Interval
    span: tuple[float, float] | None


def compare(method: Sequence[Sweep], control: Sequence[Sweep], *, draws: int, seed: int) -> Comparison:
    """Both ratios with 95 % intervals."""
    one, two = [cell.point() for cell in method], [cell.point() for cell in control]
    own = next((i for i, cell in enumerate(method) if cell.temperature == 1.0), None)
    n = len(method[0].ppl)
    at, over = list[float | None](), list[float | None]()
    if all(len(cell.ppl) == n for cell in (*method, *control)):
        picks = resamples(n, seed, draws)
        mine, theirs = Curves.of(method, picks), Curves.of(control, picks)
        at = ratios_at(mine, own, theirs) if own is not None else [None] * draws
        over = mean_ratios(mine, theirs)
    first = ratio_at(one[own][1], one[own][0], two) if own is not None else None
    second = mean_ratio(one, two)
    return Comparison(
        first,
        interval_of(at) if first is not None else None,
        second,
        interval_of(over) if second is not None else None,
        overlap(one, two),
    )


class Curves(NamedTuple):
    """A curve for each bootstrap draw: entropies and log-perplexities, both [points, draws]."""

    entropy: Tensor
    logs: Tensor

    @classmethod
    def of(cls, line: Sequence[Sweep], picks: Tensor) -> Curves:
        """The curves of a sweep's cells."""
        drawn = [cell.draws(picks) for cell in line]
        return cls(torch.stack([entropy for entropy, _ in drawn]), torch.stack([logs for _, logs in drawn]))

    def ordered(self) -> Curves:
        """By entropy, [draws, points]."""
        entropy, order = self.entropy.T.contiguous().sort(-1)
        return Curves(entropy, self.logs.T.gather(-1, order))

    def points(self, draw: int) -> list[tuple[float, float]]:
        """(entropy, perplexity) of one draw."""
        return list(zip(self.entropy[:, draw].tolist(), self.logs[:, draw].exp().tolist(), strict=True))

    def plain(self) -> bool:
        """Has every draw at least two points, and no two of the same entropy?"""
        return len(self.entropy) > 1 and bool((self.entropy.T.sort(-1).values.diff(dim=-1) > 0).all())


def ratios_at(mine: Curves, own: int, theirs: Curves) -> list[float | None]:
    """`ratio_at` of the point number `own` for every draw."""
    if not theirs.plain():
        ends = zip(mine.logs[own].exp().tolist(), mine.entropy[own].tolist(), strict=True)
        return [ratio_at(ppl, entropy, theirs.points(draw)) for draw, (ppl, entropy) in enumerate(ends)]
    other = between(theirs.ordered(), mine.entropy[own][:, None])[:, 0]
    return numbers((mine.logs[own] - other).exp())


def mean_ratios(mine: Curves, theirs: Curves) -> list[float | None]:
    """`mean_ratio` for every draw."""
    if not (mine.plain() and theirs.plain()):
        return [mean_ratio(mine.points(draw), theirs.points(draw)) for draw in range(mine.logs.shape[1])]
    one, two = mine.ordered(), theirs.ordered()
    low = torch.maximum(one.entropy[:, :1], two.entropy[:, :1])
    high = torch.minimum(one.entropy[:, -1:], two.entropy[:, -1:])
    knots = torch.cat([one.entropy, two.entropy], 1).clamp(low, torch.maximum(low, high)).sort(-1).values
    area = torch.trapezoid(between(one, knots) - between(two, knots), knots)
    span = (high - low)[:, 0]
    return numbers(torch.where(span > 0, area / span, torch.nan).exp())


def between(curves: Curves, entropy: Tensor) -> Tensor:
    """log ppl of ordered curves [draws, points] at entropies [draws, k]; NaN outside."""
    known, logs = curves
    right = torch.searchsorted(known, entropy.contiguous()).clamp(1, known.shape[1] - 1)
    h0, h1, y0, y1 = (values.gather(-1, index) for values in (known, logs) for index in (right - 1, right))
    found = y0 + (y1 - y0) * (entropy - h0) / (h1 - h0)
    return torch.where((entropy < known[:, :1]) | (entropy > known[:, -1:]), torch.nan, found)


def numbers(values: Tensor) -> list[float | None]:
    """NaN as None."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def interval_of(values: Sequence[float | None]) -> Interval:
    """The middle 95 % of the draws that gave a number; None if fewer than half did."""
    found = sorted(v for v in values if v is not None and math.isfinite(v))
    if not found or 2 * len(found) < len(values):
        return None
    last = len(found) - 1
    return found[int(0.025 * last)], found[min(last, math.ceil(0.975 * last))]
