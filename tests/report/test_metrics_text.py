"""Metrics of tokens alone, against closed forms and cases worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from tsdfm.report.metrics import (
    bigram_entropy_bits,
    distinct,
    entropy_bits,
    entropy_nats,
    repetition,
    text_fields,
    token_repetition,
)


def rows(*texts: list[int]) -> list[torch.Tensor]:
    return [torch.tensor(text, dtype=torch.int64) for text in texts]


def test_nats_are_bits_by_another_name() -> None:
    some = rows([1, 1, 2, 3], [5], [])
    assert entropy_nats(some) == pytest.approx([1.5 * math.log(2), 0.0, 0.0])
    uniform = rows(list(range(1024)))
    assert entropy_bits(uniform) == pytest.approx([10.0])
    assert entropy_nats(uniform) == pytest.approx([math.log(1024)])


def test_bigrams_are_pooled_and_cross_no_border() -> None:
    # (1,2) twice, (2,1) once, (3,4) once; (1,3) across the border is none
    assert bigram_entropy_bits(rows([1, 2, 1, 2][:3], [1, 2], [3, 4])) == pytest.approx(1.5)
    assert bigram_entropy_bits(rows([1], [], [2])) == 0.0


def test_distinct_counts_the_pool() -> None:
    some = rows([1, 2, 1, 2], [1, 2])
    assert distinct(some, 1) == pytest.approx(2 / 6)
    assert distinct(some, 2) == pytest.approx(2 / 4)
    assert distinct(some, 3) == pytest.approx(2 / 2)
    assert distinct(some, 5) == 0.0


def test_repetition_of_ngrams() -> None:
    assert repetition(rows([1, 2, 1, 2, 1, 2], [1, 2, 3, 4, 5], [1, 2, 3], []), n=2) == pytest.approx([0.6, 0, 0, 0])
    assert repetition(rows([7] * 13)) == pytest.approx([0.9])


def test_repetition_of_tokens_within_a_window() -> None:
    text = rows([1, 2, 1, 3, 2, 2])
    assert token_repetition(text) == pytest.approx([3 / 6])
    assert token_repetition(text, window=2) == pytest.approx([2 / 6])
    assert token_repetition(rows([])) == [0.0]


def test_the_fields_of_a_row() -> None:
    some = rows([1, 2, 3, 4], [1, 1, 2, 2], [5, 6, 5, 6])
    found = text_fields(some)
    assert found["entropy_bits"] == pytest.approx(sum(entropy_bits(some)) / 3)
    assert found["entropy_nats"] == pytest.approx(found["entropy_bits"] * math.log(2))
    assert found["distinct_2"] == distinct(some, 2)
    for name in ("entropy_bits", "entropy_nats", "bigram_entropy_bits", "repetition", "distinct_1", "distinct_3"):
        low, high = found[f"{name}_interval"]
        assert low <= found[name] <= high
    assert found["entropy_interval"] == found["entropy_bits_interval"]
