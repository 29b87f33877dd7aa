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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from tsdfm.report.metrics.histogram import Pool

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


@dataclass(frozen=True)
class Sweep:
    """One cell of a sweep, text by text: its temperature, each text's perplexity (NaN for an empty one), entropies.

    The perplexity of several texts is the mean of theirs, as in the paper, or with `geometric` exp of their mean log.
    """

    temperature: float
    ppl: Tensor  # [n] float64
    geometric: bool
    entropy: Callable[[Tensor | None], Tensor]  # picks [draws, n], or None for all texts once → entropies [draws]

    def point(self) -> tuple[float, float]:
        """(entropy, perplexity) of all texts."""
        return float(self.entropy(None)[0]), float(self.mean(self.ppl))

    def draws(self, picks: Tensor) -> list[tuple[float, float]]:
        """The same for resampled texts, picks [draws, n]."""
        return list(zip(self.entropy(picks).tolist(), self.mean(self.ppl[picks]).tolist(), strict=True))

    def mean(self, ppl: Tensor) -> Tensor:
        """The perplexity of texts [.., n] together."""
        return ppl.log().nanmean(-1).exp() if self.geometric else ppl.nanmean(-1)


def mean_entropy(values: Tensor) -> Callable[[Tensor | None], Tensor]:
    """The mean of each text's own entropy [n]."""
    return lambda picks: values.mean()[None] if picks is None else values[picks].mean(1)


def pooled_entropy(rows: Sequence[Tensor]) -> Callable[[Tensor | None], Tensor]:
    """Entropy in bits of the bigrams of all picked texts together.

    A draw holds some texts twice, which lowers the entropy of any pool: the draws are moved so that their mean is the
    entropy of all texts.
    """
    pool = Pool(rows, 2)

    def entropy(picks: Tensor | None) -> Tensor:
        whole = torch.tensor([pool.entropy()], dtype=torch.float64)
        if picks is None:
            return whole
        weights = (torch.bincount(pick, minlength=len(rows)).double() for pick in picks)
        found = torch.tensor([pool.entropy(weight) for weight in weights], dtype=torch.float64)
        return found - found.mean() + whole

    return entropy


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
    picks = torch.randint(n, (draws, n), generator=torch.Generator().manual_seed(seed))
    same = all(len(cell.ppl) == n for cell in (*method, *control))
    ones = [cell.draws(picks) for cell in method] if same else []
    twos = [cell.draws(picks) for cell in control] if same else []
    at, over = list[float | None](), list[float | None]()
    for draw in range(draws if same else 0):
        a, b = [cell[draw] for cell in ones], [cell[draw] for cell in twos]
        at.append(ratio_at(a[own][1], a[own][0], b) if own is not None else None)
        over.append(mean_ratio(a, b))
    first = ratio_at(one[own][1], one[own][0], two) if own is not None else None
    second = mean_ratio(one, two)
    return Comparison(
        first,
        interval_of(at) if first is not None else None,
        second,
        interval_of(over) if second is not None else None,
        overlap(one, two),
    )


def interval_of(values: Sequence[float | None]) -> Interval:
    """The middle 95 % of the draws that gave a number; None if fewer than half did."""
    found = sorted(v for v in values if v is not None and math.isfinite(v))
    if not found or 2 * len(found) < len(values):
        return None
    last = len(found) - 1
    return found[int(0.025 * last)], found[min(last, math.ceil(0.975 * last))]
