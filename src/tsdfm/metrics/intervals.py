"""Intervals of anything that is computed from a set of texts: by bootstrap, and of a share by Wilson's score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from tsdfm.errors import UserError


class Estimate(NamedTuple):
    """A value and the two ends of its 95 % interval, NaN where that is not known: one text has none."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def interval(self) -> list[float] | None:
        """The two ends, for JSON."""
        return [self.low, self.high] if math.isfinite(self.low) else None


@lru_cache(maxsize=8)
def resamples(count: int, seed: int, draws: int) -> Tensor:
    """`draws` samples of `count` indices with replacement, [draws, count]; kept, so only to be read."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(count, (draws, count), generator=generator)


def ends(replicates: Tensor, estimate: float, centred: bool = False, *, texts: int | None = None) -> Estimate:
    """The interval between the 2.5th and the 97.5th percentile of the replicates [draws].

    With `centred`, they are first moved so that their mean is the estimate. A resample holds some texts twice, so what
    counts different things (the entropy of a pool, distinct-n) comes out too low in every one of them; their spread
    is then of use, their place is not. Of a single one of `texts` every resample is the same: that is no interval.
    """
    if texts == 1:
        return Estimate(estimate)
    draws = len(replicates)
    ordered = replicates.sort().values
    low, high = ordered[int(0.025 * draws)], ordered[min(draws - 1, int(0.975 * draws))]
    shift = estimate - float(replicates.mean()) if centred else 0.0
    return Estimate(estimate, float(low) + shift, float(high) + shift)


def mean_interval(values: Sequence[float], seed: int = 0, draws: int = 1000) -> Estimate:
    """Mean of `values` and its 95 % bootstrap interval (percentiles of `draws` resampled means)."""
    sample = _some(values)
    return ends(sample[resamples(len(sample), seed, draws)].mean(1), float(sample.mean()), texts=len(sample))


def crossed_interval(values: Sequence[ArrayLike], seed: int = 0, draws: int = 1000) -> Estimate:
    """Mean of what R runs make of the same P problems [R][P], and its interval: runs and problems are both drawn anew.

    One run gives `mean_interval`. Of few runs, such as three, the interval covers little more than their range.
    """
    table = torch.stack([_some(row) for row in values])
    runs, problems = table.shape
    means = table[:, resamples(problems, seed, draws)].mean(2)  # [R, draws]
    drawn = means.gather(0, resamples(runs, seed + 1, draws).T).mean(0)
    return ends(drawn, float(table.mean()), texts=problems)


def ratio_interval(top: Sequence[float], bottom: Sequence[float], seed: int = 0, draws: int = 1000) -> Estimate:
    """Σ top / Σ bottom over texts (a pooled mean, such as nats per token of a corpus), resampled text by text.

    The interval of a rising function of it, such as exp, is that function of the ends.
    """
    above, below = _some(top), _some(bottom)
    picks = resamples(len(above), seed, draws)
    sums = below[picks].sum(1)
    if not float(below.sum()) > 0:
        raise UserError("a pooled mean needs something to be shared among")
    kept = sums > 0  # a resample of empty texts alone has no mean
    return ends(above[picks].sum(1)[kept] / sums[kept], float(above.sum() / below.sum()), texts=len(above))


def median_interval(values: Sequence[float], seed: int = 0, draws: int = 1000) -> Estimate:
    """The middle value (the mean of the middle two) and its 95 % bootstrap interval."""
    sample = _some(values)
    drawn = _median(sample[resamples(len(sample), seed, draws)])
    return ends(drawn, float(_median(sample)), texts=len(sample))


def wilson(right: int, asked: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson's score interval), sound also near 0 and 1."""
    if not asked:
        return 0.0, 1.0
    p = right / asked
    centre = (p + z * z / (2 * asked)) / (1 + z * z / asked)
    half = z * math.sqrt(p * (1 - p) / asked + z * z / (4 * asked * asked)) / (1 + z * z / asked)
    return max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))  # rounding must not exclude p itself


def _median(values: Tensor) -> Tensor:
    """Over the last dimension."""
    ordered, size = values.sort(-1).values, values.shape[-1]
    return (ordered[..., (size - 1) // 2] + ordered[..., size // 2]) / 2


def _some(values: ArrayLike) -> Tensor:
    sample = torch.as_tensor(values, dtype=torch.float64)
    if not len(sample):
        raise UserError("an interval needs at least one value")
    return sample
