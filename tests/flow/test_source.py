"""Sources and the mixture path between them and the data."""

from __future__ import annotations

import pytest
import torch

from tsdfm.errors import UserError
from tsdfm.flow.noise import RowNoise, uniform
from tsdfm.flow.path import interpolate
from tsdfm.flow.schedule import Cosine, Polynomial, Schedule
from tsdfm.flow.source import Mask, Source, Uniform, source_from

CPU = torch.device("cpu")


def test_mask_source() -> None:
    source = source_from("mask", 7)
    assert isinstance(source, Mask)
    assert isinstance(source, Source)
    assert (source.vocab, source.mask, source.tokens) == (7, 7, 8)
    x_0 = source.draw((2, 3), RowNoise(0, torch.arange(2)), CPU)
    assert x_0.dtype == torch.int64
    assert x_0.tolist() == [[7] * 3] * 2
    assert source.probability(torch.tensor([0, 6, 7])).tolist() == [0.0, 0.0, 1.0]


def test_uniform_source() -> None:
    source = source_from("uniform", 5)
    assert isinstance(source, Uniform)
    assert isinstance(source, Source)
    assert (source.vocab, source.mask, source.tokens) == (5, None, 5)
    x_0 = source.draw((200, 500), RowNoise(1, torch.arange(200)), CPU)
    counts = torch.bincount(x_0.flatten(), minlength=5).double()
    expected = x_0.numel() / 5
    assert ((counts - expected) ** 2 / expected).sum().item() < 30  # χ² with 4 degrees of freedom: p ≈ 5e−6
    assert source.probability(torch.tensor([0, 4])).tolist() == [0.2, 0.2]


@pytest.mark.parametrize("but", [0, 3, 4])
def test_a_draw_without_a_token_is_uniform_over_the_others_and_the_same_elsewhere(but: int) -> None:
    plain, without = (Uniform(5).draw((400, 500), RowNoise(1, torch.arange(400)), CPU, b) for b in (None, but))
    moved = plain == but
    assert torch.equal(without[~moved], plain[~moved])
    counts = torch.bincount(without[moved], minlength=5).double()
    assert counts[but] == 0
    expected = moved.sum() / 4
    rest = counts[torch.arange(5) != but]
    assert ((rest - expected) ** 2 / expected).sum().item() < 30  # χ² with 3 degrees of freedom: p < 2e−6
    assert Mask(5).draw((1, 2), RowNoise(1, torch.arange(1)), CPU, but).tolist() == [[5, 5]]
    assert Uniform(1).draw((1, 2), RowNoise(0, torch.arange(1)), CPU, 0).tolist() == [[0, 0]]


def test_one_token_is_a_vocabulary() -> None:
    assert Uniform(1).draw((2, 2), RowNoise(0, torch.arange(2)), CPU).tolist() == [[0, 0], [0, 0]]


def test_bad_sources() -> None:
    with pytest.raises(UserError, match="at least one token"):
        Uniform(0)
    with pytest.raises(UserError, match='"uniform" or "mask"'):
        source_from("gauss", 3)


@pytest.mark.parametrize("schedule", [Polynomial(1.0), Polynomial(2.0), Cosine()])
def test_path_ends_and_nesting(schedule: Schedule) -> None:
    rows = 64
    noise = RowNoise(0, torch.arange(rows))
    x_1 = torch.zeros(rows, 50, dtype=torch.int64)
    x_0 = torch.ones_like(x_1)
    u = uniform(noise, x_1.shape, CPU)
    arrived = torch.zeros_like(x_1, dtype=torch.bool)
    for t in torch.linspace(0, 1, 11):
        x_t = interpolate(x_0, x_1, t.expand(rows), schedule, u)
        assert not (arrived & (x_t != x_1)).any()  # what has arrived stays
        arrived = x_t == x_1
    assert arrived.all()
    assert torch.equal(interpolate(x_0, x_1, torch.zeros(rows), schedule, u), x_0)


def test_path_takes_one_time_per_row_and_noise_or_uniforms() -> None:
    x_1 = torch.zeros(3, 4000, dtype=torch.int64)
    x_0 = torch.ones_like(x_1)
    t = torch.tensor([0.2, 0.5, 0.9])
    x_t = interpolate(x_0, x_1, t, Polynomial(2.0), RowNoise(5, torch.arange(3)))
    share = (x_t == x_1).double().mean(-1)
    assert torch.allclose(share, t.double() ** 2, atol=5 * 0.5 / 4000**0.5)
    u = RowNoise(5, torch.arange(3)).uniform(x_1.shape)
    assert torch.equal(x_t, interpolate(x_0, x_1, t, Polynomial(2.0), u))
