"""What the tokens of texts say without a judge: entropy, distinct n-grams, repetition. Each text is [n] int64."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from tsdfm.report.metrics.intervals import Estimate, ends
from tsdfm.report.metrics.pool import Pool

DRAWS = 200
REPEATED = 4  # n of seq-rep-n


def entropy_bits(rows: Sequence[Tensor]) -> list[float]:
    """Entropy in bits of each text's own token histogram: H = −Σ_v (n_v / n)·log2(n_v / n). 0 for an empty text."""
    return entropies_of(Pool(rows, 1))


def entropies_of(pool: Pool) -> list[float]:
    """The same from a pool of single tokens."""
    return [float(bits) for bits in pool.of_each()[2]]


def entropy_nats(rows: Sequence[Tensor]) -> list[float]:
    """The same in nats, as part of the field reports it: bits · ln 2."""
    return [bits * math.log(2) for bits in entropy_bits(rows)]


def bigram_entropy_bits(rows: Sequence[Tensor]) -> float:
    """Entropy in bits of the bigrams of all texts together. No bigram crosses from one text to the next."""
    return Pool(rows, 2).entropy()


def bigram_entropy_interval(rows: Sequence[Tensor], seed: int = 0, draws: int = DRAWS) -> Estimate:
    """The same with a (centred) 95 % interval."""
    pool = Pool(rows, 2)
    return ends(pool.entropies(pool.weights(seed, draws)), pool.entropy(), centred=True)


def pooled_intervals(pool: Pool, seed: int = 0, draws: int = DRAWS) -> tuple[Estimate, Estimate]:
    """A pool's entropy and its share of different n-grams, each with a (centred) 95 % interval."""
    entropies, distincts = pool.both(pool.weights(seed, draws))
    return ends(entropies, pool.entropy(), centred=True), ends(distincts, pool.distinct(), centred=True)


def distinct(rows: Sequence[Tensor], n: int) -> float:
    """distinct-n: different n-grams over all n-grams, of all texts together. Falls with the number of texts."""
    return Pool(rows, n).distinct()


def distinct_interval(rows: Sequence[Tensor], n: int, seed: int = 0, draws: int = DRAWS) -> Estimate:
    """The same with a (centred) 95 % interval."""
    return distinct_of(Pool(rows, n), seed, draws)


def distinct_of(pool: Pool, seed: int = 0, draws: int = DRAWS) -> Estimate:
    """A pool's share of different n-grams with a (centred) 95 % interval."""
    return ends(pool.distincts(pool.weights(seed, draws)), pool.distinct(), centred=True)


def repetition(rows: Sequence[Tensor], n: int = REPEATED) -> list[float]:
    """seq-rep-n of each text: 1 − (different n-grams / n-grams). 0 for a text without an n-gram."""
    return repetition_of(Pool(rows, n))


def repetition_of(pool: Pool) -> list[float]:
    """The same from a pool of n-grams."""
    sizes, kinds, _ = pool.of_each()
    return [1.0 - some / size if size else 0.0 for some, size in zip(kinds.tolist(), sizes.tolist(), strict=True)]


def token_repetition(rows: Sequence[Tensor], window: int = 128) -> list[float]:
    """rep of each text: the share of its tokens that occur among the `window` tokens before them."""
    found = []
    for row in rows:
        seen: dict[int, int] = {}
        again = 0
        for place, token in enumerate(row.tolist()):
            again += place - seen.get(token, -window - 1) <= window
            seen[token] = place
        found.append(again / len(row) if len(row) else 0.0)
    return found
