"""Small statistics on numpy arrays: correlations, and the summary of energy curves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsdfm.compass.exam import BINS, bin_of, falling

Floats = NDArray[np.float64]


def pearson(x: Floats, y: Floats) -> float:
    """Linear correlation; NaN where one of them does not vary."""
    x, y = x - x.mean(), y - y.mean()
    scale = math.sqrt(float((x**2).sum() * (y**2).sum()))
    return float((x * y).sum()) / scale if scale > 0 else math.nan


def ranks(x: Floats) -> Floats:
    """Ranks from 0, equal values sharing their mean rank."""
    _, group, counts = np.unique(x, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    shared: Floats = (ends - counts + ends - 1)[group.reshape(x.shape)] / 2.0
    return shared


def spearman(x: Floats, y: Floats) -> float:
    """Rank correlation."""
    return pearson(ranks(x), ranks(y))


def curve_summary(times: Floats, energies: Floats, same: NDArray[np.bool_]) -> dict[str, Any]:
    """What the paper's appendix reports of energies [R, T] at ascending times [R, T] that end in t = 1.

    Neighbouring times whose states are the same (`same` [R, T − 1]) are no pair to order, and are left out of
    the smoothness. A violation belongs to the region of the earlier of its two times.
    """
    bins = bin_of(times)
    means = np.array([energies[bins == b].mean() if (bins == b).any() else math.nan for b in range(BINS + 1)])
    stds = np.array([energies[bins == b].std() if (bins == b).any() else math.nan for b in range(BINS + 1)])
    rise = np.diff(energies, axis=1)
    wrong = (rise >= 0) & ~same
    known = np.flatnonzero(~np.isnan(means))
    regions = np.bincount(bins[:, :-1][wrong], minlength=BINS)[:BINS]
    return {
        "bins": [
            {"from": b / BINS, "to": min(1.0, (b + 1) / BINS), "count": int((bins == b).sum()), "mean": m, "std": s}
            for b, (m, s) in enumerate(zip(map(none_if_nan, means), map(none_if_nan, stds), strict=True))
        ],
        "adjacent_bins": len(known) - 1,
        "adjacent_bins_monotone": falling(means),
        "smoothness": float(1.0 - wrong.sum() / max(1, (~same).sum())),
        "smoothness_pairs": int((~same).sum()),
        "identical_pairs": int(same.sum()),
        "samples": len(energies),
        "samples_with_violation": int(wrong.any(1).sum()),
        "largest_violation": float(rise[wrong].max()) if wrong.any() else 0.0,
        "violations_by_region": [int(count) for count in regions],
        "spearman": none_if_nan(spearman(times.reshape(-1), energies.reshape(-1))),
        "pearson": none_if_nan(pearson(times.reshape(-1), energies.reshape(-1))),
        "energy_gap": float(means[known[0]] - means[BINS]),
    }


def none_if_nan(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else float(value)
