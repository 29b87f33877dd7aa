"""MAUVE: how far two sets of texts are from the same distribution, seen through features of a network.

Both sets of features are clustered together; p and q are the shares of the clusters in each. The divergence curve is

    C = { (exp(−c·KL(q ‖ r)), exp(−c·KL(p ‖ r))) : r = w·p + (1 − w)·q, 0 < w < 1 }

and MAUVE the area under it: 1 for p = q, near 0 for sets that share no cluster. c = 5, as its authors chose. The value
depends on the features, the number of clusters and the number of texts: compare only what was measured alike.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tsdfm.errors import UserError
from tsdfm.metrics.intervals import Estimate, ends, resamples

SCALE = 5.0
POINTS = 1000
KEEP = 0.9  # share of the variance that the features are cut to before clustering
PER_CLUSTER = 10  # texts of a set for each cluster
ROUNDS, STARTS = 100, 5
FEWEST = 16  # texts for which MAUVE means anything at all


def mauve(p_features: Tensor, q_features: Tensor, clusters: int | None = None, seed: int = 0) -> float:
    """MAUVE of two sets of features [n, D] and [m, D]; `clusters` none gives a tenth of the smaller set, at least 2."""
    return _area(*clustered(p_features, q_features, clusters, seed))


def mauve_interval(
    p_features: Tensor, q_features: Tensor, clusters: int | None = None, seed: int = 0, draws: int = 200
) -> Estimate:
    """MAUVE with a (centred) 95 % interval: the clusters stay, and the texts of both sets are drawn again.

    Histograms of drawn texts are noisier, hence further apart, so the draws are moved to the value (`ends`) and cut
    to 0 … 1. That the clusters themselves might have been others is not in the interval.
    """
    p, q, k = clustered(p_features, q_features, clusters, seed)
    drawn = zip(resamples(len(p), seed, draws), resamples(len(q), seed + 1, draws), strict=True)
    found = torch.tensor([_area(p[mine], q[theirs], k) for mine, theirs in drawn], dtype=torch.float64)
    value, low, high = ends(found, _area(p, q, k), centred=True)
    return Estimate(value, max(0.0, low), min(1.0, high))


def cluster_count(fewest: int) -> int:
    """How many clusters sets of that size get: a tenth, at least 2."""
    return max(2, round(fewest / PER_CLUSTER))


def clustered(
    p_features: Tensor, q_features: Tensor, clusters: int | None = None, seed: int = 0
) -> tuple[Tensor, Tensor, int]:
    """The cluster of each text of both sets, [n] and [m], and how many clusters there are."""
    if p_features.ndim != 2 or q_features.ndim != 2 or p_features.shape[1] != q_features.shape[1]:
        raise UserError("MAUVE compares features of shape [n, D] and [m, D]")
    fewest = min(len(p_features), len(q_features))
    k = cluster_count(fewest) if clusters is None else clusters
    if k < 2 or fewest < 2 or k > len(p_features) + len(q_features):
        raise UserError(f"MAUVE with {k} clusters needs at least 2 clusters and more texts than {fewest}")
    joined = torch.cat([p_features, q_features]).double()
    labels = kmeans(principal(torch.nn.functional.normalize(joined, dim=1)), k, seed)
    return labels[: len(p_features)], labels[len(p_features) :], k


def _area(p_labels: Tensor, q_labels: Tensor, k: int) -> float:
    p, q = (torch.bincount(labels, minlength=k).double() for labels in (p_labels, q_labels))
    return curve_area((p / p.sum()).numpy(), (q / q.sum()).numpy())


def curve_area(p: NDArray[np.float64], q: NDArray[np.float64], scale: float = SCALE, points: int = POINTS) -> float:
    """The area under the divergence curve of two histograms."""
    weight = np.linspace(1e-6, 1 - 1e-6, points)[:, None]
    mixed = weight * p + (1 - weight) * q
    x = np.exp(-scale * divergence(q, mixed))
    y = np.exp(-scale * divergence(p, mixed))
    # w from 0 to 1 takes x from 1 to near 0 and y the other way; the ends are on the axes
    x, y = np.concatenate([[1.0], x, [0.0]]), np.concatenate([[0.0], y, [1.0]])
    return float(np.sum((x[:-1] - x[1:]) * (y[:-1] + y[1:]) / 2))


def divergence(p: NDArray[np.float64], mixed: NDArray[np.float64]) -> NDArray[np.float64]:
    """KL(p ‖ r) for each mixture r of [points, k]; where p is 0 nothing is added."""
    held = p > 0
    ratio = np.log(p[held]) - np.log(mixed[:, held])
    total: NDArray[np.float64] = (p[held] * ratio).sum(-1)
    return total


def principal(x: Tensor, keep: float = KEEP) -> Tensor:
    """The leading principal components of x [n, D] that hold `keep` of its variance."""
    x = x - x.mean(0)
    # the smaller of the two products has all of the variance in it, and is quicker than a decomposition of x
    wide = x.shape[1] > len(x)
    values, vectors = torch.linalg.eigh(x @ x.T if wide else x.T @ x)
    variance, vectors = values.flip(0).clamp(min=0.0), vectors.flip(1)
    share = variance.cumsum(0) / variance.sum().clamp(min=1e-300)
    count = min(len(variance), int((share < keep).sum()) + 1)
    kept: Tensor = vectors[:, :count] * variance[:count].sqrt() if wide else x @ vectors[:, :count]
    return kept


def kmeans(x: Tensor, k: int, seed: int = 0) -> Tensor:
    """Clusters [n] of x [n, D] by Lloyd's rounds from k-means++ starts, the best of several."""
    tries = [_lloyd(x, k, torch.Generator().manual_seed(seed * STARTS + start)) for start in range(STARTS)]
    return min(tries, key=lambda found: found[0])[1]


def _lloyd(x: Tensor, k: int, generator: torch.Generator) -> tuple[float, Tensor]:
    """One start: the squared distances that are left, and the clusters."""
    centres = _spread(x, k, generator)
    labels = torch.cdist(x, centres).argmin(1)
    for _ in range(ROUNDS):
        centres = _means(x, labels, centres)
        moved = torch.cdist(x, centres).argmin(1)
        if torch.equal(moved, labels):
            break
        labels = moved
    return float(((x - centres[labels]) ** 2).sum()), labels


def _spread(x: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """k-means++: each next centre is a point drawn in proportion to its squared distance from those before."""
    picks = [int(torch.randint(len(x), (1,), generator=generator))]
    distance = ((x - x[picks[0]]) ** 2).sum(1)
    for _ in range(1, k):
        weight = distance if float(distance.sum()) > 0 else torch.ones_like(distance)
        picks.append(int(torch.multinomial(weight, 1, generator=generator)))
        distance = torch.minimum(distance, ((x - x[picks[-1]]) ** 2).sum(1))
    return x[picks]


def _means(x: Tensor, labels: Tensor, centres: Tensor) -> Tensor:
    """The mean of each cluster; one that has lost all its points stays where it was."""
    counts = torch.bincount(labels, minlength=len(centres)).to(x.dtype)
    sums = torch.zeros_like(centres).index_add_(0, labels, x)
    return torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], centres)
