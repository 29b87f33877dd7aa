"""What is measured of a set of texts. Each metric gives one value a text, so that intervals can be put on its mean."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def entropy_bits(rows: Sequence[Tensor]) -> list[float]:
    """Entropy in bits of each text's own token histogram: H = −Σ_v (n_v / n)·log2(n_v / n). Each row is [n] int64."""
    return [_entropy(row) for row in rows]


def _entropy(row: Tensor) -> float:
    if not len(row):
        return 0.0
    share = torch.unique(row, return_counts=True)[1].double() / len(row)
    return float(-(share * share.log2()).sum())


def mean_interval(values: Sequence[float], seed: int = 0, draws: int = 1000) -> tuple[float, float, float]:
    """Mean of `values` and its 95 % bootstrap interval (percentiles of `draws` resampled means)."""
    sample = torch.tensor(values, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(len(sample), (draws, len(sample)), generator=generator)
    means = sample[picks].mean(1).sort().values
    low, high = means[int(0.025 * draws)], means[min(draws - 1, int(0.975 * draws))]
    return float(sample.mean()), float(low), float(high)
