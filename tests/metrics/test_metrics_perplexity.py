"""Perplexity in every definition, by hand."""

from __future__ import annotations

import math

import pytest

from tsdfm.errors import UserError
from tsdfm.judges.base import Score
from tsdfm.metrics.perplexity import judge_scores
from tsdfm.report.rows import plain

SCORES = [
    Score(nll=10 * math.log(2), tokens=10, characters=40, hits=5),  # perplexity 2
    Score(nll=2 * math.log(8), tokens=2, characters=10, hits=0),  # 8
    Score(nll=4 * math.log(4), tokens=4, characters=20, hits=1),  # 4
    Score(nll=0.0, tokens=0, characters=0, hits=0),  # an empty text
]


def test_the_definitions_by_hand() -> None:
    found = plain(judge_scores(SCORES, own_tokens=[5, 4, 8, 0]))
    assert found["ppl"] == pytest.approx((2 + 8 + 4) / 3)
    assert found["ppl_corpus"] == pytest.approx(2 ** ((10 + 6 + 8) / 16))
    assert found["ppl_geometric"] == pytest.approx(64 ** (1 / 3))
    assert found["ppl_median"] == pytest.approx(4.0)
    assert found["ppl_own"] == pytest.approx((4 + 2**1.5 + 2) / 3)
    assert found["bits_per_char"] == pytest.approx(24 / 70)
    assert found["next_token_accuracy"] == pytest.approx(6 / 16)
    assert found["nll"] == pytest.approx(24 * math.log(2) / 3)
    assert (found["judge_tokens"], found["characters"], found["unscored"]) == (16, 70, 1)
    for name in ("ppl", "ppl_corpus", "ppl_geometric", "ppl_median", "ppl_own", "bits_per_char", "nll"):
        low, high = found[f"{name}_interval"]
        assert low <= found[name] <= high


def test_equal_lengths_make_corpus_and_geometric_the_same() -> None:
    scores = [Score(nll=n, tokens=7, characters=9, hits=0) for n in (3.0, 12.5, 7.0)]
    found = plain(judge_scores(scores))
    assert found["ppl_corpus"] == pytest.approx(found["ppl_geometric"])
    assert found["ppl"] > found["ppl_geometric"]  # Jensen
    assert "ppl_own" not in found


def test_nothing_scored_is_said_so() -> None:
    assert plain(judge_scores([SCORES[-1]])) == {"ppl": None, "ppl_interval": None, "unscored": 1}
    with pytest.raises(UserError, match="1 counts"):
        judge_scores(SCORES, own_tokens=[1])
    assert math.isfinite(plain(judge_scores([Score(nll=1e6, tokens=1, characters=1, hits=0)]))["ppl"])
