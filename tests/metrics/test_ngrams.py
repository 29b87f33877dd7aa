"""N-grams of texts weighed again and again: against counting them one by one."""

from __future__ import annotations

import math
import statistics
from collections import Counter

import pytest
import torch
from torch import Tensor

from tsdfm.metrics.intervals import median_interval, resamples
from tsdfm.metrics.ngrams import NgramPool, entropy_bits, grams, text_stats, weights_of


def random_rows(seed: int, texts: int = 9) -> list[Tensor]:
    """Texts of 0 to 14 tokens out of a few."""
    made = torch.Generator().manual_seed(seed)
    sizes = torch.randint(0, 15, (texts,), generator=made).tolist()
    return [torch.randint(3, 3 + 2 + seed, (size,), generator=made) for size in sizes]


def counted(rows: list[Tensor], n: int, weights: list[float]) -> Counter[tuple[int, ...]]:
    """Every n-gram, text by text, in plain Python."""
    found: Counter[tuple[int, ...]] = Counter()
    for row, weight in zip(rows, weights, strict=True):
        tokens = row.tolist()
        for i in range(len(tokens) - n + 1):
            found[tuple(tokens[i : i + n])] += weight  # type: ignore[assignment]
    return found


def bits(counts: Counter[tuple[int, ...]]) -> float:
    total = sum(counts.values())
    return -sum(c / total * math.log2(c / total) for c in counts.values() if c) if total else 0.0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_weighed_pools_are_counted_ones(seed: int, n: int) -> None:
    rows = random_rows(seed)
    pool = NgramPool(rows, n)
    weights = weights_of(torch.randint(len(rows), (12, len(rows)), generator=torch.Generator().manual_seed(seed)))
    entropies, distincts = pool.both(weights)
    assert torch.equal(entropies, pool.entropies(weights))
    assert torch.equal(distincts, pool.distincts(weights))
    for draw, weight in enumerate(weights.tolist()):
        counts = counted(rows, n, weight)
        assert float(entropies[draw]) == pytest.approx(bits(counts), abs=1e-12)
        total = sum(counts.values())
        kinds = sum(1 for c in counts.values() if c)
        assert float(distincts[draw]) == pytest.approx(kinds / total if total else 0.0)
    assert pool.entropy() == pytest.approx(bits(counted(rows, n, [1.0] * len(rows))), abs=1e-12)


def test_of_each_text_alone() -> None:
    rows = random_rows(2)
    for n in (1, 3):
        sizes, kinds, entropies = NgramPool(rows, n).of_each()
        for i, row in enumerate(rows):
            counts = counted([row], n, [1.0])
            assert (int(sizes[i]), int(kinds[i])) == (sum(counts.values()), len(counts))
            assert float(entropies[i]) == pytest.approx(bits(counts), abs=1e-12)
    fours = [counted([row], 4, [1.0]) for row in rows]
    wanted = [1 - len(c) / sum(c.values()) if c else 0.0 for c in fours]
    found = text_stats(rows).repetition
    assert found is not None
    assert found.value == pytest.approx(statistics.fmean(wanted))


def test_parts_of_the_draws_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_rows(3)
    pool, weights = NgramPool(rows, 2), weights_of(resamples(len(rows), 0, 20))
    whole = pool.both(weights)
    monkeypatch.setattr("tsdfm.metrics.ngrams.ROOM", 30)
    for one, two in zip(whole, pool.both(weights), strict=True):
        torch.testing.assert_close(one, two)


def test_no_gram_crosses_a_border() -> None:
    kind, owner = grams([torch.tensor([1, 2]), torch.tensor([], dtype=torch.int64), torch.tensor([3, 1, 2])], 2)[1]
    assert owner.tolist() == [0, 2, 2]
    assert kind[0] == kind[2] != kind[1]
    assert [len(k) for k, _ in grams([torch.tensor([5])], 4)] == [1, 0, 0, 0]
    assert NgramPool([], 2).entropies(torch.zeros(3, 0, dtype=torch.float64)).tolist() == [0.0] * 3


def test_fields_are_those_of_the_single_metrics() -> None:
    rows = [torch.randint(0, 9, (20,), generator=torch.Generator().manual_seed(i)) for i in range(8)]
    found = {name: value for name, value in vars(text_stats(rows)).items() if value is not None}
    assert len(found) == 7
    assert found["entropy_bits"].value == pytest.approx(sum(entropy_bits(rows)) / 8)
    assert found["entropy_nats"].value == pytest.approx(found["entropy_bits"].value * math.log(2))
    for n in (1, 2, 3):
        counts = counted(rows, n, [1.0] * 8)
        assert found[f"distinct_{n}"].value == pytest.approx(len(counts) / sum(counts.values()))
    assert found["bigram_entropy_bits"].value == pytest.approx(bits(counted(rows, 2, [1.0] * 8)))
    for value, low, high in found.values():
        assert low - 1e-12 <= value <= high + 1e-12
    value, low, high = found["bigram_entropy_bits"]
    assert low < value < high


def test_entropy_of_known_histograms() -> None:
    rows = [torch.tensor(r, dtype=torch.int64) for r in ([7, 7, 7, 7], [1, 2, 3, 4], [1, 1, 2, 3], [])]
    assert entropy_bits(rows) == pytest.approx([0.0, 2.0, 1.5, 0.0])
    # bigrams: (1,2) twice, (2,1) once, (3,4) once; (1,3) across the border is none
    some = [torch.tensor(r, dtype=torch.int64) for r in ([1, 2, 1], [1, 2], [3, 4])]
    assert NgramPool(some, 2).entropy() == pytest.approx(1.5)
    assert [NgramPool(some, n).distinct() for n in (1, 2, 3, 5)] == pytest.approx([4 / 7, 3 / 4, 1, 0])


@pytest.mark.parametrize("count", [2, 6, 7])
def test_the_median_and_its_interval(count: int) -> None:
    values = torch.rand(count, generator=torch.Generator().manual_seed(count), dtype=torch.float64).tolist()
    drawn = sorted(statistics.median([values[i] for i in picks]) for picks in resamples(count, 3, 60).tolist())
    assert median_interval(values, 3, 60) == pytest.approx((statistics.median(values), drawn[1], drawn[58]))
