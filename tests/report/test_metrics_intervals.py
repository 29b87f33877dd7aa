"""Bootstrap intervals of means, pooled means and any statistic."""

from __future__ import annotations

import math
import random

import pytest
import torch

from tsdfm.errors import UserError
from tsdfm.report.metrics import (
    bigram_entropy_bits,
    bigram_entropy_interval,
    distinct,
    distinct_interval,
    interval,
    mean_interval,
    ratio_interval,
)


def test_all_three_agree_where_they_mean_the_same() -> None:
    values = [1.0, 2.0, 4.0, 8.0, 3.0]
    mean = mean_interval(values, seed=4, draws=300)
    assert interval(lambda v: sum(v) / len(v), values, seed=4, draws=300) == pytest.approx(mean)
    assert ratio_interval(values, [1.0] * 5, seed=4, draws=300) == pytest.approx(mean)


def test_lists_are_resampled_together() -> None:
    """y = 2x text by text: their ratio has no spread unless the pairs were torn apart."""
    x = [1.0, 5.0, 9.0, 2.0]
    found = interval(lambda a, b: sum(b) / sum(a), x, [2 * v for v in x], draws=50)
    assert found == pytest.approx((2.0, 2.0, 2.0))


def test_a_pooled_ratio_covers_its_truth_as_often_as_it_says() -> None:
    draw, hits = random.Random(1), 0
    for trial in range(200):
        n = [draw.randint(5, 40) for _ in range(60)]
        nll = [sum(draw.expovariate(1 / 2.5) for _ in range(count)) for count in n]
        value, low, high = ratio_interval(nll, n, seed=trial, draws=300)
        assert low <= value <= high
        hits += low <= 2.5 <= high
    assert 176 <= hits <= 199


def test_a_centred_interval_holds_a_statistic_that_resampling_lowers() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = list(torch.randint(50, (20, 30), generator=generator))
    value, low, high = bigram_entropy_interval(rows)
    assert value == bigram_entropy_bits(rows)
    assert low < value < high
    _, _, plain_high = interval(bigram_entropy_bits, rows, draws=200)
    assert plain_high < value  # what the centring is for
    assert interval(bigram_entropy_bits, rows, draws=200, centred=True) == pytest.approx((value, low, high))
    one, below, above = distinct_interval(rows, 2)
    assert one == distinct(rows, 2)
    assert below < one < above


def test_nothing_to_resample_is_refused() -> None:
    for call in (
        lambda: mean_interval([]),
        lambda: ratio_interval([1.0], [0.0]),
        lambda: interval(len, []),
        lambda: interval(lambda a, b: 0.0, [1], [1, 2]),
    ):
        with pytest.raises(UserError):
            call()
    assert mean_interval([3.0]) == (3.0, 3.0, 3.0)
    assert not math.isnan(ratio_interval([2.0, 0.0], [1.0, 0.0])[1])  # resamples without a token are passed over
