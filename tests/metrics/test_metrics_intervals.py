"""Bootstrap intervals of means, pooled means and pools."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
import torch

from tsdfm.cli import main
from tsdfm.errors import UserError
from tsdfm.metrics.intervals import (
    crossed_interval,
    ends,
    mean_interval,
    median_interval,
    ratio_interval,
    resamples,
)
from tsdfm.metrics.ngrams import NgramPool, text_stats
from tsdfm.report.summary import with_interval


def test_means_and_ratios_are_resampled_by_hand() -> None:
    values = [1.0, 2.0, 4.0, 8.0, 3.0]
    mean = mean_interval(values, seed=4, draws=300)
    drawn = sorted(sum(values[i] for i in picks) / 5 for picks in resamples(5, 4, 300).tolist())
    assert mean == pytest.approx((3.6, drawn[7], drawn[292]))
    assert ratio_interval(values, [1.0] * 5, seed=4, draws=300) == pytest.approx(mean)
    # y = 2x text by text: their ratio has no spread unless the pairs were torn apart
    assert ratio_interval([2 * v for v in values], values, draws=50) == pytest.approx((2.0, 2.0, 2.0))


def test_a_bootstrap_interval_covers_the_mean_as_often_as_it_says() -> None:
    draw = random.Random(0)
    hits = 0
    for trial in range(200):
        sample = [draw.gauss(3.0, 2.0) for _ in range(60)]
        mean, low, high = mean_interval(sample, seed=trial, draws=400)
        assert low <= mean <= high
        hits += low <= 3.0 <= high
    assert 178 <= hits <= 199  # 95 % of 200, less a little for the bootstrap's bias


def test_runs_and_problems_are_both_resampled() -> None:
    values = [[1.0, 2.0, 4.0], [8.0, 3.0, 5.0]]
    drawn = sorted(
        sum(values[r][p] for r in runs for p in problems) / 6
        for runs, problems in zip(resamples(2, 5, 300).tolist(), resamples(3, 4, 300).tolist(), strict=True)
    )
    assert crossed_interval(values, seed=4, draws=300) == pytest.approx((23 / 6, drawn[7], drawn[292]))
    assert crossed_interval(values[:1], seed=4) == pytest.approx(mean_interval(values[0], seed=4))
    apart = crossed_interval([[0.0] * 50, [1.0] * 50, [0.0] * 50])  # all of the spread is between runs
    assert apart == pytest.approx((1 / 3, 0.0, 1.0))
    assert crossed_interval([[1.0], [2.0]]).interval is None


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
    found = text_stats(rows).bigram_entropy_bits
    assert found is not None
    value, low, high = found
    pool = NgramPool(rows, 2)
    drawn = torch.tensor([NgramPool([rows[i] for i in picks], 2).entropy() for picks in resamples(20, 0, 200)])
    assert value == pool.entropy()
    assert low < value < high
    assert ends(drawn, value)[2] < value  # what the centring is for
    assert ends(drawn.double(), value, centred=True) == pytest.approx((value, low, high), abs=1e-5)


def test_nothing_to_resample_is_refused() -> None:
    for call in (lambda: mean_interval([]), lambda: ratio_interval([1.0], [0.0])):
        with pytest.raises(UserError):
            call()
    assert mean_interval([3.0, 3.0]) == (3.0, 3.0, 3.0)
    assert not math.isnan(ratio_interval([2.0, 0.0], [1.0, 0.0])[1])  # resamples without a token are passed over


def test_one_text_has_no_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A single text resampled is the same text: an interval without width would say that nothing is uncertain."""
    stats = text_stats([torch.tensor([1, 2, 1, 3])])
    found = [mean_interval([3.0]), ratio_interval([3.0], [1.0]), median_interval([3.0])]
    found += [value for value in vars(stats).values() if value is not None]
    assert len(found) == 10
    assert all(math.isfinite(each.value) and each.interval is None for each in found)
    assert mean_interval([3.0, 4.0]).interval is not None
    assert with_interval(found[0], ".2f") == "3.00"
    (tmp_path / "one.txt").write_text("Mia has two red balls.\n", encoding="utf-8")
    words = ["judge", "score", str(tmp_path / "one.txt"), "--judge", "world:small"]
    assert main(words) == 0
    assert "[" not in capsys.readouterr().out.split("judge")[0]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["ppl_interval"] is None
