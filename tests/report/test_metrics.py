"""Metrics against hand-computed cases, and the measuring stage's rows."""

from __future__ import annotations

import math
import random

import pytest
import torch

from tsdfm.corpus.story_judge import judge
from tsdfm.corpus.world import SMALL, render
from tsdfm.report.measure import MeasureSettings, written
from tsdfm.report.metrics import entropy_bits, mean_interval
from tsdfm.report.stories import judge_name, judge_stories


def test_entropy_of_known_histograms() -> None:
    rows = [torch.tensor(r) for r in ([7, 7, 7, 7], [1, 2, 3, 4], [1, 1, 2, 3], [])]
    found = entropy_bits([row.long() for row in rows])
    assert found == pytest.approx([0.0, 2.0, 1.5, 0.0])


def test_a_bootstrap_interval_covers_the_mean_as_often_as_it_says() -> None:
    draw = random.Random(0)
    hits = 0
    for trial in range(200):
        sample = [draw.gauss(3.0, 2.0) for _ in range(60)]
        mean, low, high = mean_interval(sample, seed=trial, draws=400)
        assert low <= mean <= high
        hits += low <= 3.0 <= high
    assert 178 <= hits <= 199  # 95 % of 200, less a little for the bootstrap's bias


def test_padding_goes_and_only_padding() -> None:
    end = 9
    assert written(torch.tensor([1, 9, 2, 9, 9]), end).tolist() == [1, 9, 2]
    assert written(torch.tensor([1, 2]), end).tolist() == [1, 2]
    assert written(torch.tensor([9, 9]), end).tolist() == []


def test_stories_are_counted_and_weighed() -> None:
    good = [render(SMALL.draw(random.Random(n))) for n in range(3)]
    bad = good[0].replace(" has ", " have ", 1)
    found = judge_stories([*good, bad], SMALL)
    assert found["valid"] == 0.75
    low, high = found["valid_interval"]
    assert low < 0.75 < high
    assert found["broken_rules"] == {"grammar": 1}
    exact = [-judge(text, SMALL).log_likelihood for text in good]
    assert found["nll_valid"] == pytest.approx(sum(exact) / 3)
    assert found["ppl"] == pytest.approx(sum(judge(text, SMALL).perplexity for text in (*good, bad)) / 4)
    assert math.isfinite(found["nll"])
    assert found["judge"] == judge_name(SMALL)


def test_bad_measuring_settings_are_refused() -> None:
    for bad in ({"steps": ()}, {"steps": (0,)}, {"samples": 0}):
        with pytest.raises(Exception, match="at least 1"):
            MeasureSettings(**bad)
