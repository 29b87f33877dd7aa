"""The unigram bias: on models whose answer to a bias is known in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tsdfm.report.cells import Cell
from tsdfm.report.unigram import bias_of, counts_of, data_counts, divergence, drawn, fit, step
from tsdfm.tokens.rows import TokenRows

DATA = torch.tensor([4000, 3000, 2000, 1000])
OWN = torch.tensor([0.7, 0.1, 0.1, 0.1], dtype=torch.float64)


def model(strength: float, tokens: int = 200_000) -> tuple[Callable[[Tensor | None, int], Tensor], list[int]]:
    """Texts whose tokens have p ∝ OWN·exp(strength·b) exactly; and the seeds it was asked for."""
    seeds: list[int] = []

    def texts(bias: Tensor | None, seed: int) -> Tensor:
        seeds.append(seed)
        p = OWN * (strength * bias.double()).exp() if bias is not None else OWN
        return (tokens * p / p.sum()).round().long().expand(2, -1)

    return texts, seeds


def test_a_step_is_the_log_ratio() -> None:
    bias = step(DATA, torch.tensor([[7000, 1000, 1000, 1000]] * 2))
    wanted = torch.tensor([4 / 7, 3.0, 2.0, 1.0]).double().log()
    torch.testing.assert_close(bias, wanted, rtol=0, atol=1e-3)
    assert bias_of(DATA, torch.tensor([10, 0, 0, 0]), 1.0).tolist() == pytest.approx(
        [math.log(5 / 11), math.log(4), math.log(3), math.log(2)]
    )
    unsure = bias_of(DATA, torch.tensor([10, 0, 0, 0]), 100.0)
    assert float(unsure.abs().max()) < 0.07  # few tokens say little


def test_divergence_by_hand() -> None:
    found = divergence(DATA, torch.tensor([7_000_000, 1_000_000, 1_000_000, 1_000_000]))
    wanted = 0.4 * math.log2(4 / 7) + 0.3 * math.log2(3) + 0.2 * math.log2(2)
    assert found == pytest.approx(wanted, abs=1e-5)
    assert divergence(DATA, DATA) == pytest.approx(0.0, abs=1e-12)


def test_one_round_is_enough_where_a_bias_acts_fully() -> None:
    texts, seeds = model(1.0)
    found = fit(DATA, texts, 5)
    assert len(found.kl) == 2
    assert found.kl[0] == pytest.approx(0.35, abs=0.01)
    assert found.kl[1] <= 1.5 * found.floor
    wanted = (DATA / 1000 / (10 * OWN)).float().log()  # but for a constant
    torch.testing.assert_close(found.bias - found.bias[3], wanted - wanted[3], rtol=0, atol=0.01)
    assert len(set(seeds)) == 2
    assert 5 not in seeds  # never the texts that are judged


def test_a_second_round_where_it_acts_by_half() -> None:
    texts, _ = model(0.5)
    found = fit(DATA, texts, 0)
    assert len(found.kl) == 3
    assert found.kl[2] < 0.3 * found.kl[1] < 0.3 * found.kl[0]
    assert found.plain()["kl_after"] == found.kl[2]


def test_where_a_bias_makes_things_worse_there_is_none() -> None:
    found = fit(DATA, model(-1.0)[0], 0)
    assert found.plain()["kl_after"] == found.kl[0]
    assert float(found.bias.abs().max()) == 0.0


def test_frequencies_that_are_right_are_left_alone() -> None:
    def texts(bias: Tensor | None, seed: int) -> Tensor:
        return torch.stack([drawn(DATA, 3000, seed + half) for half in (0, 1)])

    found = fit(DATA, texts, 3)
    assert found.kl[-1] < 0.01
    assert float(found.bias.abs().max()) < 0.2


def test_smoothing_is_chosen_for_texts_the_bias_has_not_seen() -> None:
    """100 tokens of a vocabulary of 2 000: a bias fitted to their noise would be large."""
    flat = torch.full((2000,), 100)
    halves = torch.stack([drawn(flat, 100, seed) for seed in (1, 2)])
    assert float(step(flat, halves).abs().max()) < 0.02


def test_tokens_are_counted_alike_in_texts_and_in_the_training_split(report_home: Path, tmp_path: Path) -> None:
    rows = TokenRows(report_home / "tokens", "train")
    plain = np.concatenate([rows[i][rows.anchor :] for i in range(len(rows))])
    found = data_counts(report_home / "tokens", tmp_path)
    assert found.tolist() == np.bincount(plain, minlength=rows.vocab_size).tolist()
    (kept,) = tmp_path.glob("unigram-*.json")
    before = kept.stat().st_mtime_ns
    assert torch.equal(data_counts(report_home / "tokens", tmp_path), found)
    assert kept.stat().st_mtime_ns == before
    cell = Cell(
        key={}, method="x", source=None, steps=1, nfe=1, length=3, anchor=1, end_of_text=0, seconds=0.0, hardware="",
        texts=[""] * 3, tokens=[[0, 1, 2], [0, 2, 2], [0, 1, 0]],
    )  # fmt: skip
    assert counts_of(cell, 4).tolist() == [[1, 2, 1, 0], [0, 0, 2, 0]]
